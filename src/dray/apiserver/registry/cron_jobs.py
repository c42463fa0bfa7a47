"""CronJobs."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.validation.batch_v1 import validate_cron_job
from dray.apiserver.registry.columns import AGE, NAME, since
from dray.apiserver.registry.gated_fields import CRON_JOB_FIELDS
from dray.apiserver.registry.generic import GenericStatusStrategy, GenericStrategy
from dray.apiserver.registry.strategy import Column, ResourceDefinition

_NONE: Final = "<none>"


def _spec(cron_job: Document) -> Document:
    spec: Document = cron_job.get("spec") or {}
    return spec


def _containers(cron_job: Document, field: str) -> str:
    template = ((_spec(cron_job).get("jobTemplate") or {}).get("spec") or {}).get("template") or {}
    containers = (template.get("spec") or {}).get("containers") or ()
    return ",".join(item.get(field) or "" for item in containers)


def _last_schedule(cron_job: Document, now: datetime) -> str:
    last = (cron_job.get("status") or {}).get("lastScheduleTime")
    return since(last, now) if last else _NONE


CRON_JOBS: Final = ResourceDefinition(
    group="batch",
    resource="cronjobs",
    singular="cronjob",
    kind="CronJob",
    namespaced=True,
    versions=("v1",),
    storage_version="v1",
    strategy=GenericStrategy(validate_cron_job, initial_status={}, fields=CRON_JOB_FIELDS),
    status_strategy=GenericStatusStrategy(),
    short_names=("cj",),
    categories=("all",),
    columns=(
        NAME,
        Column("Schedule", "string", "When Jobs are created.", lambda obj, now: _spec(obj).get("schedule") or ""),
        Column("Timezone", "string", "Of the schedule.", lambda obj, now: _spec(obj).get("timeZone") or _NONE),
        Column("Suspend", "boolean", "Whether it pauses.", lambda obj, now: bool(_spec(obj).get("suspend"))),
        Column(
            "Active", "integer", "Running Jobs.", lambda obj, now: len((obj.get("status") or {}).get("active") or ())
        ),
        Column("Last Schedule", "string", "The time since the last Job.", _last_schedule),
        AGE,
        Column("Containers", "string", "Of the template.", lambda obj, now: _containers(obj, "name"), priority=1),
        Column("Images", "string", "Of the template.", lambda obj, now: _containers(obj, "image"), priority=1),
        Column("Selector", "string", "Of the template.", lambda obj, now: _NONE, priority=1),
    ),
)

DEFINITIONS: Final = (CRON_JOBS,)
