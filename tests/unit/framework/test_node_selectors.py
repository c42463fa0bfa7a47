"""Node selectors on nodes."""

from __future__ import annotations

from typing import Any

import pytest

from dray.framework.node_selectors import compile_required
from tests.unit.scheduler.builders import node_info, pod

LABELS = {"zone": "a", "disk": "ssd", "cores": "8"}


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def labels(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def named(operator: str, *values: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"nodeSelector": {"zone": "a", "disk": "ssd"}}, True),
        ({"nodeSelector": {"zone": "a", "disk": "hdd"}}, False),
        ({"affinity": affinity(labels("zone", "In", "a", "b"))}, True),
        ({"affinity": affinity(labels("zone", "NotIn", "a"))}, False),
        ({"affinity": affinity(labels("missing", "NotIn", "a"))}, True),
        ({"affinity": affinity(labels("zone", "Exists"))}, True),
        ({"affinity": affinity(labels("missing", "Exists"))}, False),
        ({"affinity": affinity(labels("missing", "DoesNotExist"))}, True),
        ({"affinity": affinity(labels("cores", "Gt", "7"))}, True),
        ({"affinity": affinity(labels("cores", "Lt", "8"))}, False),
        ({"affinity": affinity(labels("zone", "Gt", "1"))}, False),
        ({"affinity": affinity(labels("zone", "In", "b"), labels("disk", "In", "ssd"))}, True),
        ({"affinity": affinity({})}, False),
        ({"affinity": affinity()}, False),
        ({"affinity": affinity(named("In", "n"))}, True),
        ({"affinity": affinity(named("NotIn", "n"))}, False),
        ({"affinity": affinity({**labels("zone", "In", "b"), **named("In", "n")})}, False),
        ({"nodeSelector": {"zone": "b"}, "affinity": affinity(labels("disk", "In", "ssd"))}, False),
    ],
)
def test_required(spec: dict[str, Any], expected: bool) -> None:
    matcher = compile_required(pod(**spec))
    assert matcher is not None
    assert matcher(node_info("n", labels=LABELS)) is expected


def test_no_wish_means_anywhere() -> None:
    assert compile_required(pod()) is None
