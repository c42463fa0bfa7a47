"""Jobs and CronJobs."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from dray.api.cron import CronError, parse_schedule
from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, invalid, not_supported, required
from dray.api.names import dns1123_label
from dray.api.selectors import LabelSelector, SelectorError
from dray.api.validation.core_v1_pod import validate_template
from dray.api.validation.meta_v1 import METADATA, validate_immutable, validate_label_selector
from dray.api.validation.scheduling_v1beta1 import validate_job_scheduling, validate_job_scheduling_update
from dray.api.validation.workload import MISMATCH, SPEC, not_negative, template_labels

CONTROLLER_UID: Final = "batch.kubernetes.io/controller-uid"
JOB_NAME: Final = "batch.kubernetes.io/job-name"
LEGACY_CONTROLLER_UID: Final = "controller-uid"
LEGACY_JOB_NAME: Final = "job-name"

_STATUS: Final = Path("status")
_INDEXED: Final = "Indexed"
_MODES: Final = ("Indexed", "NonIndexed")
_INDEXED_PARALLELISM_MAX: Final = 100_000
_FINISHING_POLICIES: Final = ("OnFailure", "Never")
_REPLACEMENT_POLICIES: Final = ("Failed", "TerminatingOrFailed")


def validate_job(job: Document) -> FieldErrors:
    """Validate a Job whose selector has been generated."""
    spec = job.get("spec") or {}
    return _validate_generated_selector(job, spec) + validate_job_spec(job, spec)


def _validate_generated_selector(job: Document, spec: Document) -> FieldErrors:
    """Validate that the selector is the Job's UID, unless it is set manually."""
    if spec.get("manualSelector"):
        return []
    metadata = job.get("metadata") or {}
    uid, name, labels = metadata.get("uid") or "", metadata.get("name") or "", template_labels(spec)
    generated = {CONTROLLER_UID: uid, LEGACY_CONTROLLER_UID: uid, JOB_NAME: name, LEGACY_JOB_NAME: name}
    path = SPEC.child("template", "metadata", "labels")
    errors: FieldErrors = []
    for key, value in ((CONTROLLER_UID, metadata.get("uid")), (JOB_NAME, metadata.get("name"))):
        if key not in labels:
            errors.append(required(path.key(key), f"must be '{value}'"))
        elif labels[key] != value:
            errors.append(invalid(path.key(key), labels[key], f"must be '{value}'"))
    match = ((spec.get("selector") or {}).get("matchLabels") or {}).items()
    if not match <= generated.items():
        errors.append(invalid(SPEC.child("selector"), spec.get("selector"), "`selector` not auto-generated"))
    return errors


def validate_job_spec(job: Document, spec: Document) -> FieldErrors:
    """Validate the numbers, the mode, the selector and the template of a Job."""
    errors = not_negative(
        spec,
        SPEC,
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    )
    errors += _validate_mode(job, spec)
    replacement = spec.get("podReplacementPolicy")
    if replacement is not None and replacement not in _REPLACEMENT_POLICIES:
        errors.append(not_supported(SPEC.child("podReplacementPolicy"), replacement, _REPLACEMENT_POLICIES))
    errors += _validate_selector(spec)
    errors += validate_template(spec.get("template"), SPEC.child("template"))
    if (scheduling := spec.get("scheduling")) is not None:
        errors += validate_job_scheduling(scheduling, spec.get("parallelism") or 0, SPEC.child("scheduling"))
    return errors + _validate_restart_policy(spec)


def _validate_mode(job: Document, spec: Document) -> FieldErrors:
    mode = spec.get("completionMode")
    if mode is not None and mode not in _MODES:
        return [not_supported(SPEC.child("completionMode"), mode, _MODES)]
    if mode != _INDEXED:
        return []
    errors: FieldErrors = []
    if spec.get("completions") is None:
        return [required(SPEC.child("completions"), f"when completion mode is {_INDEXED}")]
    parallelism = spec.get("parallelism") or 0
    if parallelism > _INDEXED_PARALLELISM_MAX:
        text = f"must be less than or equal to {_INDEXED_PARALLELISM_MAX} when completion mode is {_INDEXED}"
        errors.append(invalid(SPEC.child("parallelism"), parallelism, text))
    # The pods of an indexed Job are named after it, with the largest index as suffix.
    name = (job.get("metadata") or {}).get("name") or ""
    longest = f"{name}-{max((spec.get('completions') or 1) - 1, 0)}"
    for problem in dns1123_label(longest):
        text = f"will not able to create pod with invalid DNS label: {longest}"
        errors.append(invalid(METADATA.child("name"), name, f"{text}: {problem}"))
    return errors


def _validate_selector(spec: Document) -> FieldErrors:
    selector = spec.get("selector")
    if selector is None:
        return [required(SPEC.child("selector"))]
    errors = validate_label_selector(selector, SPEC.child("selector"))
    try:
        parsed = LabelSelector.from_document(selector)
    except SelectorError:
        return errors
    labels = template_labels(spec)
    if not parsed.matches(labels):
        errors.append(invalid(SPEC.child("template", "metadata", "labels"), labels, MISMATCH))
    return errors


def _validate_restart_policy(spec: Document) -> FieldErrors:
    policy = ((spec.get("template") or {}).get("spec") or {}).get("restartPolicy") or ""
    path = SPEC.child("template", "spec", "restartPolicy")
    if policy in ("", "Always"):
        return [required(path, 'valid values: "OnFailure", "Never"')]
    if policy not in _FINISHING_POLICIES:
        return [not_supported(path, policy, _FINISHING_POLICIES)]
    if spec.get("podFailurePolicy") is not None and policy != "Never":
        text = 'only "Never" is supported when podFailurePolicy is specified'
        return [invalid(path, policy, text)]
    return []


