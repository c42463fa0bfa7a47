"""What a CronJob has to do: the Job to start, finished Jobs to delete, and its status. Pure, time is an argument."""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from email.utils import format_datetime
from typing import Final, NamedTuple

import msgspec

from dray.api.cron import CronError, Schedule, latest_time, next_time, parse_schedule
from dray.api.document import GroupVersionKind
from dray.api.timestamps import seconds_after
from dray.api.types.batch_v1 import CronJob, CronJobStatus, Job
from dray.api.types.core_v1 import ObjectReference
from dray.api.types.meta_v1 import ObjectMeta
from dray.client.objects import controller_of, controller_reference

KIND: Final = GroupVersionKind("batch", "v1", "CronJob")
NORMAL, WARNING = "Normal", "Warning"
SCHEDULED_TIMESTAMP: Final = "batch.kubernetes.io/cronjob-scheduled-timestamp"
# Kubernetes wakes this long after a scheduled time, so that clocks that differ a little agree that it has come.
WAKE_DELAY_SECONDS: Final = 0.1
# More missed times than these are a sign of a wrong clock or a long outage.
_MISSED_MAX: Final = 100
_TOO_MANY_MISSED: Final = (
    "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew"
)
_STILL_ACTIVE: Final = "Not starting job because prior execution is running and concurrency policy is Forbid"


