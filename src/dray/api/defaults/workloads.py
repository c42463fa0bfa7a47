"""Defaults of the workloads: from Deployments to CronJobs."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.defaults import Defaulters
from dray.api.defaults.core_v1 import default_template
from dray.api.defaults.storage import default_persistent_volume_claim
from dray.api.document import Document, GroupVersion, metadata_of

_REVISION_HISTORY: Final = 10
_PROGRESS_DEADLINE_SECONDS: Final = 600
_ROLLING: Final = "RollingUpdate"
_BACKOFF_LIMIT: Final = 6
# With a limit per index the Job as a whole is not limited.
_BACKOFF_UNLIMITED: Final = 2**31 - 1


def _set(spec: Document, name: str, value: object) -> None:
    if spec.get(name) is None:
        spec[name] = value


def _default_deployment(obj: Document, _now: datetime) -> None:
    spec = obj.setdefault("spec", {})
    default_template(spec.get("template"))
    _set(spec, "replicas", 1)
    _set(spec, "strategy", {})
    strategy = spec["strategy"]
    if not strategy.get("type"):
        strategy["type"] = _ROLLING
    if strategy["type"] == _ROLLING:
        _set(strategy, "rollingUpdate", {})
        _set(strategy["rollingUpdate"], "maxUnavailable", "25%")
        _set(strategy["rollingUpdate"], "maxSurge", "25%")
    _set(spec, "revisionHistoryLimit", _REVISION_HISTORY)
    _set(spec, "progressDeadlineSeconds", _PROGRESS_DEADLINE_SECONDS)


def _default_replica_set(obj: Document, _now: datetime) -> None:
    spec = obj.setdefault("spec", {})
    default_template(spec.get("template"))
    _set(spec, "replicas", 1)


def _default_update_strategy(spec: Document, **rolling: int) -> None:
    """Update step by step unless something else is chosen, with these values of `rollingUpdate`."""
    _set(spec, "updateStrategy", {})
    strategy = spec["updateStrategy"]
    if not strategy.get("type"):
        strategy["type"] = _ROLLING
    if strategy["type"] == _ROLLING:
        _set(strategy, "rollingUpdate", {})
        for name, value in rolling.items():
            _set(strategy["rollingUpdate"], name, value)


def _default_daemon_set(obj: Document, _now: datetime) -> None:
    spec = obj.setdefault("spec", {})
    default_template(spec.get("template"))
    _default_update_strategy(spec, maxUnavailable=1, maxSurge=0)
    _set(spec, "revisionHistoryLimit", _REVISION_HISTORY)


def _default_stateful_set(obj: Document, _now: datetime) -> None:
    spec = obj.setdefault("spec", {})
    default_template(spec.get("template"))
    if not spec.get("podManagementPolicy"):
        spec["podManagementPolicy"] = "OrderedReady"
    _default_update_strategy(spec, partition=0, maxUnavailable=1)
    _set(spec, "persistentVolumeClaimRetentionPolicy", {})
    for field in ("whenDeleted", "whenScaled"):
        if not spec["persistentVolumeClaimRetentionPolicy"].get(field):
            spec["persistentVolumeClaimRetentionPolicy"][field] = "Retain"
    _set(spec, "replicas", 1)
    _set(spec, "revisionHistoryLimit", _REVISION_HISTORY)
    for claim in spec.get("volumeClaimTemplates") or ():
        claim["apiVersion"], claim["kind"] = "v1", "PersistentVolumeClaim"
        default_persistent_volume_claim(claim, _now)


def _default_replication_controller(obj: Document, _now: datetime) -> None:
    spec = obj.setdefault("spec", {})
    default_template(spec.get("template"))
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    if labels and not spec.get("selector"):
        spec["selector"] = dict(labels)
    if labels and not metadata_of(obj).get("labels"):
        metadata_of(obj)["labels"] = dict(labels)
    _set(spec, "replicas", 1)


def _default_cron_job(obj: Document, _now: datetime) -> None:
    spec = obj.setdefault("spec", {})
    if not spec.get("concurrencyPolicy"):
        spec["concurrencyPolicy"] = "Allow"
    _set(spec, "suspend", value=False)
    _set(spec, "successfulJobsHistoryLimit", 3)
    _set(spec, "failedJobsHistoryLimit", 1)
    default_template(((spec.get("jobTemplate") or {}).get("spec") or {}).get("template"))


def _default_job(obj: Document, _now: datetime) -> None:
    spec = obj.setdefault("spec", {})
    template = spec.get("template")
    default_template(template)
    if spec.get("parallelism") is None:
        # Neither set means one run; parallelism alone means a work queue, which has no completions.
        spec["parallelism"] = 1
        if spec.get("completions") is None:
            spec["completions"] = 1
    if spec.get("backoffLimit") is None:
        spec["backoffLimit"] = _BACKOFF_LIMIT if spec.get("backoffLimitPerIndex") is None else _BACKOFF_UNLIMITED
    if not spec.get("completionMode"):
        spec["completionMode"] = "NonIndexed"
    for name in ("suspend", "manualSelector"):
        if spec.get(name) is None:
            spec[name] = False
    _default_failure_policy(spec)
    labels = ((template or {}).get("metadata") or {}).get("labels")
    if labels and not metadata_of(obj).get("labels"):
        metadata_of(obj)["labels"] = dict(labels)


def _default_failure_policy(spec: Document) -> None:
    policy = spec.get("podFailurePolicy")
    if not spec.get("podReplacementPolicy"):
        spec["podReplacementPolicy"] = "TerminatingOrFailed" if policy is None else "Failed"
    for rule in (policy or {}).get("rules") or ():
        for pattern in rule.get("onPodConditions") or ():
            if not pattern.get("status"):
                pattern["status"] = "True"


_APPS: Final = GroupVersion("apps", "v1")

DEFAULTERS: Final[Defaulters] = {
    _APPS.kind("Deployment"): _default_deployment,
    _APPS.kind("ReplicaSet"): _default_replica_set,
    _APPS.kind("DaemonSet"): _default_daemon_set,
    _APPS.kind("StatefulSet"): _default_stateful_set,
    GroupVersion("", "v1").kind("ReplicationController"): _default_replication_controller,
    GroupVersion("batch", "v1").kind("Job"): _default_job,
    GroupVersion("batch", "v1").kind("CronJob"): _default_cron_job,
}
