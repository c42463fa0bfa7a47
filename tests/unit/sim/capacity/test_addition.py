"""Which nodes to add: small cases with a known optimum, and reasons where nothing helps."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import Document
from dray.sim.capacity import addition
from dray.sim.capacity.addition import AdditionPlanner, PlanOptions
from dray.sim.capacity.demand import parse_fallback, with_fallbacks
from dray.sim.capacity.plans import CapacityPlan
from dray.sim.capacity.shapes import API_VERSION, KIND, NodeShape, existing_shapes, read_catalogue, template_shape
from dray.sim.capacity.solver import MISSING
from dray.sim.rebalance.planner import silent
from dray.sim.snapshot import Snapshot, SnapshotError
from dray.sim.trial_cluster import TrialCluster
from tests.unit.sim.cluster import GPU, device_class, template
from tests.unit.sim.gpu_cluster import gpu_cluster, gpu_node, gpu_pod

AMOUNTS = {"cpu": "8", "memory": "32Gi", "pods": "20"}


def shape(name: str, price: float, gpus: int, model: str = "a100", **fields: Any) -> Document:
    devices = [{"driver": GPU, "count": gpus, "device": {"attributes": {"model": {"string": model}}}}] if gpus else []
    return {"name": name, "price": price, "allocatable": AMOUNTS, "devices": devices} | fields


def catalogue(*shapes: Any, **fields: Any) -> list[Document]:
    return [{"apiVersion": API_VERSION, "kind": KIND, "shapes": list(shapes)} | fields]


def plan_of(snapshot: Snapshot, shapes: list[NodeShape], *, uses_solver: bool = True) -> CapacityPlan:
    cluster = TrialCluster(snapshot)
    return AdditionPlanner(cluster, shapes, PlanOptions(uses_solver=uses_solver), silent).plan(cluster.pending)


def shapes_of(plan: CapacityPlan) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in plan.added:
        found[node.shape] = found.get(node.shape, 0) + 1
    return found


ONE, TWO, EIGHT = shape("one", 2, 1), shape("two", 3, 2), shape("eight", 10, 8)
OPTIMA = {
    # Pending Pods by size -> nodes, price.
    "a large node is cheaper than many small ones": ([1] * 8, {"eight": 1}, 10),
    "a mixture is cheapest": ([2, 2, 1], {"two": 2, "one": 1}, 8),
    "two large nodes": ([4, 4, 4], {"eight": 2}, 20),
    "the remainder on a small node": ([8, 1], {"eight": 1, "one": 1}, 12),
    "nothing is pending": ([], {}, 0),
}


@pytest.mark.parametrize("uses_solver", [True, False], ids=["solver", "heuristic"])
@pytest.mark.parametrize("name", OPTIMA)
def test_the_cheapest_nodes(name: str, *, uses_solver: bool) -> None:
    sizes, nodes, price = OPTIMA[name]
    pods = [gpu_pod(f"p-{number}", size) for number, size in enumerate(sizes)]
    snapshot = gpu_cluster({"old": 0}, *pods)
    shapes = read_catalogue(catalogue(ONE, TWO, EIGHT), snapshot)
    plan = plan_of(snapshot, shapes, uses_solver=uses_solver)
    assert (plan.unplaced, len(plan.placements)) == ((), len(sizes))
    assert plan.bound <= price <= plan.price
    if uses_solver:
        assert (shapes_of(plan), plan.price, plan.is_optimal) == (nodes, price, True)
    assert plan == plan_of(snapshot, shapes, uses_solver=uses_solver), "plans are deterministic"


@pytest.mark.behaviour("TT-05")
def test_nodes_are_enough_for_a_scheduler_that_places_one_pod_after_the_other() -> None:
    """The small Pod takes the node on which alone the large one fits; together one node would be enough."""
    snapshot = gpu_cluster({"a": 2, "b": 1}, gpu_pod("a-small", 1), gpu_pod("b-large", 2), gpu_pod("c-large", 2))
    plan = plan_of(snapshot, read_catalogue(catalogue(TWO), snapshot))
    assert (shapes_of(plan), plan.is_optimal) == ({"two": 2}, False)
    assert plan.bound < plan.price
    assert {item.node for item in plan.placements} == {"a", "two-1", "two-2"}
    assert plan.notes[0].startswith("1 fewer would be enough if each Pod were put on its node by hand")


def test_an_added_node_says_who_needs_it_and_why() -> None:
    snapshot = gpu_cluster({"a": 1}, gpu_pod("big", 2))
    (node,) = plan_of(snapshot, read_catalogue(catalogue(TWO), snapshot)).added
    assert node.pods == ("team/big",)
    assert node.why == "0 of 1 nodes fit: a: of 1 device 1 usable but 2 needed on one node"


def test_a_pod_that_fits_on_no_shape_says_why_for_each() -> None:
    snapshot = gpu_cluster({"a": 1}, gpu_pod("huge", 8), gpu_pod("small", 1))
    plan = plan_of(snapshot, read_catalogue(catalogue(ONE, shape("cpus", 1, 0)), snapshot))
    (item,) = plan.unplaced
    assert item.pod == "team/huge"
    assert item.why.startswith(
        "fits on no node shape, even on an empty node: one: of 1 device 1 usable but 8 needed on one node; "
        "cpus: no device of class gpu"
    )
    assert [placement.pod for placement in plan.placements] == ["team/small"]


def test_a_selector_that_fails_on_a_device_is_the_reason() -> None:
    snapshot = gpu_cluster({"a": 1}, gpu_pod("big", 2))
    failing = device_class("gpu", f'device.attributes["{GPU}"].model == "a100"')
    documents = [item for kind, items in snapshot.documents.items() if kind != "DeviceClass" for item in items]
    snapshot = Snapshot.of([*documents, failing])
    bare = shape("bare", 1, 2)
    del bare["devices"][0]["device"]["attributes"]
    plan = plan_of(snapshot, read_catalogue(catalogue(bare), snapshot))
    (item,) = plan.unplaced
    assert "bare: " in item.why
    assert "no such key: model" in item.why


def test_a_limit_of_a_shape() -> None:
    snapshot = gpu_cluster({"old": 0}, *(gpu_pod(f"p-{number}", 2) for number in range(3)))
    shapes = read_catalogue(catalogue(shape("two", 1, 2, max=1), shape("dear", 9, 2)), snapshot)
    plan = plan_of(snapshot, shapes)
    assert (shapes_of(plan), plan.price) == ({"two": 1, "dear": 2}, 19)


def test_shapes_like_existing_nodes() -> None:
    snapshot = gpu_cluster(
        {"a": 2, "b": 2, "c": 1}, gpu_pod("x", 2, "a", [0, 1]), gpu_pod("y", 2, "b", [0, 1]), gpu_pod("z", 2)
    )
    shapes = existing_shapes(snapshot)
    assert [item.name for item in shapes] == ["like a", "like c"]
    assert shapes_of(plan_of(snapshot, shapes)) == {"like a": 1}
    (like,) = read_catalogue(catalogue({"name": "copy", "price": 5, "node": "a"}), snapshot)
    assert plan_of(snapshot, [like]).price == 5


@pytest.mark.behaviour("TT-10")
def test_shapes_of_existing_nodes_leave_out_what_identifies_them() -> None:
    """Machines of one kind differ in the serial numbers of their devices, an instance id and some KiB of memory."""
    documents = []
    for number in range(8):
        node, *slices = gpu_node(f"n{number}", 2)
        node["metadata"]["labels"] |= {"example.com/instance-id": f"i-{number}", "zone": "ab"[number % 2]}
        node["status"]["allocatable"]["memory"] = f"{64 * 2**20 - number}Ki"
        for position, item in enumerate(slices[0]["spec"]["devices"]):
            item.setdefault("attributes", {})["uuid"] = {"string": f"GPU-{number}-{position}"}
        documents += [node, *slices]
    assert [item.name for item in existing_shapes(Snapshot.of(documents))] == ["like n0", "like n1"]
    for node in documents[::2]:
        node["metadata"]["labels"]["node.kubernetes.io/instance-type"] = "p4"
    assert [item.name for item in existing_shapes(Snapshot.of(documents))] == ["p4", "p4 like n1"]


def test_a_shape_of_a_template() -> None:
    snapshot = gpu_cluster({"a": 1}, gpu_pod("z", 2))
    template_node = template_shape(gpu_node("big", 4), "file.yaml")
    listed = {"apiVersion": "v1", "kind": "List", "items": gpu_node("big", 4)}
    assert template_shape([listed], "file.yaml") == template_node, "as `kubectl get -o yaml` prints several objects"
    assert [node.name for node in plan_of(snapshot, [template_node]).added] == ["big-1"]
    with pytest.raises(SnapshotError, match="needs exactly one Node; it has 0"):
        template_shape([], "file.yaml")
    node = gpu_node("big", 4)[0]
    with pytest.raises(SnapshotError, match=r"file.yaml: the Node has no status.allocatable.cpu, so that no Pod fits"):
        template_shape([{**node, "status": {}}], "file.yaml")


def test_daemons_take_room_on_new_nodes() -> None:
    daemon = gpu_pod("daemon", 1, "a", [0], owner="DaemonSet")
    snapshot = gpu_cluster({"a": 2}, daemon, gpu_pod("z", 2))
    plan = plan_of(snapshot, read_catalogue(catalogue(TWO), snapshot))
    assert [item.pod for item in plan.unplaced] == ["team/z"], "one of two devices is the daemon's"
    plan = plan_of(snapshot, read_catalogue(catalogue(shape("three", 1, 3)), snapshot))
    assert (shapes_of(plan), plan.added[0].pods) == ({"three": 1}, ("team/z",))


def test_affinity_between_new_nodes_is_respected() -> None:
    terms = [{"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "kubernetes.io/hostname"}]
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    pods = []
    for number in range(3):
        (document,) = gpu_pod(f"p-{number}", 1)
        document["metadata"]["labels"] = {"app": "x"}
        document["spec"]["affinity"] = affinity
        pods.append([document])
    snapshot = gpu_cluster({"old": 0}, *pods)
    plan = plan_of(snapshot, read_catalogue(catalogue(EIGHT), snapshot))
    assert (len(plan.added), plan.unplaced) == (3, ())


def test_without_the_solver_the_plan_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addition, "is_installed", lambda: False)
    snapshot = gpu_cluster({"a": 1}, gpu_pod("z", 2))
    plan = plan_of(snapshot, read_catalogue(catalogue(TWO), snapshot))
    assert (plan.notes, plan.price, plan.is_optimal) == ((MISSING,), 3, True)


# --- Fallbacks. ---


def test_what_if_requests_could_fall_back_to_another_class() -> None:
    snapshot = gpu_cluster({"a": 2}, gpu_pod("z", 1))
    others = [device_class("h100", "false"), device_class("a100", f'device.driver == "{GPU}"')]
    wanted = {"name": "gpu", "exactly": {"deviceClassName": "h100", "allocationMode": "ExactCount", "count": 1}}
    documents = [
        *(item for kind, items in snapshot.documents.items() if kind != "ResourceClaimTemplate" for item in items),
        *others,
        template("gpus-1", wanted),
    ]
    changed = Snapshot.of(documents)
    cluster = TrialCluster(changed)
    (pod,) = cluster.pending
    assert not cluster.fits(pod)
    fallback = with_fallbacks(pod, dict([parse_fallback("h100=a100")]))
    assert cluster.fits(fallback)
    assert cluster.fits(with_fallbacks(pod, {"other": "a100"})) is False
    with pytest.raises(SnapshotError, match="expected CLASS=OTHER-CLASS"):
        parse_fallback("h100")


# --- Bad input. ---

BAD = {
    "no document": ([], "a catalogue is one document with apiVersion: plan.dray.dev/v1 and kind: NodeCatalogue"),
    "no shapes": (catalogue(), "the catalogue has no shapes"),
    "no name": (catalogue({"price": 1}), "shape 1 of the catalogue has no name"),
    "not an object": (catalogue("two"), "shape 1 of the catalogue has no name"),
    "twice": (catalogue(ONE, ONE), "the catalogue has two shapes one"),
    "unknown field": (catalogue({**ONE, "prize": 1}), 'shape one: unknown field prize (did you mean "price"?)'),
    "no price": (
        catalogue({"name": "x", "allocatable": AMOUNTS}),
        "shape x: price must be a number that is not negative",
    ),
    "negative price": (catalogue({**ONE, "price": -1}), "shape one: price must be a number that is not negative"),
    "no capacity": (
        catalogue({"name": "x", "price": 1}),
        "shape x has no capacity: allocatable needs cpu, memory, pods",
    ),
    "no pods": (
        catalogue({**ONE, "allocatable": {"cpu": "1", "memory": "1Gi"}}),
        "shape one: allocatable has no pods, so that no Pod fits",
    ),
    "bad quantity": (catalogue({**ONE, "allocatable": {**AMOUNTS, "cpu": "many"}}), "shape one: allocatable cpu: "),
    "negative quantity": (
        catalogue({**ONE, "allocatable": {**AMOUNTS, "cpu": "-1"}}),
        "shape one: allocatable cpu is negative",
    ),
    "devices without a driver": (catalogue({**ONE, "devices": [{"count": 1}]}), "shape one: devices need a driver"),
    "devices without a count": (
        catalogue({**ONE, "devices": [{"driver": GPU}]}),
        f"shape one: devices of {GPU} need a count of at least 1",
    ),
    "unknown node": (
        catalogue({"name": "x", "price": 1, "node": "nope"}),
        'shape x: no node "nope" in the cluster',
    ),
    "node and more": (
        catalogue({**ONE, "node": "a"}),
        "shape one: it is like node a, and cannot have other fields as well",
    ),
    "bad max": (catalogue({**ONE, "max": -1}), "shape one: max must be a number that is not negative"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_catalogue_is_refused_with_the_field(name: str) -> None:
    documents, message = BAD[name]
    with pytest.raises(SnapshotError) as caught:
        read_catalogue(documents, gpu_cluster({"a": 1}))
    assert str(caught.value).startswith(message)
