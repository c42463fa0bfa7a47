"""Which nodes can be removed, and Pods that fit only together."""

from __future__ import annotations

import pytest

from dray.sim.capacity import joint
from dray.sim.capacity.addition import PlanOptions
from dray.sim.capacity.bounds import Need, price_bound, removable_bound
from dray.sim.capacity.joint import JointPlanner
from dray.sim.capacity.plans import JointPlan, RemovalPlan
from dray.sim.capacity.removal import plan_removal
from dray.sim.capacity.solver import MISSING
from dray.sim.movable_pods import NO_CONTROLLER
from dray.sim.rebalance.planner import silent
from dray.sim.snapshot import Snapshot
from dray.sim.trial_cluster import TrialCluster
from tests.unit.sim.gpu_cluster import gpu_cluster, gpu_pod


def removal_of(snapshot: Snapshot) -> RemovalPlan:
    return plan_removal(lambda: TrialCluster(snapshot), snapshot, jobs=False, progress=silent)


def joint_of(snapshot: Snapshot) -> JointPlan:
    cluster = TrialCluster(snapshot)
    return JointPlanner(cluster, PlanOptions()).plan(cluster.pending)


def test_empty_nodes_and_those_whose_pods_fit_elsewhere_can_be_removed() -> None:
    snapshot = gpu_cluster({"a": 2, "b": 2, "c": 2}, gpu_pod("x", 1, "a", [0]), gpu_pod("y", 1, "b", [0]))
    plan = removal_of(snapshot)
    assert len(plan.removable) == plan.at_most == 2
    assert plan.is_optimal
    assert plan.removable[0].name == "c"
    (placement,) = plan.removable[1].placements
    assert placement.node == plan.kept[0].name


def test_nodes_with_pods_that_must_stay_are_kept() -> None:
    snapshot = gpu_cluster({"a": 2, "b": 2}, gpu_pod("x", 1, "a", [0], owner=""), gpu_pod("y", 1, "b", [0]))
    plan = removal_of(snapshot)
    assert [node.name for node in plan.removable] == ["b"]
    assert [(node.name, node.why) for node in plan.kept] == [("a", f"pod team/x must stay: {NO_CONTROLLER}")]


def test_full_nodes_are_kept_with_the_reason() -> None:
    snapshot = gpu_cluster({"a": 1, "b": 1}, gpu_pod("x", 1, "a", [0]), gpu_pod("y", 1, "b", [0]))
    plan = removal_of(snapshot)
    assert (plan.removable, plan.at_most) == ((), 0)
    assert plan.kept[0].why.startswith("pod team/x would be pending: 0/2 nodes are available")


def test_daemons_go_with_their_node() -> None:
    snapshot = gpu_cluster({"a": 2, "b": 1}, gpu_pod("d", 1, "a", [0], owner="DaemonSet"), gpu_pod("y", 1, "b", [0]))
    plan = removal_of(snapshot)
    assert [(node.name, node.placements) for node in plan.removable] == [("a", ())]
    assert plan.at_most == 1


def test_bounds() -> None:
    assert removable_bound([(4, 8), (2, 8), (8, 8)], [7, 100]) == 2
    assert removable_bound([(4, 8), (2, 8), (8, 8)], [7, 8]) == 1
    assert price_bound([Need(9, (4.0, 2.0))], [3.0, 2.0]) == 7.0
    assert price_bound([Need(1, (4.0,)), Need(5, (1.0,))], [1.5]) == 7.5
    assert price_bound([], [1.0]) == 0.0
    assert price_bound([Need(-1, (1.0,))], [1.0]) == 0.0


# --- Placed together. ---


def test_pods_that_fit_in_another_order() -> None:
    """The small Pod comes first and takes the node that only the large one needs."""
    snapshot = gpu_cluster({"a": 2, "b": 1}, gpu_pod("a-small", 1), gpu_pod("b-large", 2))
    plan = joint_of(snapshot)
    assert [item.pod for item in plan.pending_alone] == ["team/b-large"]
    assert (plan.unplaced, plan.is_order) == ((), True)
    assert {item.pod: item.node for item in plan.placements} == {"team/b-large": "a", "team/a-small": "b"}


def test_pods_that_fit_only_in_an_exact_packing() -> None:
    """Largest first fails: 3 and 3 go to the two nodes of 4 and 6 first; 4 and 3 + 3 is the only packing."""
    sizes = {"a": 3, "b": 3, "c": 2, "d": 2}
    snapshot = gpu_cluster({"n-four": 4, "n-six": 6}, *(gpu_pod(name, size) for name, size in sizes.items()))
    plan = joint_of(snapshot)
    assert plan.pending_alone
    assert (plan.unplaced, len(plan.placements)) == ((), 4)
    used = {"n-four": 0, "n-six": 0}
    for item in plan.placements:
        used[item.node] += sizes[item.pod.removeprefix("team/")]
    assert used == {"n-four": 4, "n-six": 6}


def test_it_is_proved_that_pods_do_not_fit() -> None:
    plan = joint_of(gpu_cluster({"a": 3, "b": 1}, gpu_pod("x", 2), gpu_pod("y", 2)))
    assert [item.pod for item in plan.unplaced] == ["team/y"]
    assert plan.is_proved


def test_pods_that_fit_anyway() -> None:
    plan = joint_of(gpu_cluster({"a": 2}, gpu_pod("x", 2)))
    assert (plan.pending_alone, plan.unplaced, len(plan.placements)) == ((), (), 1)


def test_without_the_solver_other_orders_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint, "is_installed", lambda: False)
    snapshot = gpu_cluster({"a": 2, "b": 1}, gpu_pod("a-small", 1), gpu_pod("b-large", 2))
    assert joint_of(snapshot).unplaced == ()
    plan = joint_of(gpu_cluster({"a": 3, "b": 1}, gpu_pod("x", 2), gpu_pod("y", 2)))
    assert (plan.notes, plan.is_proved) == ((MISSING,), False)
