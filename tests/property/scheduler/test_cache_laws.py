"""The cache and its snapshot always equal what a plain recount gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from dray.api.types.core_v1 import Pod
from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.snapshot import Snapshot
from dray.scheduler.cache import Cache
from dray.scheduler.plugins.balanced_allocation import BalancedAllocation
from dray.scheduler.plugins.node_resources_fit import NodeResourcesFit
from dray.scheduler.score_cache import KINDS_MAX, ScoreTables
from tests.unit.scheduler.builders import DeviceServedResource, container, handle, node, pod

NODES = ["n0", "n1", "n2"]
UIDS = ["p0", "p1", "p2", "p3"]
ACTIONS = ["assume", "forget", "confirm", "move", "remove", "node", "label", "drop", "snapshot"]
STEPS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.sampled_from(UIDS), st.sampled_from(NODES)), max_size=50)
ANTI = {
    "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "z", "labelSelector": {}}]}
}


def make(uid: str, node_name: str) -> PodInfo:
    number = int(uid[1:])
    ports = [{"containerPort": 1, "hostPort": 80 + number % 2}]
    containers = [container({"cpu": f"{number + 1}", "a/b": str(number)}, ports=ports)]
    affinity = ANTI if number % 2 else None
    return PodInfo(pod(uid, uid=uid, nodeName=node_name, affinity=affinity, containers=containers, priority=3 - number))


def images_of(labels: dict[str, str]) -> list[dict[str, object]]:
    """Other images with other labels, and some that many have."""
    number = int(labels.get("round", "0"))
    return [{"names": [f"i{number % 3}:1", f"i{number % 2}:2"], "sizeBytes": 1}] if number % 4 else []


def summary(info: NodeInfo) -> tuple[object, ...]:
    return (
        info.name,
        dict(info.labels),
        sorted(info.pods),
        info.requested,
        (info.free_milli_cpu, info.free_memory, info.free_pods, info.free_ephemeral_storage),
        (info.non_zero_milli_cpu, info.non_zero_memory),
        dict(info.ports),
        sorted(item.uid for item in info.affinity_pods),
    )


@settings(max_examples=250, deadline=None)
@given(STEPS)
def test_cache_equals_a_recount(steps: list[tuple[str, str, str]]) -> None:  # noqa: C901 - one branch for each step
    cache, snapshot = Cache(), Snapshot()
    nodes: dict[str, dict[str, str]] = {}
    placed: dict[str, tuple[str, bool]] = {}
    for number, (step, uid, name) in enumerate(steps):
        match step:
            case "assume" if uid not in placed:
                cache.assume(make(uid, name), name)
                placed[uid] = (name, True)
            case "forget":
                undone = cache.forget(uid)
                assert undone == (uid in placed and placed[uid][1])
                if undone:
                    del placed[uid]
            case "confirm" if uid in placed:
                cache.set_pod(make(uid, placed[uid][0]).pod)
                placed[uid] = (placed[uid][0], False)
            case "move":
                cache.set_pod(make(uid, name).pod)
                placed[uid] = (name, False)
            case "remove":
                cache.remove_pod(uid)
                placed.pop(uid, None)
            case "node" | "label":
                labels = {"round": str(number)} if step == "label" else nodes.get(name, {})
                nodes[name] = labels
                cache.set_node(node(name, labels=labels, images=images_of(labels)))
            case "drop":
                cache.remove_node(name)
                nodes.pop(name, None)
            case "snapshot":
                cache.update_snapshot(snapshot)
        for item, (where, assumed) in placed.items():
            assert cache.node_of(item) == where
            assert cache.is_assumed(item) == assumed
    cache.update_snapshot(snapshot)
    expected = {
        name: summary(
            NodeInfo(
                node(name, labels=labels, images=images_of(labels)),
                {uid: make(uid, where) for uid, (where, _) in placed.items() if where == name},
            )
        )
        for name, labels in nodes.items()
    }
    assert {info.name: summary(info) for info in snapshot} == expected
    assert all(info.priority_floor <= item.priority for info in snapshot for item in info.pods.values())
    assert [snapshot.get(info.name) for info in snapshot] == list(snapshot)
    assert snapshot.image_counts == Counter(name for info in snapshot for name in info.image_sizes)
    assert snapshot.with_affinity_pods.keys() == {info.name for info in snapshot if info.affinity_pods}
    assert snapshot.with_extended_requests.keys() == {info.name for info in snapshot if info.requested.scalars}


def test_the_snapshot_takes_over_changed_nodes_only() -> None:
    cache, snapshot = Cache(), Snapshot()
    for name in NODES:
        cache.set_node(node(name))
    cache.update_snapshot(snapshot)
    before = {info.name: info for info in snapshot}
    cache.assume(make("p0", "n1"), "n1")
    assert list(snapshot) == list(before.values())
    cache.update_snapshot(snapshot)
    changed = {info.name for info in snapshot if info is not before[info.name]}
    assert changed == {"n1"}


def test_zones_take_turns() -> None:
    cache, snapshot = Cache(), Snapshot()
    for number, zone in enumerate("aaab"):
        cache.set_node(node(f"n{number}", labels={"topology.kubernetes.io/zone": zone}))
    cache.update_snapshot(snapshot)
    assert [info.name for info in snapshot] == ["n0", "n3", "n1", "n2"]


CHANGES = ("pod", "pod", "node", "more", "less", "nothing")


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["small", "large", "none"]), st.sampled_from(CHANGES), st.integers(0, 3)), max_size=25
    )
)
def test_remembered_scores_are_those_of_the_node_as_it_is(steps: list[tuple[str, str, int]]) -> None:
    """Scores that are kept by place, against fresh ones."""
    requests = {"small": {"cpu": "100m", "memory": "1Gi"}, "large": {"cpu": "2"}, "none": {}}
    scorers = (NodeResourcesFit({}, handle()), BalancedAllocation({}, handle()))
    cache, snapshot, tables = Cache(), Snapshot(), ScoreTables()
    for number in range(4):
        cache.set_node(node(f"n{number}"))
    for number, (kind, change, which) in enumerate(steps):
        coming = PodInfo(pod(f"p{number}", containers=[container(requests[kind])]))
        cycle = CycleState(coming)
        cache.update_snapshot(snapshot)
        places = [place for place in range(len(snapshot)) if place != which]

        def score(nodes: Sequence[NodeInfo], cycle: CycleState = cycle, pod: Pod = coming.pod) -> list[list[int]]:
            return [scorer.score_all(cycle, pod, nodes) for scorer in scorers]

        table = tables.table(tuple(scorer.score_cache_key(cycle) for scorer in scorers))
        fresh = score([snapshot.nodes[place] for place in places])
        assert table.sums(snapshot, places, score) == [sum(scores) for scores in zip(*fresh, strict=True)]
        assert not places or table.of_plugins(places) == fresh
        name = f"n{which}"
        if change == "pod" and cache.node(name) is not None:
            cache.assume(coming, name)
        elif change == "node":
            cache.set_node(node(name, allocatable={"cpu": "8", "memory": "8Gi", "pods": "10"}))
        elif change == "more":
            cache.set_node(node(f"m{number}", allocatable={"cpu": "2", "memory": "8Gi", "pods": "10"}))
        elif change == "less":
            cache.remove_node(name)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["small", "large", "device"]), st.sampled_from(CHANGES), st.integers(0, 3)),
        max_size=25,
    )
)
@example([("large", "pod", 0), ("large", "pod", 0), ("device", "pod", 0)])
def test_all_nodes_are_filtered_as_one_by_one(steps: list[tuple[str, str, int]]) -> None:
    requests = {"small": {"cpu": "100m"}, "large": {"cpu": "3"}, "device": {"example.com/gpu": "1"}}
    given_handle = handle()
    given_handle.extended_resources.register(DeviceServedResource("example.com/gpu"))
    fit, cache, snapshot = NodeResourcesFit({}, given_handle), Cache(), Snapshot()
    for number in range(4):
        cache.set_node(node(f"n{number}"))
    for number, (kind, change, which) in enumerate(steps):
        coming = PodInfo(pod(f"p{number}", containers=[container(requests[kind])]))
        cycle = CycleState(coming)
        cache.update_snapshot(snapshot)
        fit.pre_filter(cycle, coming.pod)
        statuses = [fit.filter(cycle, coming.pod, info) for info in snapshot.nodes]
        assert fit.filter_all(cycle, coming.pod, snapshot.nodes) == statuses
        name = f"n{which}"
        if change == "pod" and cache.node(name) is not None:
            cache.assume(coming, name)
        elif change == "node":
            cache.set_node(node(name, allocatable={"cpu": "8", "memory": "8Gi", "pods": "2", "example.com/gpu": "1"}))
        elif change == "more":
            cache.set_node(node(f"m{number}", allocatable={"cpu": "2", "memory": "8Gi", "pods": "10"}))
        elif change == "less":
            cache.remove_node(name)


def test_only_so_many_tables_of_scores_are_kept() -> None:
    tables = ScoreTables()
    first, second = tables.table(0), tables.table(1)
    for kind in range(2, KINDS_MAX):
        tables.table(kind)
    assert tables.table(0) is first
    tables.table(KINDS_MAX)
    assert tables.table(0) is first
    assert tables.table(1) is not second
