"""Decides what a delete does: remove the object, or mark it and wait for finalizers or the grace period. Pure."""

from __future__ import annotations

import enum
from datetime import datetime, timedelta
from typing import Final

import msgspec

from dray.api.document import Document, GroupResource
from dray.api.errors import ConflictError
from dray.api.pod_claims import TERMINAL_PHASES
from dray.api.timestamps import format_time, parse_time
from dray.apiserver.custom.status import DELETION_PENDING, FINALIZER, set_condition
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.options import DeleteOptions

ORPHAN: Final = "orphan"
FOREGROUND: Final = "foregroundDeletion"
_GC_FINALIZERS: Final = frozenset({ORPHAN, FOREGROUND})
_POD_GRACE_SECONDS: Final = 30
# 136 years. The end of a much longer one could not be written as a time, and the Pod never be deleted.
_GRACE_SECONDS_MAX: Final = 1 << 32
_NAMESPACES: Final = GroupResource("", "namespaces")
_DEFINITIONS: Final = GroupResource("apiextensions.k8s.io", "customresourcedefinitions")
# Their Pods stay unless the delete says otherwise, as before there was garbage collection.
_ORPHANING: Final = frozenset({GroupResource("", "replicationcontrollers"), GroupResource("batch", "jobs")})
_ORPHANING_WARNING: Final = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set "
    "propagationPolicy=Orphan to suppress this warning"
)
# A delete of one of these returns the object; of all others a Status.
_RETURNS_DELETED: Final = frozenset(
    {
        GroupResource("", "pods"),
        GroupResource("", "serviceaccounts"),
        GroupResource("", "resourcequotas"),
        GroupResource("", "persistentvolumes"),
        GroupResource("", "persistentvolumeclaims"),
        GroupResource("", "services"),
        GroupResource("", "podtemplates"),
        GroupResource("resource.k8s.io", "deviceclasses"),
        GroupResource("resource.k8s.io", "resourceclaims"),
        GroupResource("resource.k8s.io", "resourceclaimtemplates"),
        GroupResource("resource.k8s.io", "resourceslices"),
        GroupResource("resource.k8s.io", "devicetaintrules"),
        GroupResource("resource.k8s.io", "resourcepoolstatusrequests"),
        GroupResource("storage.k8s.io", "csidrivers"),
        GroupResource("storage.k8s.io", "csinodes"),
        GroupResource("storage.k8s.io", "storageclasses"),
        GroupResource("storage.k8s.io", "volumeattachments"),
        GroupResource("storage.k8s.io", "volumeattributesclasses"),
    }
)


def returns_deleted(endpoint: Endpoint) -> bool:
    """Return whether a completed delete returns the object instead of a Status."""
    return endpoint.resource in _RETURNS_DELETED and not endpoint.is_conditional


def deletion_warning(endpoint: Endpoint, options: DeleteOptions) -> str:
    """Return what somebody should know who deletes an object without saying what happens to its Pods, or nothing."""
    says = options.propagation_policy or options.orphan_dependents is not None
    return "" if says or endpoint.definition.kind != "Job" else _ORPHANING_WARNING


def check_preconditions(endpoint: Endpoint, document: Document, options: DeleteOptions) -> None:
    """Raise ConflictError unless the UID and resourceVersion preconditions hold."""
    metadata = document["metadata"]
    if options.uid is not None and options.uid != metadata["uid"]:
        raise ConflictError(
            _named(endpoint),
            metadata["name"],
            f"the UID in the precondition ({options.uid}) does not match the UID in record "
            f"({metadata['uid']}). The object might have been deleted and then recreated",
        )
    if options.resource_version is not None and options.resource_version != metadata["resourceVersion"]:
        raise ConflictError(
            _named(endpoint),
            metadata["name"],
            f"the ResourceVersion in the precondition ({options.resource_version}) does not match the "
            f"ResourceVersion in record ({metadata['resourceVersion']}). The object might have been modified",
        )


def _named(endpoint: Endpoint) -> GroupResource:
    """Return the kind in place of the resource, as in kube-apiserver's messages about preconditions."""
    # Events of both groups are those of the core group.
    group = "" if endpoint.definition.kind == "Event" else endpoint.resource.group
    return GroupResource(group, endpoint.definition.kind)


class Outcome(enum.Enum):
    """What to do with the object."""

    REMOVE = enum.auto()
    WRITE = enum.auto()
    KEEP = enum.auto()


class Deletion(msgspec.Struct, frozen=True):
    """The decision, and the document to write or return."""

    outcome: Outcome
    document: Document