_FIXED: Final = (
    "selector",
    "completionMode",
    "podFailurePolicy",
    "backoffLimitPerIndex",
    "managedBy",
    "successPolicy",
)
# The scheduling directives of a suspended Job are mutable, and the resources of its containers.
_MUTABLE_WHILE_SUSPENDED: Final = ("nodeSelector", "tolerations", "affinity", "schedulingGates")
_CONTAINERS: Final = ("containers", "initContainers")


def validate_job_update(new: Document, old: Document) -> FieldErrors:
    """Validate a changed Job; its pods are immutable once it has started."""
    spec, previous = new.get("spec") or {}, old.get("spec") or {}
    errors = validate_job_spec(new, spec)
    for field in _FIXED:
        errors += validate_immutable(spec.get(field), previous.get(field), SPEC.child(field))
    errors += _validate_completions(spec, previous)
    scheduling = spec.get("scheduling") or {}, previous.get("scheduling") or {}
    errors += validate_job_scheduling_update(*scheduling, SPEC.child("scheduling"))
    template, before = spec.get("template"), previous.get("template")
    if previous.get("suspend") and _is_stopped(old.get("status") or {}):
        template, before = _directed(template), _directed(before)
    if template != before:
        errors.append(invalid(SPEC.child("template"), spec.get("template"), "field is immutable"))
    return errors


def _validate_completions(spec: Document, previous: Document) -> FieldErrors:
    elastic = spec.get("completionMode") == _INDEXED and spec.get("completions") == spec.get("parallelism")
    if elastic and spec.get("completions") is not None:
        return []
    return validate_immutable(spec.get("completions"), previous.get("completions"), SPEC.child("completions"))


def _directed(template: Document | None) -> Any:
    """Return the template without the fields that are mutable while the Job is suspended."""
    spec = (template or {}).get("spec") or {}
    directed = {name: value for name, value in spec.items() if name not in _MUTABLE_WHILE_SUSPENDED}
    for kind in _CONTAINERS:
        if spec.get(kind):
            directed[kind] = [{**container, "resources": None} for container in spec[kind]]
    return directed


def _is_stopped(status: Document) -> bool:
    """Return whether a suspended Job has not started, or has stopped all its Pods since."""
    suspended = any(
        item.get("type") == "Suspended" and item.get("status") == "True" for item in status.get("conditions") or ()
    )
    return not status.get("startTime") or suspended


def validate_job_status(job: Document, _old: Document) -> FieldErrors:
    """Validate the counts in a Job's status."""
    return not_negative(job.get("status") or {}, _STATUS, "active", "succeeded", "failed", "ready", "terminating")


# --- CronJobs.

# Jobs have eleven more characters, and their Pods more.
_CRON_JOB_NAME_MAX: Final = 52
_CONCURRENCY: Final = ("Allow", "Forbid", "Replace")


def validate_cron_job(cron_job: Document) -> FieldErrors:
    """Validate a CronJob: its name, schedule and the template of its Jobs."""
    spec, name = cron_job.get("spec") or {}, (cron_job.get("metadata") or {}).get("name") or ""
    errors = _validate_schedule(spec)
    if len(name) > _CRON_JOB_NAME_MAX:
        text = f"must be no more than {_CRON_JOB_NAME_MAX} characters"
        errors.append(invalid(METADATA.child("name"), name, text))
    errors += not_negative(spec, SPEC, "startingDeadlineSeconds")
    policy = spec.get("concurrencyPolicy") or ""
    if not policy:
        errors.append(required(SPEC.child("concurrencyPolicy")))
    elif policy not in _CONCURRENCY:
        errors.append(not_supported(SPEC.child("concurrencyPolicy"), policy, _CONCURRENCY))
    errors += _validate_job_template(cron_job, spec.get("jobTemplate") or {})
    return errors + not_negative(spec, SPEC, "successfulJobsHistoryLimit", "failedJobsHistoryLimit")


def _validate_schedule(spec: Document) -> FieldErrors:
    schedule, path = spec.get("schedule") or "", SPEC.child("schedule")
    errors: FieldErrors = []
    if not schedule:
        errors.append(required(path))
    elif "TZ" in schedule:
        text = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
        errors.append(invalid(path, schedule, text))
    else:
        try:
            parse_schedule(schedule)
        except CronError as error:
            errors.append(invalid(path, schedule, str(error)))
    return errors + _validate_time_zone(spec.get("timeZone"))


def _validate_time_zone(zone: str | None) -> FieldErrors:
    path = SPEC.child("timeZone")
    if zone is None:
        return []
    if not zone:
        return [invalid(path, zone, "timeZone must be nil or non-empty string")]
    if zone.lower() == "local":
        text = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
        return [invalid(path, zone, text)]
    if ".." in zone or zone[0] in "/\\":
        return [invalid(path, zone, "time: invalid location name")]
    return []


def _validate_job_template(cron_job: Document, template: Document) -> FieldErrors:
    spec = template.get("spec") or {}
    if spec.get("manualSelector"):
        path = SPEC.child("jobTemplate", "spec", "manualSelector")
        return [not_supported(path, True, ("nil", "false"))]  # noqa: FBT003 - the value of the field
    # The selector of a Job is generated when it is created.
    generated = spec | {"selector": {"matchLabels": template_labels(spec)}}
    return [
        dataclasses.replace(error, path=f"spec.jobTemplate.{error.path}")
        for error in validate_job_spec(cron_job, generated)
    ]
