"""Compares a running rebalancing with the cluster: whether the plan still holds, and what has happened since."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dray.api.features import FeatureGates
from dray.api.pod_claims import is_pod_done
from dray.api.types.core_v1 import Pod
from dray.scheduler.config import ProfileConfig
from dray.sim.movable_pods import MoveRules, controller_of, label
from dray.sim.rebalance.moves import Move, Step
from dray.sim.snapshot import Snapshot
from dray.sim.trial_cluster import TrialCluster, Unplaced
from dray.sim.usable_nodes import HOLD_TAINT


def held_nodes(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the nodes that a rebalancing holds."""
    return tuple(
        node.metadata.name or ""
        for node in snapshot.nodes
        if any(taint.key == HOLD_TAINT for taint in node.spec.taints)
    )


def difference(snapshot: Snapshot, step: Step, *, jobs: bool = False) -> str:
    """Return how the cluster differs from what a step that has not begun expects; empty if it does not."""
    if all(node.metadata.name != step.node for node in snapshot.nodes):
        return f"node {step.node} does not exist any more"
    if step.is_pod:
        target = snapshot.pods_by_uid.get(step.uid)
        if target is None or is_pod_done(target):
            return f"pod {step.description}, for which room is made, does not exist any more"
        if target.spec.node_name:
            return f"pod {step.description}, for which room is made, is on node {target.spec.node_name} already"
    rules = MoveRules(snapshot, jobs=jobs)
    for move in step.moves:
        problem = _move_difference(snapshot, rules, move)
        if problem:
            return problem
    return ""


def _move_difference(snapshot: Snapshot, rules: MoveRules, move: Move) -> str:
    pod = snapshot.pods_by_uid.get(move.uid)
    if pod is None or is_pod_done(pod):
        return f"pod {move.pod} does not exist any more"
    if pod.spec.node_name != move.from_node:
        return f"pod {move.pod} is on node {pod.spec.node_name}, not on {move.from_node}"
    obstacle = rules.obstacle(pod)
    return f"pod {move.pod} must not be moved any more: {obstacle}" if obstacle else ""


def replay(
    snapshot: Snapshot,
    steps: Sequence[Step],
    profile: ProfileConfig,
    gates: FeatureGates,
    waiting: Sequence[Step] = (),
) -> str:
    """Carry out the steps in a trial cluster; return why they do not achieve what the plan said, empty if they do.

    `waiting` are steps that were carried out already, and whose nodes are still held.
    """
    cluster = TrialCluster(snapshot, profile, gates)
    reached = list(waiting)
    for index, step in enumerate(steps):
        missing = next((name for name in (step.node, *step.also_held) if name not in cluster.nodes), "")
        if missing:
            return f"node {missing} does not exist any more"
        with cluster.holding((step.node, *step.also_held)):
            problem = _replay_moves(cluster, step)
        if problem:
            return problem
        if step.is_pod:
            reached.append(step)
        ready = released(reached, steps[index + 1 :])
        reached = [item for item in reached if item not in ready]
        problem = _place_targets(cluster, ready)
        if problem:
            return problem
    return "" if steps else _place_targets(cluster, reached)


def _place_targets(cluster: TrialCluster, steps: Iterable[Step]) -> str:
    pending = {pod.uid: pod for pod in cluster.pending}
    for step in steps:
        if step.uid not in pending:
            return f"pod {step.description} is not pending any more"
        target = cluster.place(pending[step.uid])
        if isinstance(target, Unplaced):
            return f"pod {step.description} would still be pending: {cluster.why(target)}"
    return ""


def _replay_moves(cluster: TrialCluster, step: Step) -> str:
    for move in step.moves:
        if cluster.find(move.uid) is None:
            return f"pod {move.pod} does not exist any more"
        found = cluster.place(cluster.replacement(cluster.remove(move.uid)))
        if isinstance(found, Unplaced):
            return f"the replacement of pod {move.pod} would be pending: {cluster.why(found)}"
    return ""


def released(reached: Sequence[Step], later: Sequence[Step]) -> list[Step]:
    """Return the steps whose Pods can be scheduled now: the next step does not hold their nodes any more."""
    kept = later[0].also_held if later else ()
    return [step for step in reached if step.node not in kept]


def pods_of_controller(pods: Iterable[Pod], move: Move) -> frozenset[str]:
    """Return the uids of all Pods of the controller of a Pod."""
    return frozenset(
        pod.metadata.uid or ""
        for pod in pods
        if (owner := controller_of(pod)) is not None and owner.uid == move.controller_uid
    )


def is_replacement(pod: Pod, move: Move, known: frozenset[str]) -> bool:
    """Return whether a Pod was created by the controller since the Pods with these uids were known."""
    owner = controller_of(pod)
    is_new = owner is not None and owner.uid == move.controller_uid and pod.metadata.uid not in known
    return is_new and not is_pod_done(pod) and pod.metadata.deletion_timestamp is None


def why_pending(pod: Pod) -> str:
    """Return the scheduler's reason why a Pod has no node."""
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.message or condition.reason or ""
    return f"the scheduler has not tried {label(pod)} yet"
