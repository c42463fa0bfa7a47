"""Scores with numbers that follow from Kubernetes' formulas."""

from __future__ import annotations

from typing import Any

import pytest

from dray.framework.node_info import NodeInfo
from dray.framework.status import SKIP
from dray.scheduler.plugins.balanced_allocation import BalancedAllocation
from dray.scheduler.plugins.fit_strategies import make_scorer
from dray.scheduler.plugins.image_locality import ImageLocality
from dray.scheduler.plugins.node_affinity import NodeAffinity
from dray.scheduler.plugins.normalization import normalize
from dray.scheduler.plugins.taint_toleration import TaintToleration
from tests.unit.scheduler.builders import handle, node_info, pod, pod_info, state

GIBI = 1024**3


def sized(name: str, cpu: str, memory: str, used: dict[str, str] | None = None) -> NodeInfo:
    pods = [pod_info(f"on-{name}", requests=used)] if used else []
    return node_info(name, allocatable={"cpu": cpu, "memory": memory, "pods": "10"}, pods=pods)


@pytest.mark.parametrize(
    ("kind", "used", "expected"),
    [
        # ((10 - 1) * 100 / 10 + (10 - 1) * 100 / 10) / 2
        ("LeastAllocated", None, 90),
        # ((10 - 6) * 100 / 10 + (10 - 3) * 100 / 10) / 2
        ("LeastAllocated", {"cpu": "5", "memory": "2Gi"}, 55),
        ("MostAllocated", None, 10),
        ("MostAllocated", {"cpu": "5", "memory": "2Gi"}, 45),
    ],
)
def test_fit_strategies(kind: str, used: Any, expected: int) -> None:
    scorer = make_scorer({"type": kind})
    assert scorer(pod_info(requests={"cpu": "1", "memory": "1Gi"}), [sized("n", "10", "10Gi", used)]) == [expected]


def test_fit_strategy_with_weights_and_extended_resources() -> None:
    strategy = {"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 1}, {"name": "a/gpu", "weight": 3}]}
    node = node_info(allocatable={"cpu": "10", "a/gpu": "4", "pods": "1"})
    # (10 * 1 + 50 * 3) / 4
    assert make_scorer(strategy)(pod_info(requests={"cpu": "1", "a/gpu": "2"}), [node]) == [40]
    # A resource that is not asked for does not count: 10 * 1 / 1.
    assert make_scorer(strategy)(pod_info(requests={"cpu": "1"}), [node]) == [10]


def test_unknown_strategy_is_refused() -> None:
    with pytest.raises(ValueError, match="Unsupported value"):
        make_scorer({"type": "Odd"})


@pytest.mark.parametrize(
    ("requests", "used", "expected"),
    [
        # As balanced as before.
        ({"cpu": "5", "memory": "5Gi"}, None, 75),
        # |0.5 - 0.1| / 2 = 0.2: 80 after 100.
        ({"cpu": "5", "memory": "1Gi"}, None, 65),
        # |0.5 - 0.5| / 2 = 0: 100 after 80.
        ({"memory": "4Gi"}, {"cpu": "5", "memory": "1Gi"}, 85),
        # More than there is counts as full: |1.0 - 0.3| / 2 after |0.9 - 0.2| / 2.
        ({"cpu": "5", "memory": "1Gi"}, {"cpu": "9", "memory": "2Gi"}, 75),
    ],
)
def test_balanced_allocation(requests: Any, used: Any, expected: int) -> None:
    info = pod_info(requests=requests)
    plugin = BalancedAllocation({}, handle())
    assert plugin.score(state(info), info.pod, sized("n", "10", "10Gi", used)) == expected


def test_balanced_allocation_of_three_resources() -> None:
    plugin = BalancedAllocation({"resources": [{"name": "cpu"}, {"name": "memory"}, {"name": "a/gpu"}]}, handle())
    info = pod_info(requests={"cpu": "1", "memory": "1Gi", "a/gpu": "4"})
    node = node_info(allocatable={"cpu": "10", "memory": "10Gi", "a/gpu": "10", "pods": "1"})
    # Shares 0.1, 0.1, 0.4: deviation 0.1414, 85 after 100.
    assert plugin.score(state(info), info.pod, node) == 67
    # A scalar resource that the Pod does not ask for does not count.
    assert plugin.score(state(plain := pod_info(requests={"cpu": "1", "memory": "1Gi"})), plain.pod, node) == 75


def test_pods_that_ask_for_nothing_are_not_balanced() -> None:
    info = pod_info()
    assert BalancedAllocation({}, handle()).pre_score(state(info), info.pod, ()) is SKIP


def test_soft_taints_count_against_a_node() -> None:
    soft = {"key": "a", "effect": "PreferNoSchedule"}
    nodes = (node_info("none"), node_info("one", taints=[soft]), node_info("two", taints=[soft, {**soft, "key": "b"}]))
    plugin = TaintToleration(handle(*nodes))
    info = pod_info()
    cycle = state(info)
    plugin.pre_score(cycle, info.pod, nodes)
    scores = [plugin.score(cycle, info.pod, node) for node in nodes]
    plugin.normalize_scores(cycle, info.pod, scores)
    assert scores == [100, 50, 0]


def test_preferred_affinity_adds_weights() -> None:
    def preference(weight: int, value: str) -> dict[str, Any]:
        expression = {"key": "zone", "operator": "In", "values": [value]}
        return {"weight": weight, "preference": {"matchExpressions": [expression]}}

    wishes = [preference(10, "a"), preference(30, "b")]
    asked = pod(affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": wishes}})
    nodes = [node_info(zone, labels={"zone": zone}) for zone in ("a", "b", "c")]
    plugin, cycle = NodeAffinity({}, handle()), state(asked)
    plugin.pre_score(cycle, asked, nodes)
    scores = [plugin.score(cycle, asked, node) for node in nodes]
    plugin.normalize_scores(cycle, asked, scores)
    assert scores == [33, 100, 0]


def test_images_that_are_there() -> None:
    image = {"names": ["image:latest"], "sizeBytes": 1023 * 1024 * 1024}
    nodes = (node_info("with", images=[image]), node_info("without"))
    plugin = ImageLocality(handle(*nodes))
    info = pod_info()
    cycle = state(info)
    plugin.pre_score(cycle, info.pod, nodes)
    # Half of the nodes have it, so half of its size counts: (511.5 - 23) / (1000 - 23).
    assert [plugin.score(cycle, info.pod, node) for node in nodes] == [50, 0]


@pytest.mark.parametrize(
    ("scores", "reverse", "expected"),
    [
        ([0, 0], False, [0, 0]),
        ([0, 0], True, [100, 100]),
        ([1, 2, 4], False, [25, 50, 100]),
        ([1, 2, 4], True, [75, 50, 0]),
    ],
)
def test_normalize(scores: list[int], reverse: bool, expected: list[int]) -> None:
    normalize(scores, reverse=reverse)
    assert scores == expected
