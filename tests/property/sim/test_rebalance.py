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
from dray.sim.rebalance.execution import difference, released, replay
from dray.sim.rebalance.moves import Step
from dray.sim.rebalance.planner import RebalanceOptions, RebalancePlanner, pending_targets, shape_targets
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
    pending = [gpu_pod(f"pending-{number}", rng.randint(1, 4)) for number in range(rng.randint(1, 3))]
    # Sometimes they are a gang.
    if len(pending) > 1 and rng.random() < 0.5:
        for document, *_ in pending:
            document["spec"]["schedulingGroup"] = {"podGroupName": "gang"}
        pending.append([pod_group("gang", rng.randint(1, len(pending)))])
    return gpu_cluster(nodes, *pods, *pending)


def pod_group(name: str, minimum: int) -> Document:
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": minimum}}},
    }


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
    reached: list[Step] = []
    for index, step in enumerate(plan.steps):
        carry_out(check, step)
        reached += [step] if step.is_pod else []
        for item in released(reached, plan.steps[index + 1 :]):
            reached.remove(item)
            assert not isinstance(check.place(waiting[item.description]), Unplaced)
    assert reached == []
    # Of a gang, enough Pods fit, or none is helped.
    helped = len(plan.fitting) + len(plan.helping)
    minimum = [item["spec"]["schedulingPolicy"]["gang"]["minCount"] for item in snapshot.documents.get("PodGroup", ())]
    assert helped == 0 or not minimum or helped >= minimum[0]
    # No device is used twice.
    used = [key for placed in check.placer.placed.values() for key in devices_of(placed)]
    assert len(used) == len(set(used))


def carry_out(cluster: TrialCluster, step: Step) -> None:
    """Make the moves of a step as the command does, with the nodes held that it holds."""
    with cluster.holding((step.node, *step.also_held)):
        for move in step.moves:
            after = cluster.place(cluster.replacement(cluster.remove(move.uid)))
            assert not isinstance(after, Unplaced), after
            assert after.pod.spec.node_name not in (step.node, *step.also_held)


@pytest.mark.parametrize("profile", [SPREAD, PACK], ids=["spread", "pack"])
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1 << 32), gpus=st.integers(1, 3), count=st.integers(1, 4))
def test_as_many_pods_of_a_shape_fit_as_room_was_made_for(profile: object, seed: int, gpus: int, count: int) -> None:
    snapshot = random_cluster(seed)
    planner = RebalancePlanner(snapshot, RebalanceOptions(profile, FeatureGates()))  # type: ignore[arg-type]
    shape = TrialCluster(gpu_cluster({}, gpu_pod("shape", gpus))).pending[0]
    plan = planner.plan_for(shape_targets(shape, count))
    check = TrialCluster(snapshot, profile)  # type: ignore[arg-type]
    for step in plan.steps:
        carry_out(check, step)
    for number in range(count - len(plan.not_helped)):
        assert not isinstance(check.place(shape.copy(str(number))), Unplaced)


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
