"""What to do about one object, given live facts; pure.

The rules: an object is deleted when none of its owners exists; an owner that waits for its dependents counts as
going, so the object goes too; an object with one real owner left only loses its references to the others.
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
    """What a live read said about an owner."""

    PRESENT = "present"
    ABSENT = "absent"
    # Present, but waiting for its dependents to be deleted.
    DELETING_DEPENDENTS = "deleting dependents"


@dataclass(frozen=True, slots=True)
class Nothing:
    """Leave it."""


@dataclass(frozen=True, slots=True)
class DropOwners:
    """Remove the references to these owners."""

    uids: frozenset[UID]


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """Delete it; with `unblock` first stop blocking its owners, which breaks a cycle of waiting."""

    policy: PropagationPolicy
    unblock: bool = False


@dataclass(frozen=True, slots=True)
class FinishForeground:
    """Nothing blocks it any more: remove the finalizer it waited with."""


@dataclass(frozen=True, slots=True)
class StopBlocking:
    """It waits, through others, for itself: stop blocking its owners, which opens the circle."""


@dataclass(frozen=True, slots=True)
class LookAtDependents:
    """It waits for these dependents; see to each."""

    uids: tuple[UID, ...]


@dataclass(frozen=True, slots=True)
class OrphanDependents:
    """Remove its uid from the references of these dependents, then its own finalizer."""

    uids: tuple[UID, ...]


Step: TypeAlias = (
    Nothing | DropOwners | DeleteObject | FinishForeground | StopBlocking | LookAtDependents | OrphanDependents
)


def plan_being_deleted(live: Observed, node: Node) -> Step:
    """What an object that is being deleted waits for."""
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
    return LookAtDependents(tuple(dependent.uid for dependent in blocking if not dependent.deleting_dependents))


def _waits_for_itself(node: Node) -> bool:
    """Whether a chain of waiting objects, each blocking the one before, comes back to this one."""
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
    """What the state of its owners means for an object that is not being deleted."""
    assert not live.being_deleted
    if not live.owners:
        return Nothing()
    going = frozenset(uid for uid, state in states.items() if state is not OwnerState.PRESENT)
    if len(going) < len(states):
        return DropOwners(going) if going else Nothing()
    waiting = any(state is OwnerState.DELETING_DEPENDENTS for state in states.values())
    if waiting and dependents:
        # An owner waits, so this one must not go before its own dependents. If one of them waits for its
        # dependents already there may be a circle of waiting; not blocking the owners opens it.
        circle = any(node.deleting_dependents for node in dependents)
        return DeleteObject(PropagationPolicy.FOREGROUND, unblock=circle)
    return DeleteObject(_own_policy(live.finalizers))


def _own_policy(finalizers: Sequence[str]) -> PropagationPolicy:
    """A finalizer that is there already says how its owner wanted it deleted."""
    if ORPHAN in finalizers:
        return PropagationPolicy.ORPHAN
    if FOREGROUND in finalizers:
        return PropagationPolicy.FOREGROUND
    return PropagationPolicy.BACKGROUND


def _guarded(document: Document, changes: Document) -> Document:
    metadata = document["metadata"]
    return {"metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"], **changes}}


def patch_without_owners(document: Document, uids: frozenset[UID]) -> Document | None:
    """The merge patch that removes owner references, bound to the version read; None when there is none."""
    references: list[dict[str, Any]] = document["metadata"].get("ownerReferences") or []
    kept = [item for item in references if item.get("uid") not in uids]
    if len(kept) == len(references):
        return None
    return _guarded(document, {"ownerReferences": kept or None})


def patch_unblocking(document: Document) -> Document:
    """The merge patch after which the object blocks none of its owners."""
    references: list[dict[str, Any]] = document["metadata"].get("ownerReferences") or []
    return _guarded(document, {"ownerReferences": [{**item, "blockOwnerDeletion": False} for item in references]})


def patch_without_finalizer(document: Document, finalizer: str) -> Document | None:
    """The merge patch that removes a finalizer, bound to the version read; None when it is not there."""
    finalizers: list[str] = document["metadata"].get("finalizers") or []
    if finalizer not in finalizers:
        return None
    kept = [item for item in finalizers if item != finalizer]
    return _guarded(document, {"finalizers": kept or None})
