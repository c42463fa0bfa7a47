"""Compares the drivers that run on a node with what they publish. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dray.sim.doctor.findings import Finding, Severity
from dray.sim.snapshot import Snapshot


def check_drivers(node: str, drivers: Iterable[str], snapshot: Snapshot) -> Iterator[Finding]:
    """Yield drivers that run on the node and publish no devices that it can use."""
    publishing = {item.spec.driver for item in snapshot.slices if item.spec.node_name in (None, "", node)}
    for driver in sorted(set(drivers) - publishing):
        yield Finding(
            Severity.WARNING,
            "unpublished-driver",
            f"node {node}",
            f"runs driver {driver}, which has no ResourceSlice for the node: its devices cannot be allocated",
            "if it has devices, read its log; if the Node was deleted and registered again, restart the driver",
        )
