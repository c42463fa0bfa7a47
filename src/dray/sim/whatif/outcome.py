"""Outcome of a what-if run, compared with the original snapshot. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from dray.api import classic_claims as classic
from dray.api.pod_claims import is_pod_done
from dray.api.types.core_v1 import Pod
from dray.sim import usage
from dray.sim.classic_claims import claims_of, driver_of
from dray.sim.devices import DeviceRow
from dray.sim.explain.answers import Stage, Verdict
from dray.sim.explain.subject import claim_keys
from dray.sim.physical_devices import physical_devices
from dray.sim.snapshot import Snapshot
from dray.sim.usage import UsageRow

if TYPE_CHECKING:
    from dray.sim.whatif.preemption import Eviction

# Copies of a Pod that are tried, unless the user says how many.
FIT_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class PodOutcome:
    """A Pod that was scheduled, moved, or is pending."""

    namespace: str
    name: str
    # The original node; empty if it had none.
    before: str
    node: str
    devices: tuple[str, ...] = ()
    # Why it is pending.
    why: str = ""
    # Whether it was pending before as well.
    waited: bool = False


@dataclass(frozen=True, slots=True)
class UsageChange:
    """Usage of a class or node before and after."""

    name: str
    before: UsageRow
    after: UsageRow

    @property
    def is_changed(self) -> bool:
        """Whether the counts differ."""
        return self.before != self.after


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a run."""

    placed: tuple[PodOutcome, ...]
    moved: tuple[PodOutcome, ...]
    pending: tuple[PodOutcome, ...]
    # `namespace/name` of deleted Pods that no controller recreates.
    lost: tuple[str, ...]
    unchanged: int
    classes: tuple[UsageChange, ...]
    nodes: tuple[UsageChange, ...]
    preempted: tuple[Eviction, ...] = ()
    # What was not evaluated, for Pods that were scheduled, moved or are pending.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fit:
    """How many copies of a Pod were scheduled, and why the next was not."""

    count: int
    why: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Growth:
    """How many nodes were added until no Pod was pending; `enough` is false if more would not help."""

    nodes: int
    enough: bool
    outcome: Outcome


def compare(
    before: Snapshot, after: Snapshot, lost: Iterable[str] = (), preempted: tuple[Eviction, ...] = ()
) -> Outcome:
    """Compare two snapshots: Pods and usage."""
    nodes_before = {_key(pod): pod.spec.node_name or "" for pod in before.pods if not is_pod_done(pod)}
    outcomes = [_outcome(pod, nodes_before, after) for pod in after.pods if not is_pod_done(pod)]
    placed = tuple(item for item in outcomes if item.node and not item.before)
    moved = tuple(item for item in outcomes if item.node and item.before and item.node != item.before)
    pending = tuple(item for item in outcomes if not item.node)
    devices_before, devices_after = physical_devices(before), physical_devices(after)
    return Outcome(
        placed,
        moved,
        pending,
        tuple(lost),
        unchanged=len(outcomes) - len(placed) - len(moved) - len(pending),
        classes=_usage_changes(usage.by_class(devices_before), usage.by_class(devices_after)),
        nodes=_usage_changes(usage.by_node(devices_before), usage.by_node(devices_after)),
        preempted=preempted,
    )


def _outcome(pod: Pod, nodes_before: Mapping[tuple[str, str], str], after: Snapshot) -> PodOutcome:
    namespace, name = key = _key(pod)
    node = pod.spec.node_name or ""
    devices = tuple(devices_of(pod, after)) if node else ()
    waited = nodes_before.get(key) == ""
    return PodOutcome(
        namespace, name, nodes_before.get(key, ""), node, devices, "" if node else _why(pod, after), waited
    )


def devices_of(pod: Pod, snapshot: Snapshot) -> Iterable[str]:
    """Yield the devices of a Pod's claims."""
    for key in claim_keys(pod):
        claim = snapshot.claims_by_key.get(key)
        if claim is not None and claim.status.allocation is not None:
            for result in claim.status.allocation.devices.results:
                yield f"{result.driver}/{result.pool}/{result.device}"


def with_verdict(item: PodOutcome, verdict: Verdict | None) -> PodOutcome:
    """Return the outcome of a pending Pod with the verdict on it; one that knows no obstacle leaves the reason."""
    if verdict is None or (verdict.stage is Stage.SCHEDULER and item.why):
        return item
    return replace(item, why=verdict.why or verdict.text)


def _why(pod: Pod, after: Snapshot) -> str:
    for claim in claims_of(pod, after):
        # The reason in the Pod's condition would be that this driver, which does not run here, does not answer.
        if not classic.is_allocated(claim):
            driver = driver_of(claim, after) or f"of class {claim.spec.resource_class_name}"
            return f"classic claim {claim.metadata.name}: only its driver {driver} knows where it can be allocated"
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.message or condition.reason or ""
    return "its claims are not allocated" if pod.spec.resource_claims else ""


def _key(pod: Pod) -> tuple[str, str]:
    return pod.metadata.namespace or "", pod.metadata.name or ""


def _usage_changes(before: Iterable[UsageRow], after: Iterable[UsageRow]) -> tuple[UsageChange, ...]:
    old, new = {row.name: row for row in before}, {row.name: row for row in after}
    nothing = UsageRow("", 0, 0, 0, 0)
    return tuple(UsageChange(name, old.get(name, nothing), new.get(name, nothing)) for name in sorted({*old, *new}))


def used(rows: Iterable[DeviceRow]) -> int:
    """Return the number of allocated devices."""
    return sum(bool(row.holders) for row in rows)
