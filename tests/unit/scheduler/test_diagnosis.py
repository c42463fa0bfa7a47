"""The status patch of a Pod that was not placed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dray.scheduler.diagnosis import plan_status
from tests.unit.scheduler.builders import pod

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
EARLIER = "2026-01-01T00:00:00Z"


def condition(status: str = "False", reason: str = "Unschedulable", message: str = "why") -> dict[str, Any]:
    return {
        "type": "PodScheduled",
        "status": status,
        "lastProbeTime": None,
        "lastTransitionTime": EARLIER,
        "reason": reason,
        "message": message,
    }


def written(time: str) -> dict[str, Any]:
    return {"conditions": [condition() | {"lastTransitionTime": time}]}


@pytest.mark.parametrize(
    ("status", "nominated", "expected"),
    [
        pytest.param({}, None, written("2026-01-02T03:04:05Z"), id="first"),
        pytest.param({"conditions": [condition()]}, None, None, id="unchanged"),
        pytest.param({"conditions": [condition(message="old")]}, None, written(EARLIER), id="only the message"),
        pytest.param(
            {"conditions": [condition(status="True")]}, None, written("2026-01-02T03:04:05Z"), id="another status"
        ),
        pytest.param({"conditions": [condition()]}, "n", {"nominatedNodeName": "n"}, id="nominated"),
        pytest.param(
            {"conditions": [condition()], "nominatedNodeName": "n"}, "", {"nominatedNodeName": None}, id="cleared"
        ),
        pytest.param({"conditions": [condition()], "nominatedNodeName": "n"}, None, None, id="nomination kept"),
    ],
)
def test_plan_status(status: dict[str, Any], nominated: str | None, expected: Any) -> None:
    planned = plan_status(pod("a", status=status), "Unschedulable", "why", NOW, nominated)
    assert planned == (None if expected is None else {"metadata": {"uid": "uid-a"}, "status": expected})
