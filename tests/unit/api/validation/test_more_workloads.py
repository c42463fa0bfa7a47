"""StatefulSets, ReplicationControllers, CronJobs and cron schedules."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from dray.api.cron import CronError, parse_schedule
from dray.api.validation.apps_v1 import (
    validate_replication_controller,
    validate_stateful_set,
    validate_stateful_set_status,
    validate_stateful_set_update,
)
from dray.api.validation.batch_v1 import validate_cron_job
from dray.apiserver.registry import builtin
from dray.apiserver.registry.cron_jobs import CRON_JOBS
from dray.apiserver.registry.stateful_sets import REPLICATION_CONTROLLERS, STATEFUL_SETS
from dray.apiserver.registry.strategy import ResourceDefinition
from dray.apiserver.scale import Scaler

Document = dict[str, Any]
NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)
LABELS = {"app": "web"}


def defaulted(definition: ResourceDefinition, document: Document) -> Document:
    default = builtin.endpoint(definition, "v1").default
    assert default is not None
    default(document, NOW)
    return document


def template(**spec: Any) -> Document:
    return {"metadata": {"labels": dict(LABELS)}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


def stateful_set(**spec: Any) -> Document:
    base = {"selector": {"matchLabels": dict(LABELS)}, "template": template()}
    return defaulted(STATEFUL_SETS, {"metadata": {"name": "web", "namespace": "default"}, "spec": base | spec})


def texts(errors: Any) -> list[str]:
    return [str(error) for error in errors]


def test_defaults_of_a_stateful_set() -> None:
    spec = stateful_set(volumeClaimTemplates=[{"metadata": {"name": "data"}}])["spec"]
    assert spec["podManagementPolicy"] == "OrderedReady"
    assert spec["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": 1}}
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert (spec["replicas"], spec["revisionHistoryLimit"]) == (1, 10)
    assert spec["volumeClaimTemplates"] == [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data"},
            "spec": {"volumeMode": "Filesystem"},
            "status": {"phase": "Pending"},
        }
    ]


STATEFUL: dict[str, tuple[Document, list[str]]] = {
    "valid": ({}, []),
    "policy": (
        {"podManagementPolicy": "Fast"},
        ["spec.podManagementPolicy: Invalid value: \"Fast\": must be 'OrderedReady' or 'Parallel'"],
    ),
    "strategy": (
        {"updateStrategy": {"type": "Now"}},
        ["spec.updateStrategy: Invalid value: {\"type\":\"Now\"}: must be 'RollingUpdate' or 'OnDelete'"],
    ),
    "partition": (
        {"updateStrategy": {"rollingUpdate": {"partition": -1}}},
        ["spec.updateStrategy.rollingUpdate.partition: Invalid value: -1: must be greater than or equal to 0"],
    ),
    "retention": (
        {"persistentVolumeClaimRetentionPolicy": {"whenScaled": "Keep"}},
        [
            'spec.persistentVolumeClaimRetentionPolicy.whenScaled: Unsupported value: "Keep": supported values: '
            '"Delete", "Retain"'
        ],
    ),
    "selector": (
        {"selector": {}},
        ["spec.selector: Invalid value: {}: empty selector is invalid for statefulset"],
    ),
    "replicas": ({"replicas": -1}, ["spec.replicas: Invalid value: -1: must be greater than or equal to 0"]),
    "restart policy": (
        {"template": template(restartPolicy="Never")},
        ['spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"'],
    ),
}


@pytest.mark.parametrize("name", STATEFUL)
def test_stateful_set(name: str) -> None:
    spec, expected = STATEFUL[name]
    assert texts(validate_stateful_set(stateful_set(**spec))) == expected


def test_most_of_a_stateful_set_is_immutable() -> None:
    stored = stateful_set(serviceName="a")
    scaled = stateful_set(serviceName="a", replicas=3, minReadySeconds=5)
    assert validate_stateful_set_update(scaled, stored) == []
    assert texts(validate_stateful_set_update(stateful_set(serviceName="b"), stored)) == [
        "spec: Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', "
        "'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are "
        "forbidden"
    ]


def test_status_of_a_stateful_set() -> None:
    assert (
        validate_stateful_set_status({"status": {"replicas": 2, "readyReplicas": 2, "availableReplicas": 1}}, {}) == []
    )
    assert texts(validate_stateful_set_status({"status": {"replicas": 1, "readyReplicas": 2}}, {})) == [
        "status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas"
    ]


def controller(**spec: Any) -> Document:
    made = {"metadata": {"name": "web", "namespace": "default"}, "spec": {"template": template(), **spec}}
    return defaulted(REPLICATION_CONTROLLERS, made)


def test_replication_controller() -> None:
    made = controller()
    assert made["spec"]["selector"] == LABELS
    assert made["spec"]["replicas"] == 1
    assert made["metadata"]["labels"] == LABELS
    assert validate_replication_controller(made) == []
    assert texts(validate_replication_controller(controller(selector={"app": "other"}))) == [
        'spec.template.metadata.labels: Invalid value: {"app":"web"}: `selector` does not match template `labels`'
    ]
    unlabelled = controller(template={"spec": template()["spec"]})
    assert texts(validate_replication_controller(unlabelled)) == ["spec.selector: Required value"]
    scale = Scaler().scale_of(made | {"status": {"replicas": 1}})
    assert scale["status"] == {"replicas": 1, "selector": "app=web"}
    assert [column.cell(made, NOW) for column in REPLICATION_CONTROLLERS.columns] == [
        "web",
        1,
        0,
        0,
        "<unknown>",
        "c",
        "i",
        "app=web",
    ]


def cron_job(name: str = "nightly", **spec: Any) -> Document:
    pods = {"spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}}
    base = {"schedule": "0 3 * * *", "jobTemplate": {"spec": {"template": pods}}}
    made = {"metadata": {"name": name, "namespace": "default"}, "spec": copy.deepcopy(base) | spec}
    return defaulted(CRON_JOBS, made)


CRON_SPECS: dict[str, tuple[Document, list[str]]] = {
    "valid": ({}, []),
    "none": ({"schedule": ""}, ["spec.schedule: Required value"]),
    "words": (
        {"schedule": "error"},
        ['spec.schedule: Invalid value: "error": expected exactly 5 fields, found 1: [error]'],
    ),
    "zone in the schedule": (
        {"schedule": "TZ=UTC 0 3 * * *"},
        [
            'spec.schedule: Invalid value: "TZ=UTC 0 3 * * *": cannot use TZ or CRON_TZ in schedule, use timeZone '
            "field instead"
        ],
    ),
    "zone": ({"timeZone": "Europe/Berlin"}, []),
    "empty zone": (
        {"timeZone": ""},
        ['spec.timeZone: Invalid value: "": timeZone must be nil or non-empty string'],
    ),
    "local zone": (
        {"timeZone": "LOCAL"},
        [
            'spec.timeZone: Invalid value: "LOCAL": timeZone must be an explicit time zone as defined in '
            "https://www.iana.org/time-zones"
        ],
    ),
    "policy": (
        {"concurrencyPolicy": "Maybe"},
        ['spec.concurrencyPolicy: Unsupported value: "Maybe": supported values: "Allow", "Forbid", "Replace"'],
    ),
    "deadline": (
        {"startingDeadlineSeconds": -1},
        ["spec.startingDeadlineSeconds: Invalid value: -1: must be greater than or equal to 0"],
    ),
    "manual selector": (
        {"jobTemplate": {"spec": {"manualSelector": True}}},
        ['spec.jobTemplate.spec.manualSelector: Unsupported value: true: supported values: "nil", "false"'],
    ),
    "restart policy": (
        {"jobTemplate": {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}}},
        ['spec.jobTemplate.spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"'],
    ),
}


@pytest.mark.parametrize("name", CRON_SPECS)
def test_cron_job(name: str) -> None:
    spec, expected = CRON_SPECS[name]
    assert texts(validate_cron_job(cron_job(**spec))) == expected


def test_the_name_of_a_cron_job_is_short() -> None:
    assert texts(validate_cron_job(cron_job("a" * 53)))[0].endswith("must be no more than 52 characters")


def test_columns_of_a_cron_job() -> None:
    cells = [column.cell(cron_job(), NOW) for column in CRON_JOBS.columns]
    assert cells == ["nightly", "0 3 * * *", "<none>", False, 0, "<none>", "<unknown>", "c", "i", "<none>"]


def test_schedules() -> None:
    parsed = parse_schedule("*/15 8-10 1,15 jan MON")
    assert parsed.minutes == {0, 15, 30, 45}
    assert parsed.hours == {8, 9, 10}
    assert parsed.days_of_month == {1, 15}
    assert (parsed.months, parsed.days_of_week, parsed.is_any_day) == ({1}, {1}, False)
    assert parse_schedule("@hourly") == parse_schedule("0 * * * *")
    assert parse_schedule("@every 1h30m").every_seconds == 5400
    assert parse_schedule("5/20 * * * *").minutes == {5, 25, 45}


# From robfig/cron's tests.
BAD_SCHEDULES = {
    "": "empty spec string",
    "60 * * * *": "end of range (60) above maximum (59): 60",
    "* * 0 * *": "beginning of range (0) below minimum (1): 0",
    "5-3 * * * *": "beginning of range (5) beyond end of range (3): 5-3",
    "x * * * *": 'failed to parse int from x: strconv.Atoi: parsing "x": invalid syntax',
    "*/0 * * * *": "step of range should be a positive number: */0",
    "1-2-3 * * * *": "too many hyphens: 1-2-3",
    "1/2/3 * * * *": "too many slashes: 1/2/3",
    "@fortnightly": "unrecognized descriptor: @fortnightly",
    "@every soon": 'failed to parse duration @every soon: time: invalid duration "soon"',
}


@pytest.mark.parametrize("text", BAD_SCHEDULES)
def test_bad_schedules(text: str) -> None:
    with pytest.raises(CronError) as raised:
        parse_schedule(text)
    assert str(raised.value) == BAD_SCHEDULES[text]
