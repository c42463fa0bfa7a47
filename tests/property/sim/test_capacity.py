"""Random clusters: nodes that a plan adds or removes let every Pod fit as it says, and no cheaper plan exists."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from dray.sim.capacity.addition import AdditionPlanner, PlanOptions
from dray.sim.capacity.removal import plan_removal
from dray.sim.capacity.shapes import read_catalogue
from dray.sim.movable_pods import MoveRules
from dray.sim.rebalance.planner import silent
from dray.sim.trial_cluster import TrialCluster, Unplaced, devices_of
from tests.property.sim.test_rebalance import random_cluster
from tests.unit.sim.capacity.test_addition import catalogue, shape
from tests.unit.sim.gpu_cluster import gpu_cluster, gpu_pod


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1 << 32), uses_solver=st.booleans())
def test_added_nodes_let_every_pod_fit(seed: int, *, uses_solver: bool) -> None:
    snapshot = random_cluster(seed)
    shapes = read_catalogue(catalogue(shape("one", 2, 1), shape("four", 5, 4)), snapshot)
    cluster = TrialCluster(snapshot)
    pods = {str(pod.key): pod for pod in cluster.pending}
    plan = AdditionPlanner(cluster, shapes, PlanOptions(uses_solver=uses_solver), silent).plan(cluster.pending)
    assert plan.unplaced == ()
    assert sorted(item.pod for item in plan.placements) == sorted(pods)
    assert plan.bound <= plan.price + 1e-6
    # In a fresh cluster with these nodes, each Pod fits where the plan says.
    check = TrialCluster(snapshot)
    by_name = {item.name: item for item in shapes}
    for node in plan.added:
        check.add_node(*by_name[node.shape].named(node.name))
    sizes = {name: len(pod.claims[0].spec.devices.requests) for name, pod in pods.items()}
    for item in sorted(plan.placements, key=lambda placement: -sizes[placement.pod]):
        assert not isinstance(check.place(pods[item.pod], on=item.node), Unplaced), item
    used = [key for placed in check.placer.placed.values() for key in devices_of(placed)]
    assert len(used) == len(set(used))


@settings(max_examples=12, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5), prices=st.tuples(st.integers(1, 4), st.integers(4, 9))
)
def test_the_price_is_the_least(sizes: list[int], prices: tuple[int, int]) -> None:
    """Compares with trying every number of nodes of both shapes; a note says if the scheduler needs more."""
    pods = [gpu_pod(f"p-{number}", size) for number, size in enumerate(sizes)]
    snapshot = gpu_cluster({"old": 0}, *pods)
    shapes = read_catalogue(catalogue(shape("two", prices[0], 2), shape("four", prices[1], 4)), snapshot)
    cluster = TrialCluster(snapshot)
    plan = AdditionPlanner(cluster, shapes, PlanOptions(), silent).plan(cluster.pending)
    costs = [
        twos * prices[0] + fours * prices[1]
        for twos, fours in itertools.product(range(len(sizes) + 1), repeat=2)
        if _fits(tuple(sizes), (2,) * twos + (4,) * fours)
    ]
    assert plan.bound <= min(costs) + 1e-6
    if any("put on its node by hand" in note for note in plan.notes):
        assert plan.price > min(costs)
    else:
        assert (plan.price, plan.is_optimal) == (min(costs), True)


def _fits(sizes: tuple[int, ...], bins: tuple[int, ...]) -> bool:
    """Return whether all sizes can be packed, by trying everything."""
    if not sizes:
        return True
    tried: set[int] = set()
    for index, room in enumerate(bins):
        if room >= sizes[0] and room not in tried:
            tried.add(room)
            if _fits(sizes[1:], (*bins[:index], room - sizes[0], *bins[index + 1 :])):
                return True
    return False


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_pods_of_removed_nodes_fit_on_the_others(seed: int) -> None:
    snapshot = random_cluster(seed)
    plan = plan_removal(lambda: TrialCluster(snapshot), snapshot, jobs=False, progress=silent)
    assert len(plan.removable) <= plan.at_most
    assert len(plan.removable) + len(plan.kept) == len(snapshot.nodes)
    removed = {node.name for node in plan.removable}
    rules = MoveRules(snapshot)
    check = TrialCluster(snapshot)
    for node in plan.removable:
        moved = check.pods_on(node.name)
        assert len(moved) == len(node.placements)
        for placed in moved:
            if placed.pod.metadata.uid in snapshot.pods_by_uid:
                assert not rules.obstacle(snapshot.pods_by_uid[placed.pod.metadata.uid or ""])
        by_pod = {item.pod: item.node for item in node.placements}
        check.hold(node.name)
        for placed in moved:
            check.remove(placed.pod.metadata.uid or "")
        for pod, target in by_pod.items():
            (placed,) = [item for item in moved if f"{item.pod.metadata.namespace}/{item.pod.metadata.name}" == pod]
            assert not isinstance(check.place(check.replacement(placed), on=target), Unplaced)
    assert all(not check.pods_on(name) for name in removed)
