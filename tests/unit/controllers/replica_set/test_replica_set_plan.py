"""How many Pods a ReplicaSet creates or deletes, and what it reports."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from dray.api.types.apps_v1 import ReplicaSet, ReplicaSetSpec, ReplicaSetStatus
from dray.api.types.core_v1 import Pod, PodTemplateSpec
from dray.api.types.meta_v1 import LabelSelector, ObjectMeta
from dray.controllers.replica_set import plan
from tests.unit.controllers.pod_control.pods import NOW, pod

WEB = {"app": "web"}


def replica_set(replicas: int | None = 2, *, deleting: bool = False, **spec: Any) -> ReplicaSet:
    return ReplicaSet(
        metadata=ObjectMeta(
            name="web", namespace="team", uid="u1", generation=4, deletion_timestamp=NOW if deleting else None
        ),
        spec=ReplicaSetSpec(
            replicas=replicas,
            selector=LabelSelector(match_labels=WEB),
            template=PodTemplateSpec(metadata=ObjectMeta(labels={**WEB, "hash": "h"})),
            **spec,
        ),
    )


def names(pods: Sequence[Pod]) -> list[str]:
    return [item.metadata.name or "" for item in pods]


@pytest.mark.parametrize(
    ("wanted", "pods", "create", "delete"),
    [
        pytest.param(2, [], 2, [], id="none yet"),
        pytest.param(None, [], 1, [], id="one is the default"),
        pytest.param(0, [], 0, [], id="none wanted"),
        pytest.param(2, [pod("a"), pod("b")], 0, [], id="right"),
        pytest.param(2, [pod("a"), pod("b", phase="Failed"), pod("c", deleting=True)], 1, [], id="only active ones"),
        pytest.param(1, [pod("a", ready_for=9.0), pod("b")], 0, ["b"], id="one too many"),
        pytest.param(0, [pod("a"), pod("b")], 0, ["a", "b"], id="all too many"),
        pytest.param(600, [], 500, [], id="at most a burst"),
    ],
)
def test_pods(wanted: int | None, pods: list[Pod], create: int, delete: list[str]) -> None:
    result = plan.plan_pods(replica_set(wanted), pods, lambda: pods, NOW)
    assert (result.create, names(result.delete)) == (create, delete)


def test_at_most_a_burst_goes() -> None:
    pods = [pod(f"p{number}") for number in range(600)]
    assert len(plan.plan_pods(replica_set(0), pods, lambda: pods, NOW).delete) == 500


def test_related_pods_are_asked_for_only_when_some_must_go() -> None:
    def related() -> list[Pod]:
        raise AssertionError

    plan.plan_pods(replica_set(3), [pod("a")], related, NOW)


def test_nothing_is_done_for_one_that_is_deleted() -> None:
    assert plan.plan_pods(replica_set(5, deleting=True), [pod("a")], lambda: [], NOW) == plan.Plan()


def test_status() -> None:
    pods = [
        pod("a", labels={**WEB, "hash": "h"}, ready_for=60.0),
        pod("b", labels=WEB, ready_for=3.0),
        pod("c", labels=WEB),
        pod("d", deleting=True),
        pod("e", phase="Failed"),
    ]
    assert plan.status_of(replica_set(3, min_ready_seconds=10), pods, None, NOW) == ReplicaSetStatus(
        replicas=3,
        fully_labeled_replicas=1,
        ready_replicas=2,
        available_replicas=1,
        terminating_replicas=1,
        observed_generation=4,
    )


def test_a_failure_is_reported_once_and_cleared() -> None:
    before = replica_set()
    failure = plan.Failure("FailedCreate", "no")
    status = plan.status_of(before, [], failure, NOW)
    (condition,) = status.conditions
    assert (condition.type, condition.status, condition.reason, condition.message) == (
        "ReplicaFailure",
        "True",
        "FailedCreate",
        "no",
    )
    failing = msgspec.structs.replace(before, status=status)
    later = plan.status_of(failing, [], plan.Failure("FailedCreate", "still no"), NOW + timedelta(seconds=60))
    assert plan.with_status(failing, later) is None
    assert plan.status_of(failing, [], None, NOW).conditions == ()
