"""Which Pods go first."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from dray.api.types.core_v1 import Pod
from dray.controllers.pod_control.replicas import DELETION_COST, choose_for_deletion, deletion_cost, order_for_deletion
from tests.unit.controllers.pod_control.pods import NOW, pod

READY: dict[str, Any] = {"ready_for": 50.0}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(pod("z", node=""), pod("a", phase="Pending"), id="without a node before with one"),
        pytest.param(pod("z", phase="Pending"), pod("a", phase="Unknown"), id="pending before unknown"),
        pytest.param(pod("z", phase="Unknown"), pod("a"), id="unknown before running"),
        pytest.param(pod("z"), pod("a", **READY), id="not ready before ready"),
        pytest.param(pod("z", annotations={DELETION_COST: "-1"}, **READY), pod("a", **READY), id="cheap first"),
        pytest.param(
            pod("z", annotations={DELETION_COST: "5"}), pod("a", annotations={DELETION_COST: "10"}), id="numbers"
        ),
        pytest.param(
            pod("z"), pod("a", annotations={DELETION_COST: "1"}, ready_for=1.0), id="readiness before its cost"
        ),
        pytest.param(pod("z", ready_for=10.0), pod("a", ready_for=5000.0), id="ready for a shorter time"),
        pytest.param(pod("a", ready_for=50.0), pod("z", ready_for=51.0), id="about as long ready: by uid"),
        pytest.param(pod("a", ready_for=51.0), pod("z", ready_for=50.0), id="about as long, the other way round"),
        pytest.param(pod("z", restarts=3, **READY), pod("a", restarts=1, **READY), id="more restarts"),
        pytest.param(pod("z", age=10.0), pod("a", age=10000.0), id="younger"),
        pytest.param(pod("a", age=100.0), pod("z", age=101.0), id="about as old: by uid"),
    ],
)
def test_order(first: Pod, second: Pod) -> None:
    assert order_for_deletion([second, first], NOW) == [first, second]
    assert order_for_deletion([first, second], NOW) == [first, second]


def test_crowded_nodes_give_first() -> None:
    alone, crowded = pod("a", node="n1", ready_for=1.0), pod("b", node="n2", ready_for=9000.0)
    related = [alone, crowded, pod("other", node="n2"), pod("ending", node="n1", deleting=True), pod("no", node="")]
    assert order_for_deletion([alone, crowded], NOW) == [alone, crowded]
    assert order_for_deletion([alone, crowded], NOW, related) == [crowded, alone]


def test_the_order_is_total() -> None:
    pods = [
        pod(f"{node}{ready}{age}{restarts}", node=node, ready_for=ready, age=age, restarts=restarts)
        for node, ready, age, restarts in itertools.product(("", "n"), (None, 1.0, 99.0), (5.0, 500.0), (0, 2))
    ]
    expected = order_for_deletion(pods, NOW)
    assert order_for_deletion(reversed(pods), NOW) == expected


def test_only_as_many_as_asked_for() -> None:
    pods = [pod("a", **READY), pod("b"), pod("c", **READY)]
    assert choose_for_deletion(pods, 1, NOW) == (pods[1],)
    assert choose_for_deletion(pods, 3, NOW) == tuple(pods)
    assert choose_for_deletion(pods, 0, NOW) == ()


@pytest.mark.parametrize(("text", "cost"), [("", 0), ("7", 7), ("-7", -7), ("07", 0), ("x", 0), ("1.5", 0), ("+3", 3)])
def test_cost(text: str, cost: int) -> None:
    assert deletion_cost(pod(annotations={DELETION_COST: text})) == cost
