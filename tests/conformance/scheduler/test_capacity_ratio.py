"""NodeResourcesFit with the strategy RequestedToCapacityRatio (kube-scheduler 1.36)."""

from __future__ import annotations

from typing import Any

import pytest

from dray.scheduler.plugins.fit_strategies import make_placement_scorer, make_scorer, shape_value
from tests.unit.scheduler.builders import node_info, pod_info

PATH = "scoringStrategy.requestedToCapacityRatio"
RISING = [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]


def strategy(shape: Any, resources: Any = None) -> dict[str, Any]:
    found = {"type": "RequestedToCapacityRatio", "requestedToCapacityRatio": {"shape": shape}}
    return found | ({"resources": resources} if resources is not None else {})


@pytest.mark.behaviour("SC-01")
@pytest.mark.parametrize(
    ("shape", "values"),
    [
        (((10, 10), (90, 90)), {0: 10, 10: 10, 15: 15, 85: 85, 90: 90, 100: 90}),
        (((0, 20), (40, 100), (100, 0)), {0: 20, 20: 60, 40: 100, 70: 50, 99: 2, 100: 0}),
        # The quotient is rounded towards zero.
        (((0, 0), (30, 100)), {1: 3, 10: 33, 29: 96}),
        (((0, 100), (30, 0)), {1: 97, 10: 67, 29: 4}),
        (((50, 30),), {0: 30, 50: 30, 100: 30}),
    ],
)
def test_shape(shape: tuple[tuple[int, int], ...], values: dict[int, int]) -> None:
    assert {utilization: shape_value(shape, utilization) for utilization in values} == values


@pytest.mark.behaviour("SC-01", "SC-02")
@pytest.mark.parametrize(
    ("requests", "resources", "expected"),
    [
        # 4 cpus and 8Gi: 75 % and 50 %, rounded.
        ({"cpu": "3", "memory": "4Gi"}, None, 63),
        ({"cpu": "3", "memory": "4Gi"}, [{"name": "cpu", "weight": 3}, {"name": "memory", "weight": 1}], 69),
        # Without requests the defaults of 100m and 200Mi count: 2 % each.
        ({}, None, 2),
        # More than there is counts as full.
        ({"cpu": "9", "memory": "8Gi"}, None, 100),
        # A resource whose value is 0 counts neither in the sum nor in the weights.
        ({"cpu": "2", "a/gpu": "1"}, [{"name": "cpu"}, {"name": "a/gpu"}], 50),
        ({"cpu": "2", "memory": "4Gi"}, [{"name": "a/gpu"}], 0),
    ],
)
def test_score(requests: dict[str, str], resources: Any, expected: int) -> None:
    assert make_scorer(strategy(RISING, resources))(pod_info(requests=requests), [node_info()]) == [expected]


@pytest.mark.behaviour("GW-62")
@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        # 3 of 8 cpus, and 2 of 16 Gi: 37 and 12.
        ({}, (37 + 12) // 2),
        ({"type": "LeastAllocated"}, (62 + 87) // 2),
        ({"resources": [{"name": "cpu"}]}, 37),
        ({"resources": [{"name": "a/gpu"}]}, 25),
        ({"resources": [{"name": "a/other"}]}, 0),
        (strategy(RISING, [{"name": "cpu"}]), 37),
    ],
)
def test_domain(placement: dict[str, Any], expected: int) -> None:
    requests = {"cpu": "1", "memory": "1Gi", "a/gpu": "1"}
    placed = [pod_info("p", requests=requests)]
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "10", "a/gpu": "2", "a/other": "2"}
    other = pod_info("q", requests={"cpu": "2", "memory": "1Gi"})
    nodes = [node_info("a", allocatable=amounts, pods=[*placed, other]), node_info("b", allocatable=amounts)]
    assert make_placement_scorer(placement, {})(placed, nodes) == expected


@pytest.mark.behaviour("GW-62")
def test_bad_arguments_for_domains() -> None:
    with pytest.raises(ValueError, match=r"placementScoringStrategy\.resources\[0\]\.name: Required value"):
        make_placement_scorer({"resources": [{}]}, {})


@pytest.mark.behaviour("SC-02")
@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"type": "RequestedToCapacityRatio"},
            f"{PATH}: Required value: must be specified when type is RequestedToCapacityRatio",
        ),
        (
            {"requestedToCapacityRatio": {"shape": RISING}},
            f"{PATH}: Forbidden: must be nil when type is not RequestedToCapacityRatio",
        ),
        (strategy([]), f"{PATH}.shape: Required value: at least one point must be specified"),
        (
            strategy([RISING[1], RISING[0]]),
            f"{PATH}.shape[1].utilization: Invalid value: 0: values must be sorted in increasing order",
        ),
        (
            strategy([{"utilization": 101, "score": 1}]),
            f"{PATH}.shape[0].utilization: Invalid value: 101: not in valid range [0, 100]",
        ),
        (
            strategy([{"utilization": 1, "score": 11}]),
            f"{PATH}.shape[0].score: Invalid value: 11: not in valid range [0, 10]",
        ),
        (
            strategy(RISING, [{"name": "cpu", "weight": 101}]),
            "scoringStrategy.resources[0].weight: Invalid value: 101: "
            "resource weight of cpu not in valid range (0, 100]",
        ),
        (strategy("x"), f"{PATH}.shape: must be a list of maps"),
        ({"type": "RequestedToCapacityRatio", "requestedToCapacityRatio": 1}, f"{PATH}: must be a map"),
    ],
)
def test_bad_arguments(given: dict[str, Any], text: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        make_scorer(given)
    assert str(caught.value) == text
