"""Jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.document import Document, metadata_of
from dray.api.pod_warnings import workload_warnings
from dray.api.timestamps import parse_time
from dray.api.validation.batch_v1 import (
    CONTROLLER_UID,
    JOB_NAME,
    LEGACY_CONTROLLER_UID,
    LEGACY_JOB_NAME,
    validate_job,
    validate_job_status,
    validate_job_update,
)
from dray.apiserver.registry.columns import AGE, NAME, TEMPLATE_COLUMNS, human_duration, status_number
from dray.apiserver.registry.gated_fields import JOB_FIELDS
from dray.apiserver.registry.generic import GenericStatusStrategy, GenericStrategy
from dray.apiserver.registry.strategy import Column, ResourceDefinition, WriteContext


class JobStrategy(GenericStrategy):
    """Strategy of Jobs; the selector is the Job's UID unless it is set manually."""

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Generate the selector; the UID has been assigned before."""
        super().prepare_for_create(obj, context)
        spec = obj.get("spec") or {}
        if not spec.get("manualSelector"):
            _generate_selector(obj, spec)


def _generate_selector(job: Document, spec: Document) -> None:
    metadata = metadata_of(job)
    name, uid = metadata.get("name") or "", metadata.get("uid") or ""
    template = spec.setdefault("template", {})
    labels = metadata_of(template).get("labels")
    if labels is None:
        labels = metadata_of(template)["labels"] = {}
    for key, value in (
        (LEGACY_JOB_NAME, name),
        (JOB_NAME, name),
        (LEGACY_CONTROLLER_UID, uid),
        (CONTROLLER_UID, uid),
    ):
        labels.setdefault(key, value)
    selector = spec["selector"] = spec.get("selector") or {}
    selector.setdefault("matchLabels", {}).setdefault(CONTROLLER_UID, uid)


# The first condition that is true determines the state; deletion comes after the final two.
_FINAL: Final = {"Complete": "Complete", "Failed": "Failed"}
_OPEN: Final = {
    "Suspended": "Suspended",
    "FailureTarget": "FailureTarget",
    "SuccessCriteriaMet": "SuccessCriteriaMet",
}


def _status(job: Document, now: datetime) -> str:
    conditions = (job.get("status") or {}).get("conditions") or ()
    true = {item.get("type") for item in conditions if item.get("status") == "True"}
    for condition, state in _FINAL.items():
        if condition in true:
            return state
    if (job.get("metadata") or {}).get("deletionTimestamp"):
        return "Terminating"
    return next((state for condition, state in _OPEN.items() if condition in true), "Running")


def _completions(job: Document, now: datetime) -> str:
    spec, done = job.get("spec") or {}, status_number(job, "succeeded")
    if spec.get("completions") is not None:
        return f"{done}/{spec['completions']}"
    parallelism = spec.get("parallelism") or 0
    return f"{done}/1 of {parallelism}" if parallelism > 1 else f"{done}/1"


def _duration(job: Document, now: datetime) -> str:
    status = job.get("status") or {}
    if not status.get("startTime"):
        return ""
    end = parse_time(status["completionTime"]) if status.get("completionTime") else now
    return human_duration(end - parse_time(status["startTime"]))


JOBS: Final = ResourceDefinition(
    group="batch",
    resource="jobs",
    singular="job",
    kind="Job",
    namespaced=True,
    versions=("v1",),
    storage_version="v1",
    strategy=JobStrategy(
        validate_job, validate_job_update, initial_status={}, warn=workload_warnings, fields=JOB_FIELDS
    ),
    status_strategy=GenericStatusStrategy(validate_job_status),
    categories=("all",),
    columns=(
        NAME,
        Column("Status", "string", "The state of the Job.", _status),
        Column("Completions", "string", "Succeeded pods / completions.", _completions),
        Column("Duration", "string", "The run time of the Job.", _duration),
        AGE,
        *TEMPLATE_COLUMNS,
    ),
    selectable_fields={"status.successful": lambda job: str(status_number(job, "succeeded"))},
)

DEFINITIONS: Final = (JOBS,)
