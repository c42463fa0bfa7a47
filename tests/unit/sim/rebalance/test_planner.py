"""Plans on small clusters, whose best plan is known."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import Document
from dray.api.features import FeatureGates
from dray.scheduler.named_profiles import NAMED_PROFILES
from dray.sim import movable_pods
from dray.sim.kept_fields import SAFE_TO_EVICT_ANNOTATION
from dray.sim.movable_pods import MoveRules
from dray.sim.placer import PlacedPod
from dray.sim.rebalance.execution import difference, released, replay
from dray.sim.rebalance.moves import RebalancePlan
from dray.sim.rebalance.planner import RebalanceOptions, RebalancePlanner, pending_targets, shape_targets
from dray.sim.snapshot import Snapshot
from dray.sim.trial_cluster import TrialCluster, devices_of
from tests.unit.sim.cluster import GPU, classic_claim, device_class, resource_class
from tests.unit.sim.gpu_cluster import gpu_cluster, gpu_node, gpu_pod

SPREAD = NAMED_PROFILES["spread"]


def plan_of(snapshot: Snapshot, **given: Any) -> RebalancePlan:
    options = RebalanceOptions(SPREAD, FeatureGates(), **given)
    planner = RebalancePlanner(snapshot, options)
    waits = planner.cluster.pending or planner.cluster.blocked
    return planner.plan_for(pending_targets(planner.cluster)) if waits else planner.plan_headroom()


def moved(plan: RebalancePlan) -> list[str]:
    return [move.name for step in plan.steps for move in step.moves]


def _with(document: Document, **metadata: Any) -> Document:
    return {**document, "metadata": {**document["metadata"], **metadata}}


def _spec(documents: list[Document], **spec: Any) -> list[Document]:
    return [{**documents[0], "spec": {**documents[0]["spec"], **spec}}, *documents[1:]]


FRAGMENTED = {"a": 2, "b": 2, "c": 2}
ONE_EACH = [gpu_pod(f"p-{name}", 1, name, [0]) for name in FRAGMENTED]
BIG = gpu_pod("big", 2)


@pytest.mark.parametrize(
    ("nodes", "pods", "moves"),
    [
        pytest.param(FRAGMENTED, [*ONE_EACH, BIG], 1, id="one of three single Pods goes"),
        pytest.param(
            {"a": 4, "b": 4, "c": 2},
            [gpu_pod("wide", 2, "a", [0, 1]), gpu_pod("s", 1, "b", [0]), gpu_pod("t", 1, "b", [1]), gpu_pod("big", 4)],
            1,
            id="one large Pod instead of two small ones",
        ),
        pytest.param(
            {"a": 2, "b": 2, "c": 1},
            [gpu_pod("x", 1, "a", [0]), gpu_pod("y", 1, "b", [0]), gpu_pod("z", 1, "b", [1]), BIG],
            1,
            id="the node that lacks least",
        ),
        pytest.param(
            {"a": 4, "b": 2, "c": 2},
            [
                *(gpu_pod(f"s{n}", 1, "a", [n]) for n in range(2)),
                gpu_pod("t", 1, "b", [0]),
                gpu_pod("u", 1, "c", [0]),
                gpu_pod("big", 4),
            ],
            2,
            id="two moves where one is not enough",
        ),
    ],
)
def test_the_fewest_moves(nodes: dict[str, int], pods: list[list[Document]], moves: int) -> None:
    snapshot = gpu_cluster(nodes, *pods)
    plan = plan_of(snapshot)
    assert (plan.move_count, plan.not_helped) == (moves, ())
    assert replay(snapshot, plan.steps, SPREAD, FeatureGates()) == ""
    assert plan == plan_of(snapshot), "plans are deterministic"


CHAIN = [
    # On a only "wide" can go, which needs two devices: there are two free ones, on b and on c.
    gpu_pod("fixed", 1, "a", [0], owner=""),
    gpu_pod("wide", 2, "a", [1, 2]),
    gpu_pod("small", 1, "b", [0]),
    gpu_pod("stays", 1, "c", [0], owner=""),
    gpu_pod("big", 3),
]


def test_a_chain_of_moves_where_no_pod_of_the_node_fits_elsewhere() -> None:
    snapshot = gpu_cluster({"a": 4, "b": 2, "c": 2}, *CHAIN)
    plan = plan_of(snapshot)
    assert [(step.description, step.node, [move.name for move in step.moves]) for step in plan.steps] == [
        ("team/wide, which moves next", "b", ["small"]),
        ("team/big", "a", ["wide"]),
    ]
    assert [(move.name, move.to_node) for step in plan.steps for move in step.moves] == [("small", "c"), ("wide", "b")]
    assert [step.description for step in plan.helping] == ["team/big"]
    assert plan.not_helped == ()
    assert replay(snapshot, plan.steps, SPREAD, FeatureGates()) == ""
    # In the other order it does not work.
    assert "team/wide would be pending" in replay(snapshot, plan.steps[::-1], SPREAD, FeatureGates())


def test_a_chain_counts_all_of_its_moves() -> None:
    plan = plan_of(gpu_cluster({"a": 4, "b": 2, "c": 2}, *CHAIN), moves_max=1)
    assert plan.steps == ()
    assert [item.pod for item in plan.not_helped] == ["team/big"]


def test_no_plan_where_the_sum_of_free_devices_is_too_small() -> None:
    plan = plan_of(gpu_cluster({"a": 2, "b": 1}, gpu_pod("x", 1, "a", [0]), gpu_pod("y", 1, "b", [0]), BIG))
    assert plan.steps == ()
    assert [item.pod for item in plan.not_helped] == ["team/big"]
    assert "1 usable but 2 needed on one node" in plan.not_helped[0].why


def test_a_pod_that_fits_needs_no_move() -> None:
    plan = plan_of(gpu_cluster({"a": 2}, BIG))
    assert (plan.steps, plan.fitting) == ((), ("team/big",))


def test_the_limit_of_moves() -> None:
    pods = [*(gpu_pod(f"p-{name}", 1, name, [0]) for name in "abcd"), BIG, gpu_pod("big-2", 2)]
    snapshot = gpu_cluster(dict.fromkeys("abcd", 2), *pods)
    assert plan_of(snapshot).move_count == 2
    limited = plan_of(snapshot, moves_max=1)
    assert limited.move_count == 1
    assert [item.why for item in limited.not_helped] == ["the limit of 1 move is used up"]


def test_room_for_more_typical_pods() -> None:
    """Two Pods of two devices run, and three of one device leave room for none of the former."""
    pods = [gpu_pod(f"wide-{name}", 2, name, [0, 1]) for name in "de"]
    snapshot = gpu_cluster({**FRAGMENTED, "d": 2, "e": 2}, *ONE_EACH, *pods)
    plan = plan_of(snapshot)
    assert len(plan.steps) == 1
    wide = {row.requests: (row.fit, row.at_most) for row in plan.before}["2 gpu"]
    assert wide == (0, 1)
    assert {row.requests: row.fit for row in plan.after}["2 gpu"] == 1


# --- Room for Pods that are not there yet. ---

FOUR_HALF_FULL = [gpu_pod(f"p-{name}", 1, name, [0]) for name in "abcd"]


def _shape_plan(snapshot: Snapshot, gpus: int, count: int) -> RebalancePlan:
    planner = RebalancePlanner(snapshot, RebalanceOptions(SPREAD, FeatureGates()))
    return planner.plan_for(shape_targets(TrialCluster(gpu_cluster({}, gpu_pod("shape", gpus))).pending[0], count))


def test_replacements_do_not_take_the_room_that_earlier_steps_made() -> None:
    """The emptied node would be the scheduler's first choice for the second replacement."""
    snapshot = gpu_cluster(dict.fromkeys("abcd", 2), *FOUR_HALF_FULL)
    plan = _shape_plan(snapshot, 2, 2)
    first, second = plan.steps
    assert (first.also_held, second.also_held) == ((), (first.node,))
    assert _fit_after(snapshot, plan, gpu_pod("shape", 2)) == 2


