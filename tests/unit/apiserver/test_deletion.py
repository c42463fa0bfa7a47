"""What a delete does to an object: at once, later, or after a grace period."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from dray.api.document import Document
from dray.apiserver.deletion import Outcome, is_finished, plan_deletion
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.options import DeleteOptions
from dray.apiserver.pod_grace import claims_without_grace
from dray.apiserver.registry import builtin

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ENDPOINTS = {definition.resource: definition for definition in builtin.definitions() if not definition.group}


def endpoint(resource: str) -> Endpoint:
    return builtin.endpoint(ENDPOINTS[resource], "v1")


NO_GRACE: Document = {"spec": {"nodeName": "n", "terminationGracePeriodSeconds": 0}}


@dataclass(frozen=True)
class Case:
    resource: str
    outcome: Outcome
    metadata: dict[str, Any] = field(default_factory=dict)
    rest: dict[str, Any] = field(default_factory=dict)
    options: DeleteOptions = field(default_factory=DeleteOptions)
    expected: dict[str, Any] = field(default_factory=dict)


MARK = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0}
BOUND = {"spec": {"nodeName": "n", "terminationGracePeriodSeconds": 30}}
CASES = {
    "nothing holds it": Case("configmaps", Outcome.REMOVE),
    "a finalizer holds it": Case("configmaps", Outcome.WRITE, {"finalizers": ["a/b"]}, expected=MARK),
    "deleted twice": Case("configmaps", Outcome.KEEP, {"finalizers": ["a/b"], **MARK}, expected=MARK),
    "foreground waits for the garbage collector": Case(
        "configmaps",
        Outcome.WRITE,
        options=DeleteOptions(propagation_policy="Foreground"),
        expected={"finalizers": ["foregroundDeletion"], **MARK},
    ),
    "orphan waits for the garbage collector": Case(
        "configmaps",
        Outcome.WRITE,
        options=DeleteOptions(orphan_dependents=True),
        expected={"finalizers": ["orphan"], **MARK},
    ),
    "background after all": Case(
        "configmaps",
        Outcome.REMOVE,
        {"finalizers": ["foregroundDeletion"], **MARK},
        options=DeleteOptions(propagation_policy="Background"),
    ),
    "a running pod gets its grace": Case(
        "pods",
        Outcome.WRITE,
        {"generation": 1},
        BOUND,
        expected={
            "deletionTimestamp": "2026-01-01T00:00:30Z",
            "deletionGracePeriodSeconds": 30,
            "generation": 2,
        },
    ),
    "a pod without a node goes at once": Case("pods", Outcome.REMOVE, {}, {"spec": {}}),
    "a finished pod goes at once": Case("pods", Outcome.REMOVE, {}, {**BOUND, "status": {"phase": "Succeeded"}}),
    "no grace asked for": Case("pods", Outcome.REMOVE, {}, BOUND, options=DeleteOptions(grace_period_seconds=0)),
    "a pod that wants no grace goes at once": Case("pods", Outcome.REMOVE, {}, NO_GRACE),
    "longer than already granted changes nothing": Case(
        "pods",
        Outcome.KEEP,
        {"deletionTimestamp": "2026-01-01T00:00:10Z", "deletionGracePeriodSeconds": 10},
        BOUND,
        expected={"deletionTimestamp": "2026-01-01T00:00:10Z", "deletionGracePeriodSeconds": 10},
    ),
    "shorter than granted": Case(
        "pods",
        Outcome.WRITE,
        {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30},
        BOUND,
        options=DeleteOptions(grace_period_seconds=5),
        expected={"deletionTimestamp": "2026-01-01T00:00:05Z", "deletionGracePeriodSeconds": 5},
    ),
    "a namespace waits for its contents": Case(
        "namespaces",
        Outcome.WRITE,
        {},
        {"spec": {"finalizers": ["kubernetes"]}},
        expected={"deletionTimestamp": "2026-01-01T00:00:00Z"},
    ),
}


@pytest.mark.behaviour("CL-63")
def test_a_pod_with_classic_claims_gives_itself_a_second() -> None:
    claims = [{"name": "c", "resourceClaimName": "shared"}, {"name": "own", "template": {}}]
    pod: Document = {"metadata": {"name": "x"}, "spec": {**NO_GRACE["spec"], "resourceClaims": claims}}
    assert claims_without_grace(pod) == ["shared", "x-own"]
    planned = plan_deletion(endpoint("pods"), pod, DeleteOptions(), NOW, least_grace=1)
    assert planned.outcome is Outcome.WRITE
    assert planned.document["metadata"]["deletionGracePeriodSeconds"] == 1
    by_force = DeleteOptions(grace_period_seconds=0)
    assert plan_deletion(endpoint("pods"), pod, by_force, NOW, least_grace=1).outcome is Outcome.REMOVE
    assert claims_without_grace({**pod, "spec": {"resourceClaims": claims}}) == []


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_delete_is_planned(case: Case) -> None:
    old: Document = {"metadata": {"name": "x", **case.metadata}, **case.rest}
    before = copy.deepcopy(old)
    planned = plan_deletion(endpoint(case.resource), old, case.options, NOW)
    assert old == before
    assert planned.outcome is case.outcome
    if planned.outcome is not Outcome.REMOVE:
        assert planned.document["metadata"] == {"name": "x", **case.metadata, **case.expected}


@pytest.mark.parametrize(
    ("resource", "document", "finished"),
    [
        ("configmaps", {"metadata": {}}, False),
        ("configmaps", {"metadata": {**MARK}}, True),
        ("configmaps", {"metadata": {**MARK, "finalizers": ["a/b"]}}, False),
        ("pods", {"metadata": {**MARK, "deletionGracePeriodSeconds": 30}}, False),
        ("namespaces", {"metadata": {**MARK}, "spec": {"finalizers": ["kubernetes"]}}, False),
        ("namespaces", {"metadata": {**MARK}, "spec": {}}, True),
    ],
)
def test_a_write_ends_what_waits_for_nothing(resource: str, document: Document, finished: bool) -> None:
    assert is_finished(endpoint(resource), document) is finished
