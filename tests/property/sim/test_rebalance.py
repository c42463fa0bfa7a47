"""Random clusters: a plan, applied, does what it said, moves nothing that must stay, and is not beaten by one move."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.api.document import Document
from dray.api.features import FeatureGates
from dray.scheduler.named_profiles import NAMED_PROFILES
from dray.sim.movable_pods import MoveRules
from dray.sim.rebalance.execution import difference, replay
from dray.sim.rebalance.planner import RebalanceOptions, RebalancePlanner, pending_targets
from dray.sim.snapshot import Snapshot
from dray.sim.trial_cluster import TrialCluster, Unplaced, devices_of
from tests.unit.sim.gpu_cluster import gpu_cluster, gpu_pod

PACK = NAMED_PROFILES["pack"]
SPREAD = NAMED_PROFILES["spread"]


def random_cluster(seed: int) -> Snapshot:
    """A few nodes, partly filled with Pods of which some must stay, and one to three pending Pods."""
    rng = random.Random(seed)
    nodes = {f"n{number}": rng.randint(1, 4) for number in range(rng.randint(2, 5))}
    pods: list[list[Document]] = []
    for name, gpus in nodes.items():
        free = list(range(gpus))
        while free and rng.random() < 0.7:
            size = rng.randint(1, min(2, len(free)))
            owner = rng.choice(("ReplicaSet", "ReplicaSet", "ReplicaSet", ""))
            pods.append(gpu_pod(f"p{len(pods)}", size, name, [free.pop(0) for _ in range(size)], owner=owner))
    pods += [gpu_pod(f"pending-{number}", rng.randint(1, 4)) for number in range(rng.randint(1, 3))]
    return gpu_cluster(nodes, *pods)


@pytest.mark.parametrize("profile", [SPREAD, PACK], ids=["spread", "pack"])
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_a_plan_does_what_it_says(profile: object, seed: int) -> None:
    snapshot = random_cluster(seed)
    options = RebalanceOptions(profile, FeatureGates())  # type: ignore[arg-type]
    planner = RebalancePlanner(snapshot, options)
    plan = planner.plan_for(pending_targets(planner.cluster))
    # Every pending Pod is accounted for once.
    pending = sorted(str(pod.key) for pod in TrialCluster(snapshot).pending)
    named = [*plan.fitting, *(step.description for step in plan.helping), *(item.pod for item in plan.not_helped)]
    assert sorted(named) == pending
    # Nothing is moved that must stay, and nothing twice.
    rules = MoveRules(snapshot)
    moved = [move.uid for step in plan.steps for move in step.moves]
    assert len(moved) == len(set(moved))
    assert all(not rules.obstacle(snapshot.pods_by_uid[uid]) for uid in moved)
    assert all(difference(snapshot, step) == "" for step in plan.steps)
    # The Pods that fit anyway come first, as they do in the plan; then the steps, in a fresh cluster.
    check = TrialCluster(snapshot, options.profile)
    waiting = {str(pod.key): pod for pod in check.pending}
    for name in plan.fitting:
        check.place(waiting[name])
    for step in plan.steps:
        check.hold(step.node)
        for move in step.moves:
            after = check.place(check.replacement(check.remove(move.uid)))
            assert not isinstance(after, Unplaced), after
            assert after.pod.spec.node_name != step.node
        check.release(step.node)
        if not step.for_move:
            assert not isinstance(check.place(waiting[step.description]), Unplaced)
    # No device is used twice.
    used = [key for placed in check.placer.placed.values() for key in devices_of(placed)]
    assert len(used) == len(set(used))


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_no_single_move_helps_a_pod_that_was_given_up(seed: int) -> None:
    """Compares with trying every single move: a Pod that one move would let fit is not given up."""
    snapshot = random_cluster(seed)
    planner = RebalancePlanner(snapshot, RebalanceOptions(SPREAD, FeatureGates()))
    targets = pending_targets(planner.cluster)[:1]
    plan = planner.plan_for(targets)
    check = TrialCluster(snapshot, SPREAD)
    target = targets[0].pod
    if plan.fitting:
        assert check.fits(target)
        return
    assert not check.fits(target)
    rules = MoveRules(snapshot)
    best = None
    for placed in list(check.placer.placed.values()):
        if rules.obstacle(placed.pod):
            continue
        node = placed.pod.spec.node_name or ""
        check.remove(placed.pod.metadata.uid or "")
        check.hold(node)
        after = check.place(check.replacement(placed))
        check.release(node)
        if not isinstance(after, Unplaced):
            if check.fits(target, on=node):
                best = 1
            check.remove(after.pod.metadata.uid or "")
        check.restore(placed)
    if best == 1:
        assert plan.move_count == 1
    assert replay(snapshot, plan.steps, SPREAD, FeatureGates()) == ""