def test_replacements_do_not_take_the_room_that_is_there_already() -> None:
    snapshot = gpu_cluster(dict.fromkeys("abce", 2), *FOUR_HALF_FULL[:3])
    plan = _shape_plan(snapshot, 2, 2)
    (step,) = plan.steps
    assert step.also_held == ("e",)
    assert _fit_after(snapshot, plan, gpu_pod("shape", 2)) == 2


def _fit_after(snapshot: Snapshot, plan: RebalancePlan, documents: list[Document]) -> int:
    """Carry out a plan as the command does; return how many Pods like this one fit then."""
    cluster = TrialCluster(snapshot, SPREAD)
    for step in plan.steps:
        with cluster.holding((step.node, *step.also_held)):
            for move in step.moves:
                placed = cluster.place(cluster.replacement(cluster.remove(move.uid)))
                assert isinstance(placed, PlacedPod)
                assert placed.pod.spec.node_name == move.to_node
    pod = TrialCluster(gpu_cluster({}, documents)).pending[0]
    return sum(isinstance(cluster.place(pod.copy(str(number))), PlacedPod) for number in range(10))


# --- Gangs. ---


def _gang(name: str, members: int, gpus: int, minimum: int) -> list[Document]:
    group = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": minimum}}},
    }
    pods = [_spec(gpu_pod(f"{name}-{n}", gpus), schedulingGroup={"podGroupName": name}) for n in range(members)]
    return [group, *(document for pod in pods for document in pod)]


