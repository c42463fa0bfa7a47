"""The numbers of a budget."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.timestamps import format_time
from dray.api.types.core_v1 import Pod, PodCondition, PodStatus
from dray.api.types.meta_v1 import ObjectMeta
from dray.controllers.disruption import plan

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def pod(name: str, *, ready: bool = True, going: bool = False, phase: str = "Running", target: str = "") -> Pod:
    conditions = [PodCondition(type="Ready", status="True" if ready else "False")]
    if target:
        since = NOW - timedelta(seconds=100)
        conditions.append(
            PodCondition(type="DisruptionTarget", status="True", reason=target, last_transition_time=since)
        )
    metadata = ObjectMeta(name=name, namespace="ns", deletion_timestamp=NOW if going else None)
    return Pod(metadata=metadata, status=PodStatus(phase=phase, conditions=tuple(conditions)))


def budget(spec: Document, **status: Any) -> Document:
    return {"metadata": {"name": "b", "namespace": "ns", "generation": 3}, "spec": spec, "status": status}


@pytest.mark.behaviour("DB-14", "DB-15")
@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"maxUnavailable": 2}, (10, 8)),
        ({"maxUnavailable": 20}, (10, 0)),
        ({"maxUnavailable": "25%"}, (10, 7)),
        ({"minAvailable": 3}, (7, 3)),
        ({"minAvailable": 30}, (7, 30)),
        ({"minAvailable": "25%"}, (10, 3)),
        ({"minAvailable": "100%"}, (10, 10)),
        ({"minAvailable": "0%"}, (10, 0)),
        ({}, (0, 0)),
    ],
)
def test_expected_and_desired_pods(spec: Document, expected: tuple[int, int]) -> None:
    assert plan.expected_and_desired(spec, pods=7, scale=10) == expected


@pytest.mark.behaviour("DB-15")
def test_only_numbers_of_available_pods_need_no_scale() -> None:
    assert not plan.needs_scale({"minAvailable": 3})
    assert not plan.needs_scale({})
    assert plan.needs_scale({"minAvailable": "3%"})
    assert plan.needs_scale({"maxUnavailable": 0})


@pytest.mark.behaviour("DB-18")
def test_healthy_pods_are_ready_and_stay() -> None:
    pods = [pod("a"), pod("b", ready=False), pod("c", going=True), pod("d"), pod("e")]
    assert plan.count_healthy(pods, {"d": format_time(NOW)}) == 2


@pytest.mark.behaviour("DB-19")
def test_the_status_follows_from_the_pods_and_is_written_only_when_it_changes() -> None:
    given = budget({"minAvailable": 1}, disruptedPods={"gone": format_time(NOW)})
    status = plan.plan_status(given, [pod("a"), pod("b")], 0, {}, NOW)
    assert status is not None
    numbers = ("currentHealthy", "desiredHealthy", "expectedPods", "disruptionsAllowed", "observedGeneration")
    assert [status[name] for name in numbers] == [2, 1, 2, 1, 3]
    assert "disruptedPods" not in status
    assert plan.plan_status({**given, "status": status}, [pod("a"), pod("b")], 0, {}, NOW + timedelta(1)) is None
    none = plan.plan_status(budget({"maxUnavailable": 1}), [], 0, {}, NOW)
    assert none is not None
    assert (none["expectedPods"], none["disruptionsAllowed"]) == (0, 0)


@pytest.mark.behaviour("DB-20")
def test_the_condition_says_whether_and_why() -> None:
    status = plan.plan_status(budget({"minAvailable": 1}), [pod("a"), pod("b")], 0, {}, NOW)
    assert status is not None
    (condition,) = status["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "DisruptionAllowed",
        "True",
        "SufficientPods",
    )
    later = NOW + timedelta(1)
    fewer = plan.plan_status({**budget({"minAvailable": 1}), "status": status}, [pod("a")], 0, {}, later)
    assert fewer is not None
    (condition,) = fewer["conditions"]
    assert (condition["status"], condition["reason"], condition["observedGeneration"]) == (
        "False",
        "InsufficientPods",
        3,
    )
    assert condition["lastTransitionTime"] == format_time(later)
    failed = plan.plan_failed_sync({**budget({}), "status": status}, "no idea", later)
    assert {key: failed[key] for key in ("currentHealthy", "disruptionsAllowed")} == {
        "currentHealthy": 2,
        "disruptionsAllowed": 0,
    }
    (condition,) = failed["conditions"]
    assert (condition["status"], condition["reason"], condition["message"]) == ("False", "SyncFailed", "no idea")


@pytest.mark.behaviour("DB-21")
def test_evictions_are_forgotten_when_the_pod_goes_or_does_not() -> None:
    young, old = format_time(NOW - timedelta(seconds=50)), format_time(NOW - timedelta(seconds=121))
    recorded = {"young": young, "old": old, "going": young, "gone": young}
    evicted = plan.plan_evicted(recorded, [pod("young"), pod("old"), pod("going", going=True), pod("other")], NOW)
    assert evicted.pending == {"young": young}
    assert [item.metadata.name for item in evicted.overdue] == ["old"]
    assert evicted.recheck_seconds == 70.0


@pytest.mark.behaviour("DB-21")
def test_an_evicted_pod_that_was_not_observed_yet_does_not_count_when_it_is() -> None:
    times = {"unseen": format_time(NOW - timedelta(seconds=5))}
    evicted = plan.plan_evicted(times, [], NOW)
    assert (evicted.pending, evicted.recheck_seconds) == (times, 10.0)
    assert plan.count_healthy([pod("unseen")], plan.plan_evicted(times, [pod("unseen")], NOW).pending) == 0
    assert not plan.plan_evicted(times, [], NOW + timedelta(seconds=10)).pending


@pytest.mark.behaviour("DB-23")
def test_announcements_of_deletions_become_stale() -> None:
    assert plan.stale_in_seconds(pod("a", target="PreemptionByScheduler"), NOW) == 20.0
    assert plan.stale_in_seconds(pod("a", target="PreemptionByScheduler"), NOW + timedelta(seconds=30)) == 0.0
    assert plan.stale_in_seconds(pod("a", target="TerminationByKubelet"), NOW) is None
    assert plan.stale_in_seconds(pod("a", target="X", going=True), NOW) is None
    assert plan.stale_in_seconds(pod("a", target="X", phase="Failed"), NOW) is None
    assert plan.stale_in_seconds(pod("a"), NOW) is None
