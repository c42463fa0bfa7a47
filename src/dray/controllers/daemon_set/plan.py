"""Which nodes lack a daemon, which daemons go, how an update proceeds, and what is reported; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from dray.api.types.apps_v1 import DaemonSet, DaemonSetStatus
from dray.api.types.core_v1 import Node, Pod
from dray.controllers.daemon_set.placement import HASH_LABEL, Placement, Verdict, node_of
from dray.controllers.pod_control.pod_status import FAILED, SUCCEEDED, is_available, is_finished, is_ready
from dray.controllers.pod_control.replicas import scaled

BURST_MAX: Final = 250
ROLLING_UPDATE: Final = "RollingUpdate"
FAILED_POD: Final = "FailedDaemonPod"
SUCCEEDED_POD: Final = "SucceededDaemonPod"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Found:
    """A daemon that has ended and is to be replaced."""

    pod: Pod
    node: str

    @property
    def failed(self) -> bool:
        """Whether it ended badly."""
        return self.pod.status.phase == FAILED

    @property
    def message(self) -> str:
        """What is told of it."""
        place = f"{self.pod.metadata.namespace}/{self.pod.metadata.name} on node {self.node}"
        if self.failed:
            return f"Found failed daemon pod {place}, will try to kill it"
        return f"Found succeeded daemon pod {place}, will try to delete it"


@dataclass(frozen=True, slots=True)
class Plan:
    """The writes: a daemon for each of these nodes, and these Pods gone."""

    create: tuple[str, ...] = ()
    delete: tuple[Pod, ...] = ()
    ended: tuple[Found, ...] = ()
    # When a failed daemon may be replaced.
    requeue_seconds: float | None = None


@dataclass(slots=True)
class _Draft:
    create: list[str] = field(default_factory=list)
    delete: list[Pod] = field(default_factory=list)
    ended: list[Found] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def finish(self) -> Plan:
        return Plan(
            tuple(self.create[:BURST_MAX]),
            tuple(self.delete[:BURST_MAX]),
            tuple(self.ended),
            min(self.waits, default=None),
        )


@dataclass(frozen=True, slots=True)
class Scene:
    """A DaemonSet with its nodes and Pods at one moment."""

    daemon_set: DaemonSet
    revision_hash: str
    now: datetime
    # By name, in order.
    verdicts: Mapping[str, Verdict]
    by_node: Mapping[str, tuple[Pod, ...]]
    # Pods meant for nodes that do not exist.
    stray: tuple[Pod, ...]

    def pods_on(self, node: str) -> tuple[Pod, ...]:
        """The daemons on a node."""
        return self.by_node.get(node, ())

    @property
    def wanted(self) -> list[str]:
        """The nodes that should have a daemon."""
        return [name for name, verdict in self.verdicts.items() if verdict.should_run]

    def is_current(self, pod: Pod) -> bool:
        """Whether the Pod has the present template."""
        return pod.metadata.labels.get(HASH_LABEL) == self.revision_hash

    def is_available(self, pod: Pod) -> bool:
        """Whether the Pod has been ready for long enough."""
        return is_available(pod, self.daemon_set.spec.min_ready_seconds or 0, self.now)


def make_scene(
    daemon_set: DaemonSet, nodes: Iterable[Node], pods: Iterable[Pod], revision_hash: str, now: datetime
) -> Scene:
    """Look at every node and every Pod once."""
    placement = Placement(daemon_set)
    verdicts = {node.metadata.name or "": placement.judge(node) for node in nodes}
    by_node: dict[str, list[Pod]] = defaultdict(list)
    stray: list[Pod] = []
    for pod in pods:
        if pod.metadata.deletion_timestamp is not None and is_finished(pod):
            continue
        node = node_of(pod)
        by_node[node].append(pod)
        if node not in verdicts and not pod.spec.node_name and pod.metadata.deletion_timestamp is None:
            stray.append(pod)
    ordered = {name: tuple(sorted(found, key=_seniority)) for name, found in by_node.items()}
    return Scene(daemon_set, revision_hash, now, dict(sorted(verdicts.items())), ordered, tuple(stray))


def _seniority(pod: Pod) -> tuple[bool, datetime, str]:
    """With a node before without, then the older."""
    return not pod.spec.node_name, pod.metadata.creation_timestamp or _EPOCH, pod.metadata.name or ""


def bounds(daemon_set: DaemonSet, wanted: int) -> tuple[int, int]:
    """How many extra daemons an update may start, and how many nodes may lack one; one when both come to nothing."""
    rolling = daemon_set.spec.update_strategy.rolling_update
    if daemon_set.spec.update_strategy.type != ROLLING_UPDATE or rolling is None:
        return 0, 0
    surge = scaled(rolling.max_surge, wanted, round_up=True)
    unavailable = scaled(rolling.max_unavailable, wanted, round_up=True)
    return (surge, unavailable) if surge or unavailable else (0, 1)


def plan_daemons(scene: Scene, wait_for: Callable[[str], float]) -> Plan:
    """First the right Pods on the right nodes; when they are, a step of the update."""
    if scene.daemon_set.metadata.deletion_timestamp is not None:
        return Plan()
    draft = _Draft(delete=list(scene.stray))
    surges = bounds(scene.daemon_set, 1)[0] > 0
    for node, verdict in scene.verdicts.items():
        _settle_node(scene, draft, node, verdict, wait_for, surges=surges)
    settled = not draft.create and not draft.delete
    if settled and scene.daemon_set.spec.update_strategy.type == ROLLING_UPDATE:
        _update(scene, draft)
    return draft.finish()


# --- One node. ---


def _settle_node(
    scene: Scene, draft: _Draft, node: str, verdict: Verdict, wait_for: Callable[[str], float], *, surges: bool
) -> None:
    pods = scene.pods_on(node)
    if verdict.should_run and not pods:
        draft.create.append(node)
    elif verdict.may_stay:
        running = _replace_ended(draft, node, pods, wait_for)
        draft.delete += _too_many_in_surge(scene, running) if surges else running[1:]
    else:
        draft.delete += [pod for pod in pods if pod.metadata.deletion_timestamp is None]


def _replace_ended(draft: _Draft, node: str, pods: Sequence[Pod], wait_for: Callable[[str], float]) -> list[Pod]:
    """Have ended daemons removed, failed ones not too often; those that run."""
    running: list[Pod] = []
    for pod in pods:
        if pod.metadata.deletion_timestamp is not None:
            continue
        wait = wait_for(node) if pod.status.phase == FAILED else 0.0
        if wait > 0:
            draft.waits.append(wait)
        elif pod.status.phase in (FAILED, SUCCEEDED):
            draft.ended.append(Found(pod, node))
            draft.delete.append(pod)
        else:
            running.append(pod)
    return running


def _too_many_in_surge(scene: Scene, running: Sequence[Pod]) -> list[Pod]:
    """One old and one new daemon may be on a node; the old one goes when the new one can take over."""
    new = [pod for pod in running if scene.is_current(pod)]
    old = [pod for pod in running if not scene.is_current(pod)]
    gone = new[1:] + old[1:]
    if new and old and (not is_ready(old[0]) or scene.is_available(new[0])):
        gone.append(old[0])
    return gone


# --- Updates. ---


def _update(scene: Scene, draft: _Draft) -> None:
    surge, unavailable = bounds(scene.daemon_set, len(scene.wanted))
    if surge > 0:
        _update_by_surge(scene, draft, surge)
    else:
        _update_by_replacing(scene, draft, unavailable)


def _new_and_old(scene: Scene, node: str) -> tuple[list[Pod], list[Pod]]:
    there = [pod for pod in scene.pods_on(node) if pod.metadata.deletion_timestamp is None]
    return [pod for pod in there if scene.is_current(pod)], [pod for pod in there if not scene.is_current(pod)]


def _update_by_replacing(scene: Scene, draft: _Draft, unavailable_max: int) -> None:
    """Old daemons that are of no use go at once, others as many as may be missing."""
    missing = 0
    candidates: list[Pod] = []
    for node in scene.wanted:
        new, old = _new_and_old(scene, node)
        if len(new) + len(old) != 1 or not scene.is_available((new + old)[0]):
            missing += 1
        if len(old) == 1 and not new:
            (draft.delete if not scene.is_available(old[0]) else candidates).append(old[0])
    draft.delete += candidates[: max(unavailable_max - missing, 0)]


def _update_by_surge(scene: Scene, draft: _Draft, surge_max: int) -> None:
    """A new daemon starts beside the old one; where the old one is of no use it need not wait for its turn."""
    surging = 0
    candidates: list[str] = []
    for node in scene.wanted:
        new, old = _new_and_old(scene, node)
        if new and old:
            surging += 1
        elif old and not scene.is_available(old[0]):
            draft.create.append(node)
        elif old:
            candidates.append(node)
        elif not new:
            surging += 1
    draft.create += candidates[: max(surge_max - surging, 0)]


# --- The report. ---


def status_of(scene: Scene) -> DaemonSetStatus:
    """What to report of the Pods there were before the writes."""
    leaders = [scene.pods_on(node)[0] for node in scene.wanted if scene.pods_on(node)]
    wanted = len(scene.wanted)
    available = sum(scene.is_available(pod) for pod in leaders)
    return DaemonSetStatus(
        desired_number_scheduled=wanted,
        current_number_scheduled=len(leaders),
        number_misscheduled=sum(
            not verdict.should_run and bool(scene.pods_on(node)) for node, verdict in scene.verdicts.items()
        ),
        number_ready=sum(is_ready(pod) for pod in leaders),
        updated_number_scheduled=sum(scene.is_current(pod) for pod in leaders) or None,
        number_available=available or None,
        number_unavailable=(wanted - available) or None,
        observed_generation=scene.daemon_set.metadata.generation,
        collision_count=scene.daemon_set.status.collision_count,
        conditions=scene.daemon_set.status.conditions,
    )