def test_nodes_are_held_until_there_is_room_for_a_whole_gang() -> None:
    snapshot = gpu_cluster(dict.fromkeys("abcd", 2), *FOUR_HALF_FULL, _gang("train", 2, 2, 2))
    plan = plan_of(snapshot)
    first, second = plan.steps
    assert [step.description for step in plan.steps] == ["team/train-0", "team/train-1"]
    assert second.also_held == (first.node,)
    assert released([first], [second]) == []
    assert released([first, second], []) == [first, second]
    assert replay(snapshot, plan.steps, SPREAD, FeatureGates()) == ""


def test_a_pod_of_a_gang_that_fits_waits_with_its_node_held() -> None:
    snapshot = gpu_cluster(dict.fromkeys("abce", 2), *FOUR_HALF_FULL[:3], _gang("train", 2, 2, 2))
    plan = plan_of(snapshot)
    assert [(step.node, len(step.moves), step.also_held) for step in plan.steps] == [("e", 0, ()), ("a", 1, ("e",))]
    assert plan.fitting == ()
    assert replay(snapshot, plan.steps, SPREAD, FeatureGates()) == ""


def test_no_moves_for_a_gang_of_which_too_few_fit() -> None:
    other = gpu_pod("other", 2)
    snapshot = gpu_cluster(dict.fromkeys("abcd", 2), *FOUR_HALF_FULL, _gang("huge", 3, 2, 3), other)
    plan = plan_of(snapshot)
    assert [step.description for step in plan.steps] == ["team/other"]
    assert [item.pod for item in plan.not_helped] == ["team/huge-0", "team/huge-1", "team/huge-2"]
    assert plan.not_helped[0].why.startswith(
        "no moves make room for the 3 Pods that its PodGroup needs: 0 of 4 nodes fit"
    )


def test_no_moves_for_a_gang_whose_first_pod_takes_the_room_of_the_second() -> None:
    """The scheduler spreads: the Pod with one device would take the node that was emptied for the other."""
    small_first, large_first = _gang("train", 2, 2, 2), _gang("train", 2, 2, 2)
    small_first[1] = _spec(gpu_pod("train-0", 1), schedulingGroup={"podGroupName": "train"})[0]
    large_first[2] = _spec(gpu_pod("train-1", 1), schedulingGroup={"podGroupName": "train"})[0]
    plan = plan_of(gpu_cluster(FRAGMENTED, *ONE_EACH, small_first))
    assert (plan.steps, len(plan.not_helped)) == ((), 2)
    snapshot = gpu_cluster(FRAGMENTED, *ONE_EACH, large_first)
    plan = plan_of(snapshot)
    assert (plan.move_count, plan.not_helped) == (1, ())
    assert replay(snapshot, plan.steps, SPREAD, FeatureGates()) == ""


def test_as_many_pods_of_a_gang_as_there_is_room_for() -> None:
    snapshot = gpu_cluster(dict.fromkeys("abcd", 2), *FOUR_HALF_FULL, _gang("train", 3, 2, 2))
    plan = plan_of(snapshot)
    assert [step.description for step in plan.steps] == ["team/train-0", "team/train-1"]
    assert [item.pod for item in plan.not_helped] == ["team/train-2"]


