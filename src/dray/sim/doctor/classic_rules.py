"""The rules of `dray doctor` for claims of cdi.k8s.io. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from dray.api import classic_claims as classic
from dray.api.classic_claims import State
from dray.api.pod_claims import is_pod_done
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.api.types.core_v1 import Pod
from dray.sim.classic_claims import driver_of, scheduler_message, summary
from dray.sim.doctor.findings import STUCK_AFTER, Finding, Rule, Severity, dead_pod_text, remove_reservation
from dray.sim.snapshot import CLASSIC_CLAIM, Snapshot


def unserved_classic(pod: Pod, entry: classic.ClassicEntry, snapshot: Snapshot) -> str:
    """Return why a scheduled Pod cannot use a classic claim; empty if it can."""
    claim = snapshot.find_classic(pod.metadata.namespace or "", entry.claim_name)
    if claim is None:
        return f"uses classic claim {entry.claim_name}, which does not exist"
    if entry.generated and not classic.is_for_pod(claim, pod):
        return f"uses classic claim {entry.claim_name}, which belongs to another Pod"
    if not classic.is_allocated(claim):
        return f"uses classic claim {entry.claim_name}, which is not allocated"
    if not classic.is_reserved_for(claim, pod):
        return f"uses classic claim {entry.claim_name}, which is not reserved for it"
    return ""


def dead_reservations(snapshot: Snapshot, _now: datetime) -> Iterator[Finding]:
    """Yield classic claims reserved for Pods that do not exist or have finished."""
    if not snapshot.covers("Pod", CLASSIC_CLAIM):
        return
    for claim in snapshot.classic_claims:
        for index, user in enumerate(classic.status_of(claim).reserved_for):
            pod = snapshot.pods_by_uid.get(user.uid)
            if not classic.is_pod_reference(user) or (pod is not None and not is_pod_done(pod)):
                continue
            namespace, name = claim.metadata.namespace or "", claim.metadata.name or ""
            yield Finding(
                Severity.ERROR,
                "dead-reservation",
                _subject(claim),
                f"is reserved for Pod {user.name} (uid {user.uid}), which {dead_pod_text(pod)}",
                "the claim controller removes such reservations: check that it is running; --fix removes this one",
                remove_reservation(CLASSIC_CLAIM, namespace, name, index, user.uid),
            )


def stuck_deletions(snapshot: Snapshot, now: datetime) -> Iterator[Finding]:
    """Yield classic claims that are stuck in deletion, and what they wait for."""
    for claim in snapshot.classic_claims:
        deleted = claim.metadata.deletion_timestamp
        if deleted is None or now - deleted < STUCK_AFTER:
            continue
        users = [user.name for user in classic.status_of(claim).reserved_for]
        if users:
            advice = f"it is in use: delete {'Pod' if len(users) == 1 else 'Pods'} {', '.join(users)} first"
        else:
            advice = f"{_driver(claim, snapshot)} must deallocate it: check that its controller is running"
        held = ", ".join(claim.metadata.finalizers) or "none"
        what = f"has been terminating since {deleted:%Y-%m-%d %H:%M} UTC; finalizers: {held}"
        yield Finding(Severity.ERROR, "stuck-deletion", _subject(claim), what, advice)


def missing_classes(snapshot: Snapshot, _now: datetime) -> Iterator[Finding]:
    """Yield resource classes that are requested and do not exist."""
    if not snapshot.covers("ResourceClass", CLASSIC_CLAIM):
        return
    asked: dict[str, list[str]] = {}
    for claim in snapshot.classic_claims:
        if not classic.is_allocated(claim):
            asked.setdefault(claim.spec.resource_class_name, []).append(_subject(claim))
    for name in sorted(asked.keys() - snapshot.classic_classes.keys()):
        what = f"does not exist and is requested by {', '.join(asked[name][:3])}"
        advice = "create the ResourceClass, or correct the name"
        yield Finding(Severity.ERROR, "missing-class", f"resourceclass {name}", what, advice)


def unanswered_claims(snapshot: Snapshot, now: datetime) -> Iterator[Finding]:
    """Yield classic claims whose driver has not acted for a while."""
    for claim in snapshot.classic_claims:
        created = claim.metadata.creation_timestamp
        if classic.state_of(claim) not in (State.ALLOCATING, State.REALLOCATE):
            continue
        if created is None or now - created < STUCK_AFTER or not driver_of(claim, snapshot):
            continue
        yield Finding(
            Severity.WARNING,
            "unanswered-claim",
            _subject(claim),
            f"{summary(claim, snapshot)}; it was created at {created:%Y-%m-%d %H:%M} UTC",
            f"check that the controller of {_driver(claim, snapshot)} is running, and the events of the claim",
        )


def _driver(claim: ResourceClaim, snapshot: Snapshot) -> str:
    name = driver_of(claim, snapshot)
    return f"driver {name}" if name else f"the driver of resource class {claim.spec.resource_class_name}"


def _subject(claim: ResourceClaim) -> str:
    return f"resourceclaim.{classic.GROUP} {classic.label(claim)}"


def refused_claims(snapshot: Snapshot, now: datetime) -> Iterator[Finding]:
    """Yield classic claims for which the scheduler has found no node for a while."""
    for claim in snapshot.classic_claims:
        created = claim.metadata.creation_timestamp
        if classic.state_of(claim) is not State.PENDING or not classic.scheduler_status(claim).potential_nodes:
            continue
        if created is not None and now - created >= STUCK_AFTER and scheduler_message(claim, snapshot):
            yield Finding(
                Severity.WARNING,
                "refused-claim",
                _subject(claim),
                summary(claim, snapshot),
                f"check what {_driver(claim, snapshot)} has free, and the events of the claim",
            )


CLASSIC_RULES: Final[tuple[Rule, ...]] = (
    dead_reservations,
    stuck_deletions,
    missing_classes,
    unanswered_claims,
    refused_claims,
)
