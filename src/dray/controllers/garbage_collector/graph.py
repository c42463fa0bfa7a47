"""The graph of owners and dependents by uid, and which objects have to be checked after a change of it. Pure.

An owner that is referenced but was never seen is a node without `observed`. Methods that change the graph return the
uids to check. Only the check, with live reads, decides on deletion.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from dray.api.document import UID, Document, GroupResource
from dray.client.objects import OwnerReference, owners_of

FOREGROUND: Final = "foregroundDeletion"
ORPHAN: Final = "orphan"


class Observed(msgspec.Struct, frozen=True, gc=False):
    """What garbage collection needs of one object."""

    # `gc=False`: never part of a reference cycle, so Python's collector need not track it.

    uid: UID
    resource: GroupResource
    namespace: str
    name: str
    owners: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()
    being_deleted: bool = False
    resource_version: str = ""

    # Informers cache these instead of whole objects, so they have the attributes of an object and its metadata.

    @property
    def metadata(self) -> Observed:
        """The object itself: it has name, namespace, uid and resource version."""
        return self

    @property
    def has_foreign_finalizer(self) -> bool:
        """Whether a finalizer of another controller would delay its deletion."""
        return not self.being_deleted and any(name not in (FOREGROUND, ORPHAN) for name in self.finalizers)

    @property
    def deleting_dependents(self) -> bool:
        """Whether it waits for its dependents to be deleted."""
        return self.being_deleted and FOREGROUND in self.finalizers

    @property
    def orphaning(self) -> bool:
        """Whether it waits for its dependents to be orphaned."""
        return self.being_deleted and ORPHAN in self.finalizers


def observe(resource: GroupResource, document: Document) -> Observed:
    """Read the relevant metadata of a document."""
    metadata = document.get("metadata") or {}
    return Observed(
        uid=UID(metadata.get("uid") or ""),
        resource=resource,
        namespace=sys.intern(metadata.get("namespace") or ""),
        name=metadata.get("name") or "",
        owners=owners_of(document),
        finalizers=tuple(metadata.get("finalizers") or ()),
        being_deleted=bool(metadata.get("deletionTimestamp")),
        resource_version=metadata.get("resourceVersion") or "",
    )


def observe_structure(resource: GroupResource, obj: Any) -> Observed:
    """Read the relevant metadata of a typed object."""
    metadata = obj.metadata
    return Observed(
        uid=UID(metadata.uid or ""),
        resource=resource,
        namespace=metadata.namespace or "",
        name=metadata.name or "",
        owners=owners_of(obj),
        finalizers=metadata.finalizers,
        being_deleted=metadata.deletion_timestamp is not None,
        resource_version=metadata.resource_version or "",
    )


_NONE: Final[Mapping[UID, Node]] = MappingProxyType({})


class Node(msgspec.Struct, eq=False):
    """One uid; changed only by `Graph`."""

    uid: UID
    # None until the object itself was seen.
    observed: Observed | None = None
    # Dependents by uid, in the order they were seen; objects without any share one empty map.
    dependents: Mapping[UID, Node] = _NONE

    def adopt(self, dependent: Node) -> None:
        """Add a dependent."""
        if not isinstance(self.dependents, dict):
            self.dependents = {}
        self.dependents[dependent.uid] = dependent

    def release(self, dependent: Node) -> None:
        """Remove a dependent."""
        if isinstance(self.dependents, dict):
            self.dependents.pop(dependent.uid, None)

    @property
    def deleting_dependents(self) -> bool:
        """Whether it waits for its dependents to be deleted."""
        return self.observed is not None and self.observed.deleting_dependents

    def blocking_dependents(self) -> tuple[Node, ...]:
        """Return the dependents that must be deleted before this object."""
        return tuple(node for node in self.dependents.values() if _blocks(node, self.uid))


def _blocks(dependent: Node, owner_uid: UID) -> bool:
    owners = dependent.observed.owners if dependent.observed is not None else ()
    return any(owner.uid == owner_uid and owner.block_owner_deletion for owner in owners)


class Graph:
    """All nodes; methods that change it return the uids to check, in a fixed order."""

    def __init__(self) -> None:
        self._nodes: dict[UID, Node] = {}

    def node(self, uid: UID) -> Node | None:
        """Return the node of a uid."""
        return self._nodes.get(uid)

    def __len__(self) -> int:
        return len(self._nodes)

    def put(self, new: Observed, *, as_owner: bool = False) -> tuple[UID, ...]:
        """Add or update an object.

        An object without owners and dependents that is not being deleted is not stored, since there may be very many.
        It is added `as_owner` before the first object that references it.
        """
        node = self._nodes.get(new.uid)
        if node is None:
            if not (as_owner or new.owners or new.being_deleted):
                return ()
            node = self._make(new.uid)
        old, node.observed = node.observed, new
        check: dict[UID, None] = {}
        before = old.owners if old is not None else ()
        if before != new.owners:
            self._relink(node, before, new.owners, check)
        if new.being_deleted:
            self._note_transitions(node, old, new, check)
        if old is None and new.owners and not self._has_observed_owners(new):
            # Its owner may have been deleted before: only a live read can tell.
            check[new.uid] = None
        if old is not None and not new.being_deleted and old.owners != new.owners:
            check[new.uid] = None
        return tuple(check)

    def remove(self, uid: UID) -> tuple[UID, ...]:
        """Remove a deleted object; its dependents and its waiting owners have to be checked."""
        node = self._nodes.get(uid)
        if node is None or node.observed is None:
            return ()
        check: dict[UID, None] = dict.fromkeys(node.dependents)
        if node.observed.owners:
            self._relink(node, node.observed.owners, (), check)
        node.observed = None
        self._drop_if_unused(node)
        return tuple(check)

    def remove_resource(self, resource: GroupResource) -> tuple[UID, ...]:
        """Remove all objects of a kind that is no longer served."""
        gone = [node.uid for node in self._nodes.values() if node.observed and node.observed.resource == resource]
        return tuple(dict.fromkeys(uid for removed in gone for uid in self.remove(removed)))

    def _make(self, uid: UID) -> Node:
        node = self._nodes[uid] = Node(uid)
        return node

    def is_observed(self, uid: UID) -> bool:
        """Return whether the object itself is in the graph, not only its uid."""
        node = self._nodes.get(uid)
        return node is not None and node.observed is not None

    def _has_observed_owners(self, dependent: Observed) -> bool:
        return all(self.is_observed(owner.uid) for owner in dependent.owners)

    def _relink(
        self,
        node: Node,
        before: Iterable[OwnerReference],
        after: Iterable[OwnerReference],
        check: dict[UID, None],
    ) -> None:
        old = {owner.uid: owner for owner in before}
        new = {owner.uid: owner for owner in after}
        for uid in [uid for uid in new if uid not in old]:
            (self._nodes.get(uid) or self._make(uid)).adopt(node)
        for uid, owner in old.items():
            kept = new.get(uid)
            unblocked = owner.block_owner_deletion and (kept is None or not kept.block_owner_deletion)
            self._update_owner(node, uid, check, unlinked=kept is None, unblocked=unblocked)

    def _update_owner(
        self, node: Node, owner_uid: UID, check: dict[UID, None], *, unlinked: bool, unblocked: bool
    ) -> None:
        owner = self._nodes.get(owner_uid)
        if owner is None:
            return
        if unlinked:
            owner.release(node)
        if (unlinked or unblocked) and owner.deleting_dependents:
            check[owner_uid] = None
        self._drop_if_unused(owner)

    def _drop_if_unused(self, node: Node) -> None:
        if node.observed is None and not node.dependents:
            self._nodes.pop(node.uid, None)

    def _note_transitions(self, node: Node, old: Observed | None, new: Observed, check: dict[UID, None]) -> None:
        if new.deleting_dependents and not (old and old.deleting_dependents):
            check.update(dict.fromkeys(node.dependents))
            check[new.uid] = None
        if new.orphaning and not (old and old.orphaning):
            check[new.uid] = None
