"""Rules about devices that are in use, or offered, and should not be. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.sim.devices import device_rows
from dray.sim.doctor.findings import Finding, Rule, Severity
from dray.sim.double_offers import DoubleOffer
from dray.sim.explain.similar_names import listed
from dray.sim.physical_devices import offers_of
from dray.sim.snapshot import Snapshot

# Keeps claims from devices that a device plugin gives out.
PLUGIN_TAINT: Final = "tools.dray.dev/device-plugin"


def double_offers(snapshot: Snapshot, _now: datetime) -> Iterator[Finding]:
    """Yield devices that a device plugin and a driver both offer, and those that both have given out."""
    if not snapshot.covers("Node", "ResourceSlice"):
        return
    for offer in offers_of(snapshot, device_rows(snapshot)):
        for key, pod in sorted(offer.collisions.items()):
            (row,) = (item for item in offer.rows if item.key == key)
            claims = listed([holder.claim for holder in row.holders])
            what = f"is in use twice: by claim {claims}, and by Pod {pod} as {offer.resource} of a device plugin"
            yield Finding(Severity.ERROR, "device-collision", f"device {key}", what, "delete one of the Pods")
        if offer.is_open or offer.held:
            yield _double_offer(offer)


def _double_offer(offer: DoubleOffer) -> Finding:
    held = len(offer.held)
    what = (
        f"has devices that are offered twice: {offer.count} as {offer.resource} by a device plugin ({offer.used} in "
        f"use), and {len(offer.rows)} by driver {offer.driver} ({held} in use); {offer.why}"
    )
    severity = Severity.WARNING
    if offer.certain_collisions:
        severity = Severity.ERROR
        verb = "is" if offer.certain_collisions == 1 else "are"
        what += f". At least {offer.certain_collisions} of them {verb} in use twice"
    elif held and offer.used:
        what += ". Pods may have the same device"
    advice = f"keep one of the two: dray migrate plan --resource {offer.resource} shows the steps"
    if not offer.is_open:
        return Finding(severity, "double-offer", f"node {offer.node}", what, advice)
    advice += "; until then, keep claims from the devices: dray doctor --manifests | kubectl apply -f -"
    return Finding(severity, "double-offer", f"node {offer.node}", what, advice, manifest=_blocking_taint(offer))


def _blocking_taint(offer: DoubleOffer) -> Document:
    """Return a rule that keeps new claims from the devices."""
    devices = sorted(row.name for row in offer.rows)
    selector = {"driver": offer.driver, "pool": offer.pool}
    if len(devices) == 1:
        selector["device"] = devices[0]
    return {
        "apiVersion": "resource.k8s.io/v1beta2",
        "kind": "DeviceTaintRule",
        "metadata": {"name": f"device-plugin-{offer.driver}-{offer.pool}".replace("/", "-").lower()},
        "spec": {"deviceSelector": selector, "taint": {"key": PLUGIN_TAINT, "effect": "NoSchedule"}},
    }


DEVICE_RULES: Final[tuple[Rule, ...]] = (double_offers,)