def plan_deletion(
    endpoint: Endpoint, old: Document, options: DeleteOptions, now: datetime, least_grace: int = 0
) -> Deletion:
    """Decide how to delete `old`, which is not modified; `least_grace` is for one that gives itself less."""
    metadata = dict(old["metadata"])
    document = old | {"metadata": metadata}
    finalizers = _finalizers(endpoint, metadata.get("finalizers") or [], options)
    first = "deletionTimestamp" not in metadata
    if endpoint.resource == _DEFINITIONS and first and FINALIZER not in finalizers:
        # Its custom resources are deleted first.
        finalizers = [*finalizers, FINALIZER]
    _set_finalizers(metadata, finalizers)
    grace = _grace_seconds(old, options, least_grace) if endpoint.definition.graceful_deletion else 0
    waits = bool(finalizers) or _held(endpoint, old)
    if not waits and grace == 0:
        if endpoint.definition.graceful_deletion:
            _mark(metadata, now, 0)
            if first and metadata.get("generation"):
                metadata["generation"] += 1
        return Deletion(Outcome.REMOVE, document)
    if "deletionTimestamp" in metadata and not _shortens(metadata, grace):
        changed = metadata != old["metadata"]
        return Deletion(Outcome.WRITE if changed else Outcome.KEEP, document)
    _mark(metadata, now, grace)
    if _without_grace_field(endpoint):
        del metadata["deletionGracePeriodSeconds"]
    if endpoint.resource == _DEFINITIONS:
        document["status"] = dict(old.get("status") or {})
        set_condition(document["status"], DELETION_PENDING, metadata["deletionTimestamp"])
    elif first and metadata.get("generation"):
        metadata["generation"] += 1
    if endpoint.resource == _NAMESPACES:
        document["status"] = {**(old.get("status") or {}), "phase": "Terminating"}
    return Deletion(Outcome.WRITE, document)


def is_finished(endpoint: Endpoint, document: Document) -> bool:
    """Return whether an object marked for deletion waits for nothing more, so that the write removes it."""
    metadata = document["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
        return False
    return not metadata.get("deletionGracePeriodSeconds") and not _held(endpoint, document)


def _held(endpoint: Endpoint, document: Document) -> bool:
    """Return whether a namespace still has finalizers in its spec."""
    if endpoint.resource != _NAMESPACES:
        return False
    return bool((document.get("spec") or {}).get("finalizers"))


def _without_grace_field(endpoint: Endpoint) -> bool:
    return endpoint.resource in (_NAMESPACES, _DEFINITIONS)


def _finalizers(endpoint: Endpoint, present: list[str], options: DeleteOptions) -> list[str]:
    policy = options.propagation_policy
    if endpoint.resource.resource == "events":
        # Nothing depends on an Event, and it is removed at once.
        return present
    if options.orphan_dependents is not None:
        policy = "Orphan" if options.orphan_dependents else "Background"
    if not policy and endpoint.resource in _ORPHANING and _GC_FINALIZERS.isdisjoint(present):
        policy = "Orphan"
    if not policy:
        # An existing garbage collection finalizer keeps its effect.
        return present
    kept = [item for item in present if item not in _GC_FINALIZERS]
    added = {"Orphan": [ORPHAN], "Foreground": [FOREGROUND]}.get(policy, [])
    return kept + added


def _set_finalizers(metadata: Document, finalizers: list[str]) -> None:
    if finalizers:
        metadata["finalizers"] = finalizers
    else:
        metadata.pop("finalizers", None)


def _grace_seconds(pod: Document, options: DeleteOptions, least: int) -> int:
    """Return the grace period of a Pod: 0 if it is not scheduled or has finished."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    if options.grace_period_seconds is not None:
        grace = max(options.grace_period_seconds, 1 if options.grace_period_seconds < 0 else 0)
    else:
        own = spec.get("terminationGracePeriodSeconds")
        grace = _POD_GRACE_SECONDS if own is None else max(int(own), least)
    if not spec.get("nodeName") or status.get("phase") in TERMINAL_PHASES:
        return 0
    return min(grace, _GRACE_SECONDS_MAX)


def _shortens(metadata: Document, grace: int) -> bool:
    return grace < (metadata.get("deletionGracePeriodSeconds") or 0)


def _mark(metadata: Document, now: datetime, grace: int) -> None:
    before = metadata.get("deletionTimestamp")
    started = now
    if before:
        started = min(now, parse_time(before) - timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0))
    metadata["deletionTimestamp"] = format_time(max(started + timedelta(seconds=grace), started) if grace else now)
    metadata["deletionGracePeriodSeconds"] = grace
