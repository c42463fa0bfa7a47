"""Deployments, ReplicaSets, DaemonSets, StatefulSets and ReplicationControllers."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, forbidden, invalid, not_supported, required
from dray.api.validation.core_v1_pod import validate_template
from dray.api.validation.meta_v1 import validate_immutable
from dray.api.validation.workload import (
    MISMATCH,
    SPEC,
    is_zero,
    not_negative,
    template_labels,
    validate_at_most_whole,
    validate_int_or_percent,
    validate_selected_template,
)

_STATUS: Final = Path("status")
_EMPTY_DEPLOYMENT: Final = "empty selector is invalid for deployment"
_EMPTY_DAEMON_SET: Final = "empty selector is invalid for daemonset"


def _validate_long_running(spec: Document, owner: str) -> FieldErrors:
    """Validate the pods of a long-running workload: they are always restarted and have no deadline."""
    pod_spec = (spec.get("template") or {}).get("spec") or {}
    path = SPEC.child("template", "spec")
    errors: FieldErrors = []
    if pod_spec.get("restartPolicy") != "Always":
        value = pod_spec.get("restartPolicy") or ""
        errors.append(not_supported(path.child("restartPolicy"), value, ("Always",)))
    if pod_spec.get("activeDeadlineSeconds") is not None:
        text = f"activeDeadlineSeconds in {owner} is not Supported"
        errors.append(forbidden(path.child("activeDeadlineSeconds"), text))
    return errors


# --- Deployments.


def validate_deployment(deployment: Document) -> FieldErrors:
    """Validate a Deployment's spec."""
    spec = deployment.get("spec") or {}
    errors = not_negative(spec, SPEC, "replicas")
    errors += validate_selected_template(spec, SPEC, empty_text=_EMPTY_DEPLOYMENT)
    errors += _validate_long_running(spec, "ReplicaSet")
    errors += _validate_strategy(spec.get("strategy") or {}, SPEC.child("strategy"))
    errors += not_negative(spec, SPEC, "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds")
    deadline = spec.get("progressDeadlineSeconds")
    if deadline is not None and deadline <= (spec.get("minReadySeconds") or 0):
        text = "must be greater than minReadySeconds"
        errors.append(invalid(SPEC.child("progressDeadlineSeconds"), deadline, text))
    return errors


def validate_deployment_update(new: Document, old: Document) -> FieldErrors:
    """Validate a changed Deployment; its selector is immutable."""
    return validate_deployment(new) + _validate_same_selector(new, old)


def _validate_same_selector(new: Document, old: Document) -> FieldErrors:
    selectors = [(item.get("spec") or {}).get("selector") for item in (new, old)]
    return validate_immutable(selectors[0], selectors[1], SPEC.child("selector"))


def _validate_strategy(strategy: Document, path: Path) -> FieldErrors:
    kind, rolling = strategy.get("type") or "", strategy.get("rollingUpdate")
    if kind == "Recreate":
        text = "may not be specified when strategy `type` is 'Recreate'"
        return [forbidden(path.child("rollingUpdate"), text)] if rolling is not None else []
    if kind != "RollingUpdate":
        return [not_supported(path, strategy, ("Recreate", "RollingUpdate"))]
    if rolling is None:
        return [required(path.child("rollingUpdate"), "this should be defaulted and never be nil")]
    return _validate_rolling_update(rolling, path.child("rollingUpdate"))


def _validate_rolling_update(rolling: Document, path: Path) -> FieldErrors:
    unavailable, surge = rolling.get("maxUnavailable", 0), rolling.get("maxSurge", 0)
    errors = validate_int_or_percent(unavailable, path.child("maxUnavailable"))
    errors += validate_int_or_percent(surge, path.child("maxSurge"))
    if is_zero(unavailable) and is_zero(surge):
        errors.append(invalid(path.child("maxUnavailable"), unavailable, "may not be 0 when `maxSurge` is 0"))
    return errors + validate_at_most_whole(unavailable, path.child("maxUnavailable"))


_COUNTS: Final = ("replicas", "readyReplicas", "availableReplicas", "updatedReplicas", "unavailableReplicas")