class Event(NamedTuple):
    """An event about the CronJob."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Start:
    """The scheduled time of a Job to start now, if any, when to look again, and what to report."""

    time: datetime | None = None
    wake: datetime | None = None
    events: tuple[Event, ...] = ()
    zone: tzinfo = UTC


@dataclass(slots=True)
class StatusPlan:
    """The status that follows from the Jobs, and what to report."""

    status: CronJobStatus
    events: list[Event] = field(default_factory=list)
    # Active Jobs that the cache lacks: a live read decides.
    missing: list[ObjectReference] = field(default_factory=list)


def plan_status(cron_job: CronJob, jobs: Iterable[Job]) -> StatusPlan:
    """Compare the list of active Jobs with the Jobs that the CronJob controls."""
    active = {reference.uid or "": reference for reference in cron_job.status.active}
    last_successful = cron_job.status.last_successful_time
    plan = StatusPlan(cron_job.status)
    seen: set[str] = set()
    for job in sorted(jobs, key=lambda item: item.metadata.name or ""):
        uid, name, ended = job.metadata.uid or "", job.metadata.name, final_condition(job)
        seen.add(uid)
        if uid not in active and not ended:
            text = f"Saw a job that the controller did not create or forgot: {name}"
            plan.events.append(Event(WARNING, "UnexpectedJob", text))
        elif uid in active and ended:
            del active[uid]
            text = f"Saw completed job: {name}, condition: {ended}"
            plan.events.append(Event(NORMAL, "SawCompletedJob", text))
        completed = job.status.completion_time
        if ended == "Complete" and completed is not None and (last_successful is None or completed > last_successful):
            last_successful = completed
    plan.missing.extend(reference for uid, reference in active.items() if uid not in seen)
    plan.status = msgspec.structs.replace(
        cron_job.status, active=tuple(active.values()), last_successful_time=last_successful
    )
    return plan


def without(plan: StatusPlan, reference: ObjectReference) -> None:
    """Remove an active Job that does not exist any more from the status."""
    text = f"Active job went missing: {reference.name}"
    plan.events.append(Event(NORMAL, "MissingJob", text))
    kept = tuple(item for item in plan.status.active if item.uid != reference.uid)
    plan.status = msgspec.structs.replace(plan.status, active=kept)


def plan_history(cron_job: CronJob, jobs: Iterable[Job]) -> list[Job]:
    """Return the finished Jobs beyond the limits of the history, the oldest first."""
    finished: Mapping[str, list[Job]] = {"Complete": [], "Failed": []}
    for job in jobs:
        ended = final_condition(job)
        if ended:
            finished[ended].append(job)
    spec = cron_job.spec
    limits = {"Complete": spec.successful_jobs_history_limit, "Failed": spec.failed_jobs_history_limit}
    deleted: list[Job] = []
    for ended, limit in limits.items():
        found = sorted(finished[ended], key=_start_order)
        if limit is not None and len(found) > limit:
            deleted += found[: len(found) - limit]
    return deleted


def _start_order(job: Job) -> tuple[datetime, str]:
    started = job.status.start_time or job.metadata.creation_timestamp
    return started or datetime.min.replace(tzinfo=UTC), job.metadata.name or ""


def plan_start(cron_job: CronJob, active: Sequence[ObjectReference], last: datetime | None, now: datetime) -> Start:
    """Return the Job to start now, and when the next one is due; `last` is the latest scheduled time already served."""
    spec = cron_job.spec
    if cron_job.metadata.deletion_timestamp is not None or spec.suspend:
        return Start()
    parsed = _parse(cron_job)
    if isinstance(parsed, Event):
        return Start(events=(parsed,))
    schedule, zone = parsed
    earliest = last or cron_job.metadata.creation_timestamp or now
    deadline = spec.starting_deadline_seconds
    since = earliest if deadline is None else max(earliest, seconds_after(now, -deadline))
    due, following = latest_time(schedule, since, now, zone), next_time(schedule, now, zone)
    if due is None:
        missed = latest_time(schedule, earliest, since, zone)
        return Start(wake=following, events=() if missed is None else (_missed(missed),), zone=zone)
    events = _report_missed(schedule, since, now, zone) if deadline is None else ()
    if any(reference.name == job_name(cron_job, due) for reference in active):
        return Start(wake=following, events=events, zone=zone)
    if spec.concurrency_policy == "Forbid" and active:
        return Start(wake=following, events=(*events, Event(NORMAL, "JobAlreadyActive", _STILL_ACTIVE)), zone=zone)
    return Start(due.astimezone(UTC), following, events, zone)


def _parse(cron_job: CronJob) -> tuple[Schedule, tzinfo] | Event:
    spec = cron_job.spec
    try:
        zone: tzinfo = zoneinfo.ZoneInfo(spec.time_zone) if spec.time_zone else UTC
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        return Event(WARNING, "UnknownTimeZone", f'invalid timeZone: "{spec.time_zone}": {error}')
    try:
        return parse_schedule(spec.schedule), zone
    except CronError as error:
        return Event(WARNING, "UnparseableSchedule", f'unparseable schedule: "{spec.schedule}" : {error}')


def _report_missed(schedule: Schedule, earliest: datetime, now: datetime, zone: tzinfo) -> tuple[Event, ...]:
    first = next_time(schedule, earliest, zone)
    second = None if first is None else next_time(schedule, first, zone)
    if first is None or second is None or (now - first) // (second - first) < _MISSED_MAX:
        return ()
    return (Event(WARNING, "TooManyMissedTimes", _TOO_MANY_MISSED),)


def _missed(time: datetime) -> Event:
    return Event(WARNING, "MissSchedule", f"Missed scheduled time to start a job: {format_datetime(time)}")


def job_name(cron_job: CronJob, scheduled: datetime) -> str:
    """Return the name of the Job for a scheduled time: the same for every attempt to create it."""
    return f"{cron_job.metadata.name}-{int(scheduled.timestamp()) // 60}"


def make_job(cron_job: CronJob, scheduled: datetime, zone: tzinfo) -> Job:
    """Return the Job for a scheduled time."""
    template = cron_job.spec.job_template
    stamp = scheduled.astimezone(zone).isoformat(timespec="seconds").replace("+00:00", "Z")
    return Job(
        api_version="batch/v1",
        kind="Job",
        metadata=ObjectMeta(
            name=job_name(cron_job, scheduled),
            namespace=cron_job.metadata.namespace,
            labels=template.metadata.labels,
            annotations={**(template.metadata.annotations or {}), SCHEDULED_TIMESTAMP: stamp},
            owner_references=(controller_reference(KIND, cron_job.metadata),),
        ),
        spec=template.spec,
    )


def reference_to(job: Job) -> ObjectReference:
    """Return the entry of a Job in the list of active ones."""
    return ObjectReference(
        api_version="batch/v1",
        kind="Job",
        name=job.metadata.name,
        namespace=job.metadata.namespace,
        uid=job.metadata.uid,
        resource_version=job.metadata.resource_version,
    )


def is_controlled(job: Job, cron_job: CronJob) -> bool:
    """Return whether the CronJob is the controller of the Job."""
    owner = controller_of(job)
    return owner is not None and owner.uid == cron_job.metadata.uid


def final_condition(job: Job) -> str:
    """Return `Complete` or `Failed` for a finished Job, else the empty string."""
    for condition in job.status.conditions:
        if condition.type in ("Complete", "Failed") and condition.status == "True":
            return condition.type
    return ""