def test_no_moves_for_pods_that_the_scheduler_would_not_place() -> None:
    gated = _spec(BIG, schedulingGates=[{"name": "example.com/budget"}])
    plan = plan_of(gpu_cluster(FRAGMENTED, *ONE_EACH, gated))
    assert plan.steps == ()
    assert [item.why for item in plan.not_helped] == [
        "is not scheduled yet: scheduling gate example.com/budget in its spec"
    ]
    gang = _gang("train", 1, 2, 1)
    gang[0]["spec"]["schedulingConstraints"] = {"topology": [{"key": "rack"}]}
    plan = plan_of(gpu_cluster(FRAGMENTED, *ONE_EACH, gang))
    assert plan.steps == ()
    assert "scheduling constraints" in plan.not_helped[0].why


# --- What is never moved. ---


def _budget(allowed: int) -> Document:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "budget", "namespace": "team"},
        "spec": {"selector": {"matchLabels": {"app": "x"}}},
        "status": {"disruptionsAllowed": allowed},
    }


X = gpu_pod("x", 1, "a", [0])
OWN_CLAIM = [{"name": "gpu", "resourceClaimName": "x-gpu"}]
OF_TEMPLATE = {"name": "gpu", "resourceClaimTemplateName": "gpus-1"}
CARD = {"name": "card", "resourceClaimName": "card"}
UNMOVABLE = {
    "no controller": (gpu_pod("x", 1, "a", [0], owner=""), movable_pods.NO_CONTROLLER),
    "DaemonSet": (gpu_pod("x", 1, "a", [0], owner="DaemonSet"), movable_pods.DAEMON),
    "Job": (gpu_pod("x", 1, "a", [0], owner="Job"), movable_pods.JOB),
    "gang": (_spec(X, schedulingGroup={"podGroupName": "g"}), movable_pods.GANG),
    "claim of the user": (_spec(X, resourceClaims=OWN_CLAIM), movable_pods.SHARED),
    "classic claim": (
        [
            *_spec(X, resourceClaims=[*X[0]["spec"]["resourceClaims"], CARD]),
            classic_claim("card", "x"),
            resource_class(),
        ],
        movable_pods.CLASSIC,
    ),
    "system": (_spec(X, priority=2_000_000_000), movable_pods.SYSTEM),
    "being deleted": ([_with(X[0], deletionTimestamp="2026-01-01T00:00:00Z"), X[1]], movable_pods.DELETED),
    "not safe": (
        [_with(X[0], annotations={SAFE_TO_EVICT_ANNOTATION: "false"}), X[1]],
        movable_pods.NOT_SAFE,
    ),
    "budget": (
        [_with(X[0], labels={"app": "x"}), X[1], _budget(0)],
        "the PodDisruptionBudget budget allows no disruption",
    ),
    "two budgets": (
        [_with(X[0], labels={"app": "x"}), X[1], _budget(1), _with(_budget(1), name="other")],
        "2 PodDisruptionBudgets cover it, which the eviction API refuses",
    ),
}


@pytest.mark.parametrize("name", UNMOVABLE)
def test_pods_that_are_never_moved(name: str) -> None:
    documents, reason = UNMOVABLE[name]
    snapshot = gpu_cluster({"a": 2, "b": 1}, documents, BIG)
    plan = plan_of(snapshot)
    assert plan.steps == ()
    assert plan.unmovable == ((reason, 1),)


def test_a_budget_that_allows_disruptions_permits_a_move() -> None:
    documents = [_with(X[0], labels={"app": "x"}), X[1], _budget(1)]
    assert moved(plan_of(gpu_cluster({"a": 2, "b": 1}, documents, BIG))) == ["x"]


def test_pods_of_jobs_are_moved_on_request() -> None:
    snapshot = gpu_cluster({"a": 2, "b": 1}, gpu_pod("x", 1, "a", [0], owner="Job"), BIG)
    assert moved(plan_of(snapshot, jobs=True)) == ["x"]


