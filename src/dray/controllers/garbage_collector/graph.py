"""Who owns whom: the graph of all objects by uid, and what each change of it makes worth a look.

An owner that was named but never seen is in the graph too, not `observed`. Changing the graph returns the
uids to look at; looking (and only that) decides on deletion, with live reads.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import msgspec

from dray.api.document import UID, Document, GroupResource
from dray.client.objects import OwnerReference, owners_of

FOREGROUND: Final = "foregroundDeletion"
ORPHAN: Final = "orphan"


class Observed(msgspec.Struct, frozen=True, gc=False):
    """What garbage collection needs to know of one object."""

    # No part of a cycle, so no header for the collector of those.

    uid: UID
    resource: GroupResource
    namespace: str
    name: str
    owners: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()
    being_deleted: bool = False
    resource_version: str = ""

    # Informers keep these instead of whole objects, so they stand in for an object and its metadata.

    @property
    def metadata(self) -> Observed:
        """Where name, namespace, uid and version are found."""
        return self

    @property
    def is_held(self) -> bool:
        """Whether somebody else's finalizer keeps it from going at once."""
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
    """Read what matters from an object's metadata."""
    metadata = document.get("metadata") or {}
    return Observed(
        UID(metadata.get("uid") or ""),
        resource,
        sys.intern(metadata.get("namespace") or ""),
        metadata.get("name") or "",
        owners_of(document),
        tuple(metadata.get("finalizers") or ()),
        bool(metadata.get("deletionTimestamp")),
        metadata.get("resourceVersion") or "",
    )


def observe_structure(resource: GroupResource, obj: Any) -> Observed:
    """Read what matters from an object that is a typed structure."""
    metadata = obj.metadata
    return Observed(
        UID(metadata.uid or ""),
        resource,
        metadata.namespace or "",
        metadata.name or "",
        owners_of(obj),
        metadata.finalizers,
        metadata.deletion_timestamp is not None,
        metadata.resource_version or "",
    )


_NONE: Final[Mapping[UID, Node]] = MappingProxyType({})


@dataclass(slots=True)
class Node:
    """One uid; changed only by `Graph`."""

    uid: UID
    # None until the object itself was seen.
    observed: Observed | None = None
    # Dependents by uid, in the order they were seen; most objects have none, and share the empty map.
    dependents: Mapping[UID, Node] = field(default_factory=lambda: _NONE)

    def adopt(self, dependent: Node) -> None:
        """Have one more dependent."""
        if not isinstance(self.dependents, dict):
            self.dependents = {}
        self.dependents[dependent.uid] = dependent

    def release(self, dependent: Node) -> None:
        """Have one dependent less."""
        if isinstance(self.dependents, dict):
            self.dependents.pop(dependent.uid, None)

    @property
    def deleting_dependents(self) -> bool:
        """Whether it waits for its dependents to be deleted."""
        return self.observed is not None and self.observed.deleting_dependents

    def blocking_dependents(self) -> tuple[Node, ...]:
        """The dependents that must be gone before this object may go."""
        return tuple(node for node in self.dependents.values() if _blocks(node, self.uid))


def _blocks(dependent: Node, owner_uid: UID) -> bool:
    owners = dependent.observed.owners if dependent.observed is not None else ()
    return any(owner.uid == owner_uid and owner.block_owner_deletion for owner in owners)


class Graph:
    """All nodes; every method returns the uids worth a look, in a fixed order."""

    def __init__(self) -> None:
        self._nodes: dict[UID, Node] = {}

    def node(self, uid: UID) -> Node | None:
        """The node of a uid."""
        return self._nodes.get(uid)

    def __len__(self) -> int:
        return len(self._nodes)

    def put(self, new: Observed, *, as_owner: bool = False) -> tuple[UID, ...]:
        """An object was added or changed.

        One that owns nothing, is owned by nothing and stays is not kept, since there may be very many; it is
        put again `as_owner` before the first object that names it.
        """
        node = self._nodes.get(new.uid)
        if node is None:
            if not (as_owner or new.owners or new.being_deleted):
                return ()
            node = self._make(new.uid)
        old, node.observed = node.observed, new
        look: dict[UID, None] = {}
        before = old.owners if old is not None else ()
        if before != new.owners:
            self._relink(node, before, new.owners, look)
        self._note_transitions(node, old, new, look)
        if old is None and any(not self.is_observed(owner.uid) for owner in new.owners):
            # Its owner may have gone before it came: only a live read can tell.
            look[new.uid] = None
        if old is not None and not new.being_deleted and old.owners != new.owners:
            look[new.uid] = None
        return tuple(look)

    def remove(self, uid: UID) -> tuple[UID, ...]:
        """An object is gone: its dependents lost an owner, its waiting owners a dependent."""
        node = self._nodes.get(uid)
        if node is None or node.observed is None:
            return ()
        look: dict[UID, None] = dict.fromkeys(node.dependents)
        self._relink(node, node.observed.owners, (), look)
        node.observed = None
        self._drop_if_unused(node)
        return tuple(look)

    def remove_resource(self, resource: GroupResource) -> tuple[UID, ...]:
        """A whole kind is no longer served."""
        gone = [node.uid for node in self._nodes.values() if node.observed and node.observed.resource == resource]
        return tuple(dict.fromkeys(uid for one in gone for uid in self.remove(one)))

    def _make(self, uid: UID) -> Node:
        node = self._nodes[uid] = Node(uid)
        return node

    def is_observed(self, uid: UID) -> bool:
        """Whether the object itself is in the graph, not only its uid."""
        node = self._nodes.get(uid)
        return node is not None and node.observed is not None

    def _relink(
        self,
        node: Node,
        before: Iterable[OwnerReference],
        after: Iterable[OwnerReference],
        look: dict[UID, None],
    ) -> None:
        old = {owner.uid: owner for owner in before}
        new = {owner.uid: owner for owner in after}
        for uid in new.keys() - old.keys():
            (self._nodes.get(uid) or self._make(uid)).adopt(node)
        for uid, owner in old.items():
            kept = new.get(uid)
            unblocked = owner.block_owner_deletion and (kept is None or not kept.block_owner_deletion)
            self._loosen(node, uid, look, unlinked=kept is None, unblocked=unblocked)

    def _loosen(self, node: Node, owner_uid: UID, look: dict[UID, None], *, unlinked: bool, unblocked: bool) -> None:
        owner = self._nodes.get(owner_uid)
        if owner is None:
            return
        if unlinked:
            owner.release(node)
        if (unlinked or unblocked) and owner.deleting_dependents:
            look[owner_uid] = None
        self._drop_if_unused(owner)

    def _drop_if_unused(self, node: Node) -> None:
        if node.observed is None and not node.dependents:
            self._nodes.pop(node.uid, None)

    def _note_transitions(self, node: Node, old: Observed | None, new: Observed, look: dict[UID, None]) -> None:
        if new.deleting_dependents and not (old and old.deleting_dependents):
            look.update(dict.fromkeys(node.dependents))
            look[new.uid] = None
        if new.orphaning and not (old and old.orphaning):
            look[new.uid] = None
