"""Whether a budget allows an eviction, and the texts that say why not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dray.api import disruption
from dray.api.document import Document
from dray.api.errors import APIError

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def budget(spec: Document | None = None, **status: Any) -> Document:
    filled = {"observedGeneration": 1, "currentHealthy": 3, "desiredHealthy": 2, "expectedPods": 3} | status
    return {"metadata": {"name": "pdb", "namespace": "ns", "generation": 1}, "spec": spec or {}, "status": filled}


def pod(labels: dict[str, str] | None = None, *, ready: bool = True, phase: str = "Running") -> Document:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": {"name": "p", "namespace": "ns", **({"labels": labels} if labels else {})},
        "status": {"phase": phase, "conditions": conditions},
    }


def refusal(given: Document) -> APIError:
    with pytest.raises(APIError) as caught:
        disruption.charge(given, "p", NOW)
    return caught.value


@pytest.mark.behaviour("DB-12")
@pytest.mark.parametrize(
    ("selector", "labels", "expected"),
    [
        (None, {"a": "b"}, False),
        ({}, {"a": "b"}, True),
        ({}, {}, True),
        ({"matchLabels": {"a": "b"}}, {"a": "b"}, True),
        ({"matchLabels": {"a": "b"}}, {}, False),
        ({"matchExpressions": [{"key": "a", "operator": "Bad"}]}, {"a": "b"}, False),
    ],
)
def test_no_selector_matches_nothing_and_an_empty_one_everything(selector: Any, labels: Any, expected: bool) -> None:
    spec = {} if selector is None else {"selector": selector}
    assert bool(disruption.budgets_of([budget(spec)], pod(labels))) is expected


@pytest.mark.behaviour("DB-26")
@pytest.mark.parametrize(
    ("phase", "free"), [("Succeeded", True), ("Failed", True), ("Pending", True), ("Running", False)]
)
def test_no_budget_is_asked_for_pods_that_do_not_count(phase: str, free: bool) -> None:
    assert disruption.needs_no_budget(pod(phase=phase)) is free
    going = pod()
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert disruption.needs_no_budget(going)


@pytest.mark.behaviour("DB-28")
def test_unhealthy_pods_go_when_the_policy_or_the_health_of_the_others_allows_it() -> None:
    assert disruption.frees_unhealthy(budget({"unhealthyPodEvictionPolicy": "AlwaysAllow"}, currentHealthy=0))
    assert disruption.frees_unhealthy(budget(currentHealthy=2))
    assert not disruption.frees_unhealthy(budget(currentHealthy=1))
    assert not disruption.frees_unhealthy(budget(currentHealthy=0, desiredHealthy=0))


@pytest.mark.behaviour("DB-29", "DB-30")
def test_a_budget_that_was_not_seen_yet() -> None:
    error = refusal(budget(observedGeneration=0, disruptionsAllowed=1))
    assert (error.code, error.message, error.retry_after_seconds) == (429, disruption.DENIED, 10)
    assert error.status()["details"] == {
        "causes": [
            {
                "reason": "DisruptionBudget",
                "message": "The disruption budget pdb is still being processed by the server.",
            }
        ],
        "retryAfterSeconds": 10,
    }


@pytest.mark.behaviour("DB-29")
def test_budgets_that_are_broken() -> None:
    negative = refusal(budget(disruptionsAllowed=-1))
    assert (negative.code, negative.message) == (
        403,
        'poddisruptionbudget.policy "pdb" is forbidden: pdb disruptions allowed is negative',
    )
    many = {f"p{number}": "2026-01-01T00:00:00Z" for number in range(2001)}
    full = refusal(budget(disruptionsAllowed=1, disruptedPods=many))
    assert full.message.endswith("DisruptedPods map too big - too many evictions not confirmed by PDB controller")
    many.popitem()
    assert disruption.charge(budget(disruptionsAllowed=1, disruptedPods=many), "p", NOW)


@pytest.mark.behaviour("DB-30", "DB-33")
@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (
            {"conditions": [{"type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed", "message": "m"}]},
            "The disruption budget pdb does not allow evicting pods currently because it failed sync: m",
        ),
        ({"currentHealthy": 2}, "The disruption budget pdb needs 2 healthy pods and has 2 currently"),
        (
            {"conditions": [{"type": "DisruptionAllowed", "status": "False", "reason": "R", "message": "m"}]},
            "The disruption budget pdb does not allow evicting pods currently (R): m",
        ),
        ({}, "The disruption budget pdb does not allow evicting pods currently"),
    ],
)
def test_why_nothing_is_allowed(status: Document, cause: str) -> None:
    error = refusal(budget(disruptionsAllowed=0, **status))
    assert (error.code, error.message, error.retry_after_seconds) == (429, disruption.DENIED, None)
    assert error.status()["details"] == {"causes": [{"reason": "DisruptionBudget", "message": cause}]}


@pytest.mark.behaviour("DB-31")
def test_an_eviction_is_charged_and_the_last_one_changes_the_condition() -> None:
    given = budget(disruptionsAllowed=2)
    once = disruption.charge(given, "p", NOW)
    assert given["status"]["disruptionsAllowed"] == 2
    assert once["status"]["disruptionsAllowed"] == 1
    assert once["status"]["disruptedPods"] == {"p": "2026-01-01T00:00:00Z"}
    assert "conditions" not in once["status"]
    twice = disruption.charge(once, "q", NOW)
    assert twice["status"]["disruptedPods"].keys() == {"p", "q"}
    (condition,) = twice["status"]["conditions"]
    assert (condition["status"], condition["reason"], condition["observedGeneration"]) == (
        "False",
        "InsufficientPods",
        1,
    )
    error = disruption.too_many_conflicts("pdb")
    assert (error.code, error.message, error.retry_after_seconds) == (
        504,
        'Timeout: couldn\'t update PodDisruptionBudget "pdb" due to conflicts',
        10,
    )
