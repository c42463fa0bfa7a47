"""Which Pods no node agent will finish."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dray.api.types.core_v1 import Node, Pod
from dray.controllers.pod_garbage_collector import plan


def pod(name: str = "p", phase: str | None = None, *, created: int = 0, reason: str = "", **more: Any) -> Pod:
    metadata: dict[str, Any] = {"name": name, "creationTimestamp": f"2026-01-01T00:00:{created:02}Z"}
    if more.get("deleted"):
        metadata["deletionTimestamp"] = "2026-01-01T01:00:00Z"
    status = {"phase": phase, "reason": reason}
    document = {"metadata": metadata, "spec": {"nodeName": more.get("node")}, "status": status}
    return msgspec.convert(document, Pod, strict=False)


def node(ready: str | None, *keys: str) -> Node:
    conditions = [{"type": "Ready", "status": ready}] if ready else []
    document = {
        "spec": {"taints": [{"key": key, "effect": "NoExecute"} for key in keys]},
        "status": {"conditions": conditions},
    }
    return msgspec.convert(document, Node)


OUT = "node.kubernetes.io/out-of-service"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(node("Unknown", OUT), True, id="out of service"),
        pytest.param(node("False", "a", OUT), True, id="not ready"),
        pytest.param(node(None, OUT), True, id="unknown"),
        pytest.param(node("True", OUT), False, id="a node that says it is ready may have running containers"),
        pytest.param(node("Unknown", "a"), False, id="another taint"),
    ],
)
def test_out_of_service(given: Node, expected: bool) -> None:
    assert plan.is_out_of_service(given) is expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (pod(deleted=True), True),
        (pod(deleted=True, node="n"), False),
        (pod(), False),
    ],
)
def test_never_placed(given: Pod, expected: bool) -> None:
    assert plan.is_unscheduled_and_terminating(given) is expected


@pytest.mark.parametrize(
    ("phase", "expected"),
    [("Pending", False), ("Running", False), ("Unknown", False), (None, False), ("Succeeded", True), ("Failed", True)],
)
def test_finished(phase: str | None, expected: bool) -> None:
    assert plan.is_finished(pod(phase=phase)) is expected


def test_evicted_pods_go_first_then_the_oldest() -> None:
    finished = [
        pod("newest", "Succeeded", created=9),
        pod("evicted", "Failed", created=8, reason="Evicted"),
        pod("b", "Failed", created=1),
        pod("a", "Succeeded", created=1),
    ]
    assert [item.metadata.name for item in plan.surplus(finished, 1)] == ["evicted", "a", "b"]
    assert plan.surplus(finished, 4) == []
    assert plan.surplus(finished, 10) == []