def test_a_claim_that_another_pod_names_is_shared() -> None:
    other = gpu_pod("other", 1, "a", [0])
    other[0]["spec"]["resourceClaims"] = OWN_CLAIM
    snapshot = gpu_cluster({"a": 2, "b": 1}, X, [other[0]], BIG)
    rules = MoveRules(snapshot)
    assert {rules.obstacle(pod) for pod in snapshot.pods if pod.spec.node_name} == {movable_pods.SHARED}


def test_a_pod_of_higher_priority_is_not_moved() -> None:
    refused = plan_of(gpu_cluster({"a": 2, "b": 1}, _spec(X, priority=10), BIG))
    assert refused.steps == ()
    assert refused.unmovable == ((movable_pods.HIGHER_PRIORITY, 1),)
    assert moved(plan_of(gpu_cluster({"a": 2, "b": 1}, _spec(X, priority=10), _spec(BIG, priority=10)))) == ["x"]


def test_affinity_of_the_moved_pod_is_respected() -> None:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    assert plan_of(gpu_cluster({"a": 2, "b": 1}, _spec(X, affinity=affinity), BIG)).steps == ()


def test_cordoned_nodes_take_no_pods() -> None:
    cordoned = gpu_node("b", 1, unschedulable=True)
    assert plan_of(gpu_cluster({"a": 2}, X, BIG, others=cordoned)).steps == ()


def test_pods_whose_extended_resources_devices_serve_are_moved() -> None:
    """The scheduler creates their claims, also those of replacements."""
    requests = {"example.com/gpu": "1"}
    (document,) = gpu_pod("x", 1)
    del document["spec"]["resourceClaims"]
    document["spec"]["containers"][0]["resources"] = {"requests": requests, "limits": requests}
    gates = FeatureGates.parse("DRAExtendedResource=true")
    served = device_class("gpu", f'device.driver == "{GPU}"')
    served["spec"]["extendedResourceName"] = "example.com/gpu"
    nodes = gpu_cluster({"a": 2, "b": 1}, [document], others=[])
    kept = [item for kind, items in nodes.documents.items() if kind != "DeviceClass" for item in items]
    cluster = TrialCluster(Snapshot.of([*kept, served]), gates=gates)
    placed = cluster.place(cluster.pending[0], on="a")
    assert isinstance(placed, PlacedPod)
    assert len(devices_of(placed)) == 1
    again = cluster.place(cluster.pending[0].copy("2"), on="a")
    assert isinstance(again, PlacedPod), "each of two devices serves one Pod"
    cluster.remove("uid-x")
    moved = cluster.place(cluster.replacement(placed), on="b")
    assert isinstance(moved, PlacedPod)
    assert devices_of(moved) == (f"{GPU}/b/gpu-0",)


# --- A cluster that changes. ---


def test_differences_between_a_plan_and_the_cluster() -> None:
    snapshot = gpu_cluster(FRAGMENTED, *ONE_EACH, BIG)
    (step,) = plan_of(snapshot).steps
    (move,) = step.moves
    assert difference(snapshot, step) == ""
    left = [pods for pods in ONE_EACH if pods[0]["metadata"]["name"] != move.name]
    assert difference(gpu_cluster(FRAGMENTED, *left, BIG), step) == f"pod {move.pod} does not exist any more"
    gone = difference(gpu_cluster(FRAGMENTED, *ONE_EACH), step)
    assert gone == "pod team/big, for which room is made, does not exist any more"
    fewer = {name: gpus for name, gpus in FRAGMENTED.items() if name != step.node}
    assert difference(gpu_cluster(fewer, *ONE_EACH, BIG), step) == f"node {step.node} does not exist any more"
    placed = gpu_cluster(FRAGMENTED, *ONE_EACH, gpu_pod("big", 2, "c", [0, 1]))
    assert difference(placed, step) == "pod team/big, for which room is made, is on node c already"


def test_a_plan_is_not_replayed_where_the_replacement_does_not_fit() -> None:
    snapshot = gpu_cluster({"a": 2, "b": 1}, X, BIG)
    plan = plan_of(snapshot)
    taken = gpu_cluster({"a": 2, "b": 1}, X, BIG, gpu_pod("new", 1, "b", [0]))
    assert replay(snapshot, plan.steps, SPREAD, FeatureGates()) == ""
    assert replay(taken, plan.steps, SPREAD, FeatureGates()).startswith(
        "the replacement of pod team/x would be pending:"
    )
