"""Which owners have work when something changes that is theirs or could be; handlers that only enqueue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from dray.api.document import NamespacedName
from dray.client.loop import InformerLoop
from dray.client.objects import controller_of
from dray.controllers.pod_control.ownership import Owned, Owner

O = TypeVar("O", bound=Owned)  # noqa: E741 - the owners


def wake_owners(
    owners: InformerLoop[O], owner_of: Callable[[O], Owner | None], wake: Callable[[NamespacedName], None]
) -> Callable[[Any, Any], None]:
    """An informer's handler that wakes who controls an object, and who could adopt one that nobody controls.

    `owner_of` has None for who adopts nothing any more.
    """
    kind = owners.resource.kind

    def adopters(item: Owned) -> Iterator[NamespacedName]:
        for candidate in owners.lister.list(item.metadata.namespace or ""):
            owner = owner_of(candidate)
            if owner is not None and owner.selector.matches(item.metadata.labels):
                yield NamespacedName(owner.namespace, owner.name)

    def handler(old: Any, new: Any) -> None:
        if _is_nobodys(old, new):
            return
        for item in (old, new):
            controller = controller_of(item) if item is not None else None
            if controller is not None and controller.kind == kind:
                wake(NamespacedName(item.metadata.namespace or "", controller.name))
        if new is not None and controller_of(new) is None and _may_interest(old, new):
            for key in adopters(new):
                wake(key)

    return handler


def _is_nobodys(old: Any, new: Any) -> bool:
    """Whether an object that has no owners changed in nothing that could give it one: most news is of that sort."""
    if old is None or new is None or old.metadata.owner_references or new.metadata.owner_references:
        return False
    return bool(old.metadata.labels == new.metadata.labels)


def _may_interest(old: Any, new: Any) -> bool:
    return old is None or old.metadata.labels != new.metadata.labels or controller_of(old) is not None


def gone_uid(old: Owned | None, new: Owned | None) -> str | None:
    """The uid of an owner that is gone, be it that another of its name has come."""
    if old is None or (new is not None and new.metadata.uid == old.metadata.uid):
        return None
    return old.metadata.uid
