"""The message and the status patch of a Pod that was not placed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dray.framework.node_statuses import DETAILS_MAX, count_reasons, count_statuses
from dray.framework.status import Code, Status, unresolvable, unschedulable
from dray.scheduler.diagnosis import Diagnosis, plan_status
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
        pytest.param({"conditions": [condition()]}, None, {}, id="unchanged"),
        pytest.param({"conditions": [condition(message="old")]}, None, written(EARLIER), id="only the message"),
        pytest.param(
            {"conditions": [condition(status="True")]}, None, written("2026-01-02T03:04:05Z"), id="another status"
        ),
        pytest.param({"conditions": [condition()]}, "n", {"nominatedNodeName": "n"}, id="nominated"),
        pytest.param(
            {"conditions": [condition()], "nominatedNodeName": "n"}, "", {"nominatedNodeName": None}, id="cleared"
        ),
        pytest.param({"conditions": [condition()], "nominatedNodeName": "n"}, None, {}, id="nomination kept"),
    ],
)
def test_plan_status(status: dict[str, Any], nominated: str | None, expected: Any) -> None:
    assert plan_status(pod("a", status=status), "Unschedulable", "why", NOW, nominated) == expected


@pytest.mark.parametrize(
    ("pending", "nominated", "expected"),
    [
        pytest.param({"conditions": [condition()]}, None, {}, id="being written"),
        pytest.param({"conditions": [condition(message="other")]}, None, written(EARLIER), id="another is written"),
        pytest.param({"nominatedNodeName": "n"}, "", {"nominatedNodeName": None}, id="the nomination is being written"),
    ],
)
def test_plan_status_of_a_pod_with_a_pending_write(pending: Any, nominated: str | None, expected: Any) -> None:
    observed = pod("a", status={"conditions": [condition(message="why" if nominated is not None else "old")]})
    assert plan_status(observed, "Unschedulable", "why", NOW, nominated, pending) == expected


def no_devices(detail: str = "") -> Status:
    return Status(Code.UNSCHEDULABLE, ("cannot allocate all claims",), "DynamicResources", detail=detail)


@pytest.mark.parametrize(
    ("rejections", "expected"),
    [
        ([no_devices()] * 2, "2 cannot allocate all claims"),
        ([no_devices("all in use")] * 2, "2 cannot allocate all claims (all in use)"),
        (
            [no_devices("one in use"), no_devices("all in use"), no_devices("all in use")],
            "3 cannot allocate all claims (2: all in use; 1: one in use)",
        ),
        ([no_devices("all in use"), no_devices()], "2 cannot allocate all claims (1: all in use)"),
        (
            [no_devices("all in use"), unschedulable("Too many pods"), unresolvable("Too many pods")],
            "1 cannot allocate all claims (all in use), 2 Too many pods",
        ),
    ],
    ids=["no details", "one for all", "several", "not for all", "other reasons"],
)
def test_a_reason_is_counted_once_and_its_details_follow(rejections: list[Status], expected: str) -> None:
    statuses = {f"n{number}": status for number, status in enumerate(rejections)}
    found = Diagnosis(len(statuses), statuses)
    assert found.message() == f"0/{len(statuses)} nodes are available: {expected}."


def test_the_record_of_decisions_has_a_group_for_each_detail() -> None:
    statuses = {"a": no_devices("all in use"), "b": no_devices("one in use")}
    groups = Diagnosis(2, statuses).evaluation().rejections
    assert {group.reasons for group in groups} == {
        ("cannot allocate all claims (all in use)",),
        ("cannot allocate all claims (one in use)",),
    }


def test_details_do_not_depend_on_the_order_of_nodes_and_are_bounded() -> None:
    def rejection(detail: str) -> Status:
        return Status(Code.UNSCHEDULABLE, ("cannot allocate",), detail=detail)

    both = {"a": rejection("x"), "b": rejection("y")}
    assert count_reasons(count_statuses(both), {}) == ["2 cannot allocate (1: x; 1: y)"]
    assert count_reasons(count_statuses(dict(reversed(both.items()))), {}) == ["2 cannot allocate (1: x; 1: y)"]
    many = {f"n-{number}": rejection(f"{number:02}") for number in range(DETAILS_MAX + 5)}
    [text] = count_reasons(count_statuses(many), {})
    assert text.startswith("15 cannot allocate (1: 00; ")
    assert text.endswith("; 1: 09; 5: other details)")
