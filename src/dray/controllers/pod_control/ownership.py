"""Owners and their dependents: which to adopt or release, owner references, and which owners to enqueue. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import msgspec

from dray.api.document import Document, GroupVersionKind, NamespacedName
from dray.api.selectors import LabelSelector
from dray.api.types import meta_v1
from dray.client.objects import controller_of, controller_reference

if TYPE_CHECKING:
    from dray.client.shared_informers import SharedInformer

BY_ORPHAN_NAMESPACE: Final = "orphans"


class Owned(Protocol):
    """A typed object."""

    @property
    def metadata(self) -> meta_v1.ObjectMeta:
        """Its metadata."""


T = TypeVar("T", bound=Owned)


@dataclass(frozen=True, slots=True)
class Owner:
    """An object with dependents: kind, metadata and selector."""

    kind: GroupVersionKind
    metadata: meta_v1.ObjectMeta
    selector: LabelSelector

    @property
    def uid(self) -> str:
        """Its uid."""
        return self.metadata.uid or ""

    @property
    def name(self) -> str:
        """Its name."""
        return self.metadata.name or ""

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return self.metadata.namespace or ""

    @property
    def deleting(self) -> bool:
        """Whether it is being deleted: then it neither adopts nor releases."""
        return self.metadata.deletion_timestamp is not None


@dataclass(frozen=True, slots=True)
class Dependents(Generic[T]):
    """Objects that the owner controls, should adopt, and should release."""

    owned: tuple[T, ...]
    adopt: tuple[T, ...]
    release: tuple[T, ...]


def match_dependents(owner: Owner, owned: Iterable[T], orphans: Iterable[T]) -> Dependents[T]:
    """Compare the owner's selector with the objects that it controls and with orphans."""
    kept: list[T] = []
    released: list[T] = []
    for item in owned:
        if not _is_controlled_by(item, owner.uid):
            continue
        (kept if owner.deleting or owner.selector.matches(item.metadata.labels) else released).append(item)
    adopted = () if owner.deleting else tuple(item for item in orphans if _is_adoptable(owner, item))
    return Dependents(tuple(kept), adopted, tuple(released))


def _is_controlled_by(item: Owned, uid: str) -> bool:
    return any(reference.controller and reference.uid == uid for reference in item.metadata.owner_references)


def _is_adoptable(owner: Owner, item: Owned) -> bool:
    return item.metadata.deletion_timestamp is None and owner.selector.matches(item.metadata.labels)


def orphan_index(obj: Any) -> tuple[str, ...]:
    """Return the namespace of an object without controller, for the index `BY_ORPHAN_NAMESPACE`."""
    is_controlled = obj.metadata.owner_references and controller_of(obj) is not None
    return () if is_controlled else (obj.metadata.namespace or "",)


def selector_of(selector: meta_v1.LabelSelector | None) -> LabelSelector:
    """Compile a selector; a missing one matches nothing."""
    return LabelSelector.from_document(None if selector is None else msgspec.to_builtins(selector))


def adoption_patch(owner: Owner, item: Owned, *, finalizer: str = "") -> Document:
    """Return the strategic patch that makes the owner the controller; the uid rejects another object of that name."""
    metadata: Document = {
        "uid": item.metadata.uid,
        "ownerReferences": [msgspec.to_builtins(controller_reference(owner.kind, owner.metadata))],
    }
    if finalizer:
        metadata["finalizers"] = [finalizer]
    return {"metadata": metadata}


def release_patch(owner: Owner, item: Owned, *, finalizer: str = "") -> Document:
    """Return the strategic patch that removes the owner reference."""
    metadata: Document = {"uid": item.metadata.uid, "ownerReferences": [{"$patch": "delete", "uid": owner.uid}]}
    if finalizer:
        metadata["$deleteFromPrimitiveList/finalizers"] = [finalizer]
    return {"metadata": metadata}


def enqueue_owners(
    owners: SharedInformer[T], owner_of: Callable[[T], Owner | None], enqueue: Callable[[NamespacedName], None]
) -> Callable[[Any, Any], None]:
    """Return an event handler that enqueues the controller of an object, or the owners that could adopt an orphan.

    It is needed only while there are owners. `owner_of` returns None for owners that adopt nothing any more.
    """
    return _OwnerQueue(owners, owner_of, enqueue).dependent_changed


class _OwnerQueue(Generic[T]):
    """Enqueues the owners of one kind whose dependents change."""

    def __init__(
        self,
        owners: SharedInformer[T],
        owner_of: Callable[[T], Owner | None],
        enqueue: Callable[[NamespacedName], None],
    ) -> None:
        self._owners = owners.lister
        self._kind = owners.resource.kind
        self._owner_of = owner_of
        self._enqueue = enqueue

    def dependent_changed(self, old: Any, new: Any) -> None:
        """Handle an event of a dependent."""
        # Called for every event of every Pod, most of which have no owners.
        if (new is not None and new.metadata.owner_references) or (old is not None and old.metadata.owner_references):
            self._owned_changed(old, new)
        elif new is not None and (old is None or old.metadata.labels != new.metadata.labels):
            self._enqueue_adopters(new)

    def _owned_changed(self, old: Any, new: Any) -> None:
        before = controller_of(old) if old is not None else None
        after = controller_of(new) if new is not None else None
        if before is not None and before.kind == self._kind:
            self._enqueue(NamespacedName(old.metadata.namespace or "", before.name))
        if after is not None and after.kind == self._kind:
            self._enqueue(NamespacedName(new.metadata.namespace or "", after.name))
        if new is None or after is not None:
            return
        if old is None or before is not None or old.metadata.labels != new.metadata.labels:
            self._enqueue_adopters(new)

    def _enqueue_adopters(self, orphan: Owned) -> None:
        for candidate in self._owners.list(orphan.metadata.namespace or ""):
            owner = self._owner_of(candidate)
            if owner is not None and owner.selector.matches(orphan.metadata.labels):
                self._enqueue(NamespacedName(owner.namespace, owner.name))


def gone_uid(old: Owned | None, new: Owned | None) -> str | None:
    """Return the uid of an owner that was deleted, or replaced by another of the same name."""
    if old is None or (new is not None and new.metadata.uid == old.metadata.uid):
        return None
    return old.metadata.uid
