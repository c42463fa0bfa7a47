"""Deployments, ReplicaSets, DaemonSets and Jobs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from dray.api.defaults.workloads import DEFAULTERS
from dray.api.document import GroupVersionKind
from dray.api.validation.apps_v1 import (
    validate_daemon_set,
    validate_deployment,
    validate_deployment_update,
    validate_replica_set,
    validate_replica_set_update,
    validate_replica_status,
)
from dray.api.validation.batch_v1 import CONTROLLER_UID, JOB_NAME, validate_job, validate_job_update

Document = dict[str, Any]
NOW = datetime(2026, 11, 15, tzinfo=UTC)


def workload(group: str, kind: str, **spec: Any) -> Document:
    obj: Document = {
        "metadata": {"name": "w", "uid": "u"},
        "spec": {
            "selector": {"matchLabels": {"app": "w"}},
            "template": {
                "metadata": {"labels": {"app": "w"}},
                "spec": {"containers": [{"name": "c", "image": "pause"}]},
            },
            **spec,
        },
    }
    DEFAULTERS[GroupVersionKind(group, "v1", kind)](obj, NOW)
    return obj


def deployment(**spec: Any) -> Document:
    return workload("apps", "Deployment", **spec)


def replica_set(**spec: Any) -> Document:
    return workload("apps", "ReplicaSet", **spec)


def daemon_set(**spec: Any) -> Document:
    return workload("apps", "DaemonSet", **spec)


def job(**spec: Any) -> Document:
    labels = {CONTROLLER_UID: "u", JOB_NAME: "w"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "pause"}], "restartPolicy": "Never"},
    }
    selector = {"matchLabels": {CONTROLLER_UID: "u"}}
    return workload("batch", "Job", **{"selector": selector, "template": template, **spec})


def texts(errors: list[Any]) -> list[str]:
    return [str(error) for error in errors]


MISMATCH = "`selector` does not match template `labels`"
ONCE = {"containers": [{"name": "c", "image": "pause"}], "restartPolicy": "Never"}

ROWS: dict[str, tuple[Callable[[Document], list[Any]], Document, list[str]]] = {
    "deployment": (validate_deployment, deployment(), []),
    "replica set": (validate_replica_set, replica_set(), []),
    "daemon set": (validate_daemon_set, daemon_set(), []),
    "job": (validate_job, job(), []),
    "negative replicas": (
        validate_deployment,
        deployment(replicas=-1),
        ["spec.replicas: Invalid value: -1: must be greater than or equal to 0"],
    ),
    "no selector": (validate_deployment, deployment(selector=None), ["spec.selector: Required value"]),
    "empty selector": (
        validate_replica_set,
        replica_set(selector={}),
        ["spec.selector: Invalid value: {}: empty selector is invalid for deployment"],
    ),
    "other labels": (
        validate_daemon_set,
        daemon_set(selector={"matchLabels": {"app": "x"}}),
        [f'spec.template.metadata.labels: Invalid value: {{"app":"w"}}: {MISMATCH}'],
    ),
    "recreate with numbers": (
        validate_deployment,
        deployment(strategy={"type": "Recreate", "rollingUpdate": {}}),
        ["spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'"],
    ),
    "nothing may move": (
        validate_deployment,
        deployment(strategy={"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}}),
        ['spec.strategy.rollingUpdate.maxUnavailable: Invalid value: "0%": may not be 0 when `maxSurge` is 0'],
    ),
    "more than all": (
        validate_deployment,
        deployment(strategy={"rollingUpdate": {"maxUnavailable": "101%"}}),
        ['spec.strategy.rollingUpdate.maxUnavailable: Invalid value: "101%": must not be greater than 100%'],
    ),
    "deadline": (
        validate_deployment,
        deployment(progressDeadlineSeconds=5, minReadySeconds=5),
        ["spec.progressDeadlineSeconds: Invalid value: 5: must be greater than minReadySeconds"],
    ),
    "pods that end": (
        validate_replica_set,
        replica_set(template={"metadata": {"labels": {"app": "w"}}, "spec": ONCE}),
        ['spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"'],
    ),
    "daemons that end": (
        validate_daemon_set,
        daemon_set(template={"metadata": {"labels": {"app": "w"}}, "spec": {**ONCE, "restartPolicy": "OnFailure"}}),
        ['spec.template.spec.restartPolicy: Unsupported value: "OnFailure": supported values: "Always"'],
    ),
    "surge and unavailable": (
        validate_daemon_set,
        daemon_set(updateStrategy={"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}),
        [
            "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: 1: may not be set when maxUnavailable is "
            "non-zero"
        ],
    ),
    "status": (
        lambda obj: validate_replica_status(obj, obj),
        {"status": {"replicas": 1, "readyReplicas": 2}},
        ["status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas"],
    ),
    "job that never ends": (
        validate_job,
        job(
            template={
                "metadata": {"labels": {CONTROLLER_UID: "u", JOB_NAME: "w"}},
                "spec": {"containers": [{"name": "c", "image": "pause"}]},
            }
        ),
        ['spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"'],
    ),
    "indexed job without completions": (
        validate_job,
        job(completionMode="Indexed", parallelism=2),
        ["spec.completions: Required value: when completion mode is Indexed"],
    ),
    "job with foreign selector": (
        validate_job,
        job(selector={"matchLabels": {"app": "w"}}),
        [
            'spec.selector: Invalid value: {"matchLabels":{"app":"w"}}: `selector` not auto-generated',
            f'spec.template.metadata.labels: Invalid value: {{"{CONTROLLER_UID}":"u","{JOB_NAME}":"w"}}: {MISMATCH}',
        ],
    ),
}


@pytest.mark.parametrize(("validate", "document", "expected"), ROWS.values(), ids=ROWS)
def test_create(validate: Callable[[Document], list[Any]], document: Document, expected: list[str]) -> None:
    before = copy.deepcopy(document)
    assert texts(validate(document)) == expected
    assert document == before


@pytest.mark.parametrize(
    ("validate", "make"), [(validate_deployment_update, deployment), (validate_replica_set_update, replica_set)]
)
def test_selector_is_fixed(validate: Any, make: Any) -> None:
    old = make()
    new = make(selector={"matchExpressions": [{"key": "app", "operator": "Exists"}]})
    assert [(error.path, error.detail) for error in validate(new, old)] == [("spec.selector", "field is immutable")]
    assert validate(make(replicas=5), old) == []


def test_job_template_is_fixed_once_started() -> None:
    def moved(**spec: Any) -> Document:
        changed = job(**spec)
        changed["spec"]["template"]["spec"]["nodeSelector"] = {"zone": "x"}
        return changed

    (error,) = validate_job_update(moved(), job())
    assert (error.path, error.detail) == ("spec.template", "field is immutable")
    assert validate_job_update(moved(suspend=True), job(suspend=True)) == []
    assert validate_job_update(job(parallelism=3, completions=1), job(parallelism=1, completions=1)) == []


@pytest.mark.api_faults
@pytest.mark.parametrize(
    ("status", "allowed"),
    [
        ({}, True),
        ({"startTime": "t", "conditions": [{"type": "Suspended", "status": "True"}]}, True),
        ({"startTime": "t", "conditions": [{"type": "Suspended", "status": "False"}]}, False),
    ],
)
def test_resources_of_a_suspended_job_are_mutable(status: Document, allowed: bool) -> None:
    def sized(cpu: str, image: str = "i") -> Document:
        changed = job(suspend=True)
        container = changed["spec"]["template"]["spec"]["containers"][0]
        container |= {"image": image, "resources": {"requests": {"cpu": cpu}}}
        return {**changed, "status": status}

    assert (validate_job_update(sized("2"), sized("1")) == []) is allowed
    assert validate_job_update(sized("2", "other"), sized("1")) != []


def test_completions_of_an_elastic_job_move_with_its_parallelism() -> None:
    def elastic(size: int) -> Document:
        return job(completionMode="Indexed", completions=size, parallelism=size)

    assert validate_job_update(elastic(3), elastic(2)) == []
    (error,) = validate_job_update(job(completions=3), job(completions=2))
    assert str(error) == "spec.completions: Invalid value: 3: field is immutable"