def validate_replica_status(obj: Document, _old: Document) -> FieldErrors:
    """Validate the counts in the status of a Deployment or ReplicaSet."""
    status = obj.get("status") or {}
    errors = not_negative(status, _STATUS, "observedGeneration", *_COUNTS, "fullyLabeledReplicas")
    replicas = status.get("replicas") or 0
    for field in ("updatedReplicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas"):
        # More than a number below zero is also a field that is unset.
        if (count := status.get(field) or 0) > replicas:
            errors.append(invalid(_STATUS.child(field), count, "cannot be greater than status.replicas"))
    available = status.get("availableReplicas") or 0
    if available > (status.get("readyReplicas") or 0):
        errors.append(invalid(_STATUS.child("availableReplicas"), available, "cannot be greater than readyReplicas"))
    return errors


# --- ReplicaSets.


def validate_replica_set(replica_set: Document) -> FieldErrors:
    """Validate a ReplicaSet's spec."""
    spec = replica_set.get("spec") or {}
    errors = not_negative(spec, SPEC, "replicas", "minReadySeconds")
    errors += validate_selected_template(spec, SPEC, empty_text=_EMPTY_DEPLOYMENT)
    return errors + _validate_long_running(spec, "ReplicaSet")


def validate_replica_set_update(new: Document, old: Document) -> FieldErrors:
    """Validate a changed ReplicaSet; its selector is immutable."""
    return validate_replica_set(new) + _validate_same_selector(new, old)


# --- DaemonSets.


def validate_daemon_set(daemon_set: Document) -> FieldErrors:
    """Validate a DaemonSet's spec."""
    spec = daemon_set.get("spec") or {}
    errors = validate_selected_template(spec, SPEC, empty_text=_EMPTY_DAEMON_SET)
    errors += _validate_long_running(spec, "DaemonSet")
    errors += not_negative(spec, SPEC, "minReadySeconds", "revisionHistoryLimit")
    return errors + _validate_update_strategy(spec.get("updateStrategy") or {}, SPEC.child("updateStrategy"))


def validate_daemon_set_update(new: Document, old: Document) -> FieldErrors:
    """Validate a changed DaemonSet; its selector is immutable."""
    return validate_daemon_set(new) + _validate_same_selector(new, old)


def _validate_update_strategy(strategy: Document, path: Path) -> FieldErrors:
    kind, rolling = strategy.get("type") or "", strategy.get("rollingUpdate")
    if kind == "OnDelete":
        return []
    if kind != "RollingUpdate":
        return [not_supported(path, strategy, ("RollingUpdate", "OnDelete"))]
    path = path.child("rollingUpdate")
    if rolling is None:
        return [required(path)]
    unavailable, surge = rolling.get("maxUnavailable", 0), rolling.get("maxSurge", 0)
    errors: FieldErrors = []
    for field, value in (("maxUnavailable", unavailable), ("maxSurge", surge)):
        errors += validate_int_or_percent(value, path.child(field))
        errors += validate_at_most_whole(value, path.child(field))
    if is_zero(unavailable) and is_zero(surge):
        errors.append(required(path.child("maxUnavailable"), "cannot be 0 when maxSurge is 0"))
    elif not is_zero(unavailable) and not is_zero(surge):
        errors.append(invalid(path.child("maxSurge"), surge, "may not be set when maxUnavailable is non-zero"))
    return errors


_DAEMON_COUNTS: Final = (
    "currentNumberScheduled",
    "numberMisscheduled",
    "desiredNumberScheduled",
    "numberReady",
    "observedGeneration",
    "updatedNumberScheduled",
    "numberAvailable",
    "numberUnavailable",
)


def validate_daemon_set_status(daemon_set: Document, _old: Document) -> FieldErrors:
    """Validate the counts in a DaemonSet's status."""
    return not_negative(daemon_set.get("status") or {}, _STATUS, *_DAEMON_COUNTS)


# --- StatefulSets.

_EMPTY_STATEFUL_SET: Final = "empty selector is invalid for statefulset"
_MUTABLE: Final = (
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
)
_FIXED: Final = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
    "'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
)
_RETENTION: Final = ("Delete", "Retain")


