"""What to do with one object, given live reads of it and its owners. Pure.

An object is deleted when none of its owners exists. An owner that waits for its dependents to be deleted counts as
absent. An object with at least one present owner only loses its references to the absent ones.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from dray.api.document import UID, Document
from dray.client.interface import PropagationPolicy
from dray.controllers.garbage_collector.graph import FOREGROUND, ORPHAN, Node, Observed


class OwnerState(enum.Enum):
    """Result of a live read of an owner."""

    PRESENT = "present"
    ABSENT = "absent"
    # Present, but waiting for its dependents to be deleted.
    DELETING_DEPENDENTS = "deleting dependents"


@dataclass(frozen=True, slots=True)
class Nothing:
    """No action."""


@dataclass(frozen=True, slots=True)
class DropOwners:
    """Remove the references to these owners."""

    uids: frozenset[UID]


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """Delete the object; with `unblock` first stop blocking its owners, which breaks a deadlock."""

    policy: PropagationPolicy
    unblock: bool = False


@dataclass(frozen=True, slots=True)
class FinishForeground:
    """No dependent blocks the deletion any more: remove the finalizer."""


@dataclass(frozen=True, slots=True)
class StopBlocking:
    """The object waits, through others, for itself: stop blocking its owners, which breaks the deadlock."""


@dataclass(frozen=True, slots=True)
class CheckDependents:
    """The object waits for these dependents; check each."""

    uids: tuple[UID, ...]


@dataclass(frozen=True, slots=True)
class OrphanDependents:
    """Remove the owner references of these dependents, then the object's finalizer."""

    uids: tuple[UID, ...]


Step: TypeAlias = (
    Nothing | DropOwners | DeleteObject | FinishForeground | StopBlocking | CheckDependents | OrphanDependents
)


def plan_being_deleted(live: Observed, node: Node) -> Step:
    """Decide what to do with an object that is being deleted."""
    assert live.being_deleted
    if live.orphaning:
        return OrphanDependents(tuple(node.dependents))
    if not live.deleting_dependents:
        return Nothing()
    blocking = node.blocking_dependents()
    if not blocking:
        return FinishForeground()
    if _waits_for_itself(node):
        return StopBlocking()
    return CheckDependents(tuple(dependent.uid for dependent in blocking if not dependent.deleting_dependents))


def _waits_for_itself(node: Node) -> bool:
    """Return whether a chain of waiting objects, each blocking its predecessor, leads back to this one."""
    seen: set[UID] = set()
    pending = [node]
    while pending:
        for dependent in pending.pop().blocking_dependents():
            if dependent.uid == node.uid:
                return True
            if dependent.deleting_dependents and dependent.uid not in seen:
                seen.add(dependent.uid)
                pending.append(dependent)
    return False


def plan_owned(live: Observed, states: Mapping[UID, OwnerState], dependents: Sequence[Node]) -> Step:
    """Decide what to do with an object that is not being deleted, given the states of its owners."""
    assert not live.being_deleted
    if not live.owners:
        return Nothing()
    absent = frozenset(uid for uid, state in states.items() if state is not OwnerState.PRESENT)
    if len(absent) < len(states):
        return DropOwners(absent) if absent else Nothing()
    waiting = any(state is OwnerState.DELETING_DEPENDENTS for state in states.values())
    if waiting and dependents:
        # An owner waits, so this object must be deleted after its own dependents. If one of them waits for its
        # dependents already there may be a deadlock; not blocking the owners breaks it.
        deadlock = any(node.deleting_dependents for node in dependents)
        return DeleteObject(PropagationPolicy.FOREGROUND, unblock=deadlock)
    return DeleteObject(_own_policy(live.finalizers))


def _own_policy(finalizers: Sequence[str]) -> PropagationPolicy:
    """Return the policy that an existing finalizer implies."""
    if ORPHAN in finalizers:
        return PropagationPolicy.ORPHAN
    if FOREGROUND in finalizers:
        return PropagationPolicy.FOREGROUND
    return PropagationPolicy.BACKGROUND


def _with_preconditions(document: Document, changes: Document) -> Document:
    metadata = document["metadata"]
    return {"metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"], **changes}}


def patch_without_owners(document: Document, uids: frozenset[UID]) -> Document | None:
    """Return the merge patch that removes owner references, bound to the version read; None if there are none."""
    references: list[dict[str, Any]] = document["metadata"].get("ownerReferences") or []
    kept = [item for item in references if item.get("uid") not in uids]
    if len(kept) == len(references):
        return None
    return _with_preconditions(document, {"ownerReferences": kept or None})


def patch_unblocking(document: Document) -> Document:
    """Return the merge patch after which the object blocks none of its owners."""
    references: list[dict[str, Any]] = document["metadata"].get("ownerReferences") or []
    return _with_preconditions(
        document, {"ownerReferences": [{**item, "blockOwnerDeletion": False} for item in references]}
    )


def patch_without_finalizer(document: Document, finalizer: str) -> Document | None:
    """Return the merge patch that removes a finalizer, bound to the version read; None if it is not set."""
    finalizers: list[str] = document["metadata"].get("finalizers") or []
    if finalizer not in finalizers:
        return None
    kept = [item for item in finalizers if item != finalizer]
    return _with_preconditions(document, {"finalizers": kept or None})
