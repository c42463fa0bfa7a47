"""Which daemon Pods to create and delete, how a rolling update proceeds, and the status. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeAlias

from dray.api.types.apps_v1 import DaemonSet, DaemonSetStatus
from dray.api.types.core_v1 import Node, Pod
from dray.controllers.daemon_set.placement import HASH_LABEL, NodeFit, Placement, node_of
from dray.controllers.pod_control.pod_status import FAILED, SUCCEEDED, is_available, is_finished, is_ready
from dray.controllers.pod_control.replicas import scaled_value

BURST_MAX: Final = 250
ROLLING_UPDATE: Final = "RollingUpdate"
FAILED_POD: Final = "FailedDaemonPod"
SUCCEEDED_POD: Final = "SucceededDaemonPod"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

# Returns how long a failed Pod of a node must not be replaced.
BackoffSeconds: TypeAlias = Callable[[str], float]


@dataclass(frozen=True, slots=True)
class FinishedPod:
    """A finished daemon Pod that is replaced."""

    pod: Pod
    node: str

    @property
    def failed(self) -> bool:
        """Whether the Pod failed."""
        return self.pod.status.phase == FAILED

    @property
    def message(self) -> str:
        """The text of the event."""
        where = f"{self.pod.metadata.namespace}/{self.pod.metadata.name} on node {self.node}"
        if self.failed:
            return f"Found failed daemon pod {where}, will try to kill it"
        return f"Found succeeded daemon pod {where}, will try to delete it"


@dataclass(frozen=True, slots=True)
class Plan:
    """Nodes to create Pods for, and Pods to delete."""

    create: tuple[str, ...] = ()
    delete: tuple[Pod, ...] = ()
    replaced: tuple[FinishedPod, ...] = ()
    # When the next failed Pod can be replaced.
    requeue_seconds: float | None = None


@dataclass(slots=True)
class _Draft:
    create: list[str] = field(default_factory=list)
    delete: list[Pod] = field(default_factory=list)
    replaced: list[FinishedPod] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def finish(self) -> Plan:
        return Plan(
            tuple(self.create[:BURST_MAX]),
            tuple(self.delete[:BURST_MAX]),
            tuple(self.replaced),
            min(self.waits, default=None),
        )


@dataclass(frozen=True, slots=True)
class DaemonSetState:
    """A DaemonSet with its nodes and Pods at one point in time."""

    daemon_set: DaemonSet
    revision_hash: str
    now: datetime
    # By name, in order.
    fits: Mapping[str, NodeFit]
    by_node: Mapping[str, tuple[Pod, ...]]
    # Pods pinned to nodes that do not exist.
    stray: tuple[Pod, ...]

    def pods_on(self, node: str) -> tuple[Pod, ...]:
        """Return the Pods on a node."""
        return self.by_node.get(node, ())

    @property
    def wanted(self) -> list[str]:
        """Nodes that should run a Pod."""
        return [name for name, fit in self.fits.items() if fit.should_run]

    def is_current(self, pod: Pod) -> bool:
        """Return whether the Pod has the current template."""
        return pod.metadata.labels.get(HASH_LABEL) == self.revision_hash

    def is_available(self, pod: Pod) -> bool:
        """Return whether the Pod is available."""
        return is_available(pod, self.daemon_set.spec.min_ready_seconds or 0, self.now)


def make_state(
    daemon_set: DaemonSet, nodes: Iterable[Node], pods: Iterable[Pod], revision_hash: str, now: datetime
) -> DaemonSetState:
    """Evaluate every node and group the Pods by node."""
    placement = Placement(daemon_set)
    fits = {node.metadata.name or "": placement.evaluate(node) for node in nodes}
    by_node: dict[str, list[Pod]] = defaultdict(list)
    stray: list[Pod] = []
    for pod in pods:
        if pod.metadata.deletion_timestamp is not None and is_finished(pod):
            continue
        node = node_of(pod)
        by_node[node].append(pod)
        if node not in fits and not pod.spec.node_name and pod.metadata.deletion_timestamp is None:
            stray.append(pod)
    ordered = {name: tuple(sorted(found, key=_sort_key)) for name, found in by_node.items()}
    return DaemonSetState(daemon_set, revision_hash, now, dict(sorted(fits.items())), ordered, tuple(stray))


def _sort_key(pod: Pod) -> tuple[bool, datetime, str]:
    """Sort scheduled Pods before unscheduled ones, then by age."""
    return not pod.spec.node_name, pod.metadata.creation_timestamp or _EPOCH, pod.metadata.name or ""


def bounds(daemon_set: DaemonSet, wanted: int) -> tuple[int, int]:
    """Return the maximum surge and the maximum of unavailable Pods of an update; not both are 0."""
    rolling = daemon_set.spec.update_strategy.rolling_update
    if daemon_set.spec.update_strategy.type != ROLLING_UPDATE or rolling is None:
        return 0, 0
    surge = scaled_value(rolling.max_surge, wanted, round_up=True)
    unavailable = scaled_value(rolling.max_unavailable, wanted, round_up=True)
    return (surge, unavailable) if surge or unavailable else (0, 1)


def plan_pods(state: DaemonSetState, backoff_seconds: BackoffSeconds) -> Plan:
    """Correct the Pods of each node; if all are correct, take a step of the rolling update."""
    if state.daemon_set.metadata.deletion_timestamp is not None:
        return Plan()
    draft = _Draft(delete=list(state.stray))
    surges = bounds(state.daemon_set, 1)[0] > 0
    for node, fit in state.fits.items():
        _plan_node(state, draft, node, fit, backoff_seconds, surges=surges)
    settled = not draft.create and not draft.delete
    if settled and state.daemon_set.spec.update_strategy.type == ROLLING_UPDATE:
        _update(state, draft)
    return draft.finish()


# --- One node. ---


def _plan_node(
    state: DaemonSetState,
    draft: _Draft,
    node: str,
    fit: NodeFit,
    backoff_seconds: BackoffSeconds,
    *,
    surges: bool,
) -> None:
    pods = state.pods_on(node)
    if fit.should_run and not pods:
        draft.create.append(node)
    elif fit.should_continue:
        running = _replace_finished(draft, node, pods, backoff_seconds)
        draft.delete += _surplus_in_surge(state, running) if surges else running[1:]
    else:
        draft.delete += [pod for pod in pods if pod.metadata.deletion_timestamp is None]


def _replace_finished(draft: _Draft, node: str, pods: Sequence[Pod], backoff_seconds: BackoffSeconds) -> list[Pod]:
    """Delete finished Pods, failed ones after a backoff; return the running Pods."""
    running: list[Pod] = []
    for pod in pods:
        if pod.metadata.deletion_timestamp is not None:
            continue
        wait = backoff_seconds(node) if pod.status.phase == FAILED else 0.0
        if wait > 0:
            draft.waits.append(wait)
        elif pod.status.phase in (FAILED, SUCCEEDED):
            draft.replaced.append(FinishedPod(pod, node))
            draft.delete.append(pod)
        else:
            running.append(pod)
    return running


def _surplus_in_surge(state: DaemonSetState, running: Sequence[Pod]) -> list[Pod]:
    """Allow one old and one new Pod per node; delete the old one when the new one is available."""
    new = [pod for pod in running if state.is_current(pod)]
    old = [pod for pod in running if not state.is_current(pod)]
    gone = new[1:] + old[1:]
    if new and old and (not is_ready(old[0]) or state.is_available(new[0])):
        gone.append(old[0])
    return gone


# --- Updates. ---


def _update(state: DaemonSetState, draft: _Draft) -> None:
    surge, unavailable = bounds(state.daemon_set, len(state.wanted))
    if surge > 0:
        _update_by_surge(state, draft, surge)
    else:
        _update_by_replacing(state, draft, unavailable)


def _new_and_old(state: DaemonSetState, node: str) -> tuple[list[Pod], list[Pod]]:
    there = [pod for pod in state.pods_on(node) if pod.metadata.deletion_timestamp is None]
    return [pod for pod in there if state.is_current(pod)], [pod for pod in there if not state.is_current(pod)]


def _update_by_replacing(state: DaemonSetState, draft: _Draft, unavailable_max: int) -> None:
    """Delete unavailable old Pods at once, and others within the limit."""
    missing = 0
    candidates: list[Pod] = []
    for node in state.wanted:
        new, old = _new_and_old(state, node)
        if len(new) + len(old) != 1 or not state.is_available((new + old)[0]):
            missing += 1
        if len(old) == 1 and not new:
            (draft.delete if not state.is_available(old[0]) else candidates).append(old[0])
    draft.delete += candidates[: max(unavailable_max - missing, 0)]


def _update_by_surge(state: DaemonSetState, draft: _Draft, surge_max: int) -> None:
    """Create new Pods beside old ones within the limit; where the old one is unavailable, at once."""
    surging = 0
    candidates: list[str] = []
    for node in state.wanted:
        new, old = _new_and_old(state, node)
        if new and old:
            surging += 1
        elif old and not state.is_available(old[0]):
            draft.create.append(node)
        elif old:
            candidates.append(node)
        elif not new:
            surging += 1
    draft.create += candidates[: max(surge_max - surging, 0)]


# --- Status. ---


def status_of(state: DaemonSetState) -> DaemonSetStatus:
    """Return the status, from the Pods before the writes."""
    leaders = [state.pods_on(node)[0] for node in state.wanted if state.pods_on(node)]
    wanted = len(state.wanted)
    available = sum(state.is_available(pod) for pod in leaders)
    return DaemonSetStatus(
        desired_number_scheduled=wanted,
        current_number_scheduled=len(leaders),
        number_misscheduled=sum(not fit.should_run and bool(state.pods_on(node)) for node, fit in state.fits.items()),
        number_ready=sum(is_ready(pod) for pod in leaders),
        updated_number_scheduled=sum(state.is_current(pod) for pod in leaders) or None,
        number_available=available or None,
        number_unavailable=(wanted - available) or None,
        observed_generation=state.daemon_set.metadata.generation,
        collision_count=state.daemon_set.status.collision_count,
        conditions=state.daemon_set.status.conditions,
    )