def validate_stateful_set(stateful_set: Document) -> FieldErrors:
    """Validate a StatefulSet's spec."""
    spec = stateful_set.get("spec") or {}
    policy, path = spec.get("podManagementPolicy") or "", SPEC.child("podManagementPolicy")
    errors: FieldErrors = []
    if not policy:
        errors.append(required(path))
    elif policy not in ("OrderedReady", "Parallel"):
        errors.append(invalid(path, policy, "must be 'OrderedReady' or 'Parallel'"))
    errors += _validate_stateful_strategy(spec.get("updateStrategy") or {}, SPEC.child("updateStrategy"))
    retention = spec.get("persistentVolumeClaimRetentionPolicy") or {}
    path = SPEC.child("persistentVolumeClaimRetentionPolicy")
    for field in ("whenDeleted", "whenScaled"):
        if retention.get(field) and retention[field] not in _RETENTION:
            errors.append(not_supported(path.child(field), retention[field], _RETENTION))
    errors += not_negative(spec, SPEC, "replicas", "minReadySeconds")
    errors += not_negative(spec.get("ordinals") or {}, SPEC.child("ordinals"), "start")
    errors += validate_selected_template(_with_claims(spec), SPEC, empty_text=_EMPTY_STATEFUL_SET)
    return errors + _validate_long_running(spec, "StatefulSet")


def _with_claims(spec: Document) -> Document:
    """Return the spec with the volumes that the Pods get from their claims; containers may mount them."""
    names = [(item.get("metadata") or {}).get("name") or "" for item in spec.get("volumeClaimTemplates") or ()]
    template = spec.get("template") or {}
    if not names or not template.get("spec"):
        return spec
    # Behind the others, so that errors name the right one.
    own = [item for item in template["spec"].get("volumes") or () if item.get("name") not in names]
    claims = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in dict.fromkeys(names) if name]
    return spec | {"template": template | {"spec": template["spec"] | {"volumes": [*own, *claims]}}}


def _validate_stateful_strategy(strategy: Document, path: Path) -> FieldErrors:
    kind, rolling = strategy.get("type") or "", strategy.get("rollingUpdate")
    if not kind:
        return [required(path)]
    path_of_rolling = path.child("rollingUpdate")
    if kind == "OnDelete":
        text = "only allowed for updateStrategy 'RollingUpdate'"
        return [invalid(path_of_rolling, rolling, text)] if rolling is not None else []
    if kind != "RollingUpdate":
        return [invalid(path, strategy, "must be 'RollingUpdate' or 'OnDelete'")]
    errors = not_negative(rolling or {}, path_of_rolling, "partition")
    unavailable = (rolling or {}).get("maxUnavailable")
    if unavailable is not None:
        path = path_of_rolling.child("maxUnavailable")
        errors += validate_int_or_percent(unavailable, path)
        if is_zero(unavailable):
            errors.append(invalid(path, unavailable, "cannot be 0"))
        errors += validate_at_most_whole(unavailable, path)
    return errors


def validate_stateful_set_update(new: Document, old: Document) -> FieldErrors:
    """Validate a changed StatefulSet; most of its spec is immutable."""
    errors = validate_stateful_set(new)
    fixed = [
        {name: value for name, value in (item.get("spec") or {}).items() if name not in _MUTABLE} for item in (new, old)
    ]
    return [*errors, forbidden(SPEC, _FIXED)] if fixed[0] != fixed[1] else errors


def validate_stateful_set_status(stateful_set: Document, _old: Document) -> FieldErrors:
    """Validate the counts in a StatefulSet's status."""
    status = stateful_set.get("status") or {}
    counts = ("readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas")
    errors = not_negative(status, _STATUS, "replicas", *counts, "observedGeneration", "collisionCount")
    replicas = status.get("replicas") or 0
    errors += [
        invalid(_STATUS.child(field), status[field], "cannot be greater than status.replicas")
        for field in counts
        if (status.get(field) or 0) > replicas
    ]
    if (status.get("availableReplicas") or 0) > (status.get("readyReplicas") or 0):
        text = "cannot be greater than status.readyReplicas"
        errors.append(invalid(_STATUS.child("availableReplicas"), status["availableReplicas"], text))
    return errors


# --- ReplicationControllers.


def validate_replication_controller(controller: Document) -> FieldErrors:
    """Validate a ReplicationController, whose selector is a map of labels."""
    spec = controller.get("spec") or {}
    selector, template = spec.get("selector") or {}, spec.get("template")
    errors = not_negative(spec, SPEC, "minReadySeconds")
    if not selector:
        errors.append(required(SPEC.child("selector")))
    errors += not_negative(spec, SPEC, "replicas")
    labels = template_labels(spec)
    if template is not None and selector and not selector.items() <= labels.items():
        errors.append(invalid(SPEC.child("template", "metadata", "labels"), labels, MISMATCH))
    errors += validate_template(template, SPEC.child("template"))
    return errors if template is None else errors + _validate_long_running(spec, "ReplicationController")
