"""Which resources of a server a snapshot is read from. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dray.api.document import Document
from dray.client.interface import Resource, ServedResource
from dray.sim.snapshot import KINDS

# Newest first.
_VERSIONS: Final = ("v1", "v1beta2", "v1beta1", "v1alpha3")


def best_resources(resources: Iterable[ServedResource]) -> dict[str, Resource[Document]]:
    """For each kind that snapshots know, the resource in the newest version that is served."""
    found: dict[str, ServedResource] = {}
    for item in resources:
        if KINDS.get(item.kind) != (item.group, item.plural) or item.version not in _VERSIONS:
            continue
        known = found.get(item.kind)
        if known is None or _VERSIONS.index(item.version) < _VERSIONS.index(known.version):
            found[item.kind] = item
    return {kind: item.resource() for kind, item in found.items()}
