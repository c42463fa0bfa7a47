"""Rules about devices that are in use, or offered, and should not be. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from dray.allocator.taints import TaintRule
from dray.api.document import Document, NamespacedName
from dray.api.timestamps import parse_time
from dray.controllers.device_taint_eviction.plan import NO_EXECUTE, DeviceTaints
from dray.controllers.device_taint_eviction.plan import Rule as EvictingRule
from dray.sim.devices import device_rows
from dray.sim.doctor.findings import STUCK_AFTER, Finding, Rule, Severity
from dray.sim.double_offers import DoubleOffer
from dray.sim.explain.similar_names import listed
from dray.sim.physical_devices import offers_of, used_resources
from dray.sim.snapshot import Snapshot

# The time of a taint that does not say when it was added.
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Keeps claims from devices that a device plugin gives out.
PLUGIN_TAINT: Final = "tools.dray.dev/device-plugin"


def double_offers(snapshot: Snapshot, _now: datetime) -> Iterator[Finding]:
    """Yield devices that a device plugin and a driver both offer, and those that both have given out."""
    if not snapshot.covers("Node", "ResourceSlice"):
        return
    for offer in offers_of(snapshot, device_rows(snapshot), used_resources(snapshot)):
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


def unheeded_taints(snapshot: Snapshot, now: datetime) -> Iterator[Finding]:
    """Yield Pods that run although a taint of one of their devices should have evicted them."""
    taints = DeviceTaints()
    for resource_slice in snapshot.slices:
        taints.pools.change(None, resource_slice)
    for document in snapshot.taint_rules:
        spec, metadata = document["spec"], document["metadata"]
        if spec["taint"].get("effect") == NO_EXECUTE:
            added = spec["taint"].get("timeAdded")
            time_added = parse_time(added) if added else _LONG_AGO
            taints.rules[metadata["name"]] = EvictingRule(TaintRule.from_document(document), "", time_added)
    for claim in snapshot.claims:
        taints.claims.put(NamespacedName(claim.metadata.namespace or "", claim.metadata.name or ""), claim)
    for pod in snapshot.pods:
        due = None if pod.metadata.deletion_timestamp is not None else taints.pod_eviction(pod)
        if due is None or now - due.when < STUCK_AFTER:
            continue
        since = f" since {due.when:%Y-%m-%d %H:%M} UTC" if due.when != _LONG_AGO else ""
        what = f"runs on although a device of it has a NoExecute taint that it does not tolerate{since}"
        advice = (
            "check that the device taint controller is running, which evicts it; or let the claim tolerate the taint"
        )
        subject = f"pod {pod.metadata.namespace}/{pod.metadata.name}"
        yield Finding(Severity.WARNING, "unheeded-taint", subject, what, advice)


DEVICE_RULES: Final[tuple[Rule, ...]] = (double_offers, unheeded_taints)
