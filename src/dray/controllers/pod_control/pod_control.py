"""The hands of controllers that keep Pods: finding, adopting, creating and deleting them, and telling of it."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, TypeVar

from dray.api.errors import AlreadyExistsError, APIError, NotFoundError
from dray.api.types.core_v1 import Pod
from dray.client.controller import Requeue
from dray.client.event_recorder import NORMAL, WARNING, EventRecorder, Source
from dray.client.indexer import BY_OWNER_UID, owner_uids
from dray.client.interface import Client, DeleteOptions, Patch, PatchType, Resource, ignore_not_found
from dray.client.objects import controller_of, key_of
from dray.client.resources import PODS
from dray.client.shared_informers import SharedInformer, SharedInformerFactory
from dray.controllers.pod_control.expectations import CONFIRMED_SECONDS, UnseenPods
from dray.controllers.pod_control.ownership import (
    BY_ORPHAN_NAMESPACE,
    Belongings,
    Owned,
    Owner,
    adoption_patch,
    gone_uid,
    orphan_index,
    release_patch,
    sort_out,
)
from dray.controllers.pod_control.pod_templates import named, renamed
from dray.lib.clock import Clock

T = TypeVar("T", bound=Owned)
# Hears how an attempt to create a Pod ended: by an error, or by none.
Tried: TypeAlias = Callable[[APIError | None], None]

OWNER_INDEXES: Final = {BY_OWNER_UID: owner_uids, BY_ORPHAN_NAMESPACE: orphan_index}

FAILED_CREATE: Final = "FailedCreate"
FAILED_DELETE: Final = "FailedDelete"
_CREATED: Final = "SuccessfulCreate"
_DELETED: Final = "SuccessfulDelete"
_SERVER_ERROR: Final = 500
_FIRST_BATCH: Final = 1
# A refused creation is refused for all its siblings alike; this many deletions are under way at once.
DELETIONS_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class NewPod:
    """A Pod to create; `slot` says what it is for."""

    pod: Pod
    slot: Hashable = None


@dataclass(frozen=True, slots=True)
class Keeper:
    """A controller that keeps Pods: of which owners, under which name it tells events, and what it holds Pods by."""

    owners: Resource[Any]
    component: str
    finalizer: str = ""


def _unheard(_error: APIError | None) -> None:
    """Nobody counts the attempts."""


class PodControl:
    """The Pods of one kind of owner."""

    def __init__(
        self, client: Client, informers: SharedInformerFactory, clock: Clock, keeper: Keeper, *, rng: random.Random
    ) -> None:
        self._client = client
        self._clock = clock
        self._keeper = keeper
        self._rng = rng
        self.unseen = UnseenPods()
        self.recorder = EventRecorder(client, clock, Source(keeper.component))
        self.pods: SharedInformer[Pod] = informers.informer(PODS, indexes=OWNER_INDEXES)
        self.pods.add_handler(self.unseen.told)
        informers.informer(keeper.owners).add_handler(self._owner_changed)

    def _owner_changed(self, old: Any, new: Any) -> None:
        gone = gone_uid(old, new)
        if gone is not None:
            self.unseen.forget(gone)

    # --- Whose Pods. ---

    def belongings(self, owner: Owner) -> Belongings[Pod]:
        """How the Pods known stand to the owner, the latest writes included."""
        found = _belongings(self.pods, owner)
        return replace(found, owned=self._current(owner, found.owned))

    def _current(self, owner: Owner, pods: Iterable[Pod]) -> tuple[Pod, ...]:
        return self.unseen.over(owner.uid, pods, self._clock.monotonic(), self._clock.now())

    async def claim(self, owner: Owner) -> tuple[Pod, ...]:
        """The owner's Pods, after those it should have were adopted and those it should not have were let go."""
        await self._confirm(owner)
        found = self.belongings(owner)
        if not found.adopt and not found.release:
            return found.owned
        keys = [key_of(pod) for pod in found.adopt]
        for key in keys:
            self.unseen.creating(owner.uid, key, None, self._clock.monotonic())
        try:
            keeper = self._keeper
            for pod in await _settle(self._client, PODS, keeper.owners, owner, found, finalizer=keeper.finalizer):
                self.unseen.created(pod)
                keys.remove(key_of(pod))
        finally:
            # What was not adopted is not awaited.
            for key in keys:
                self.unseen.not_created(key)
        return self.belongings(owner).owned

    async def _confirm(self, owner: Owner) -> None:
        """Forget Pods that were deleted before the informer could tell of them."""
        for key in self.unseen.to_confirm(owner.uid, self._clock.monotonic()):
            if await ignore_not_found(self._client.get(PODS, key.name, key.namespace)) is None:
                self.unseen.not_created(key)

    def sooner(self, owner: Owner, wait: float | None) -> Requeue | None:
        """When to look again: after the wait, and sooner while there is something to confirm."""
        if self.unseen.awaits(owner.uid):
            wait = CONFIRMED_SECONDS if wait is None else min(wait, CONFIRMED_SECONDS)
        return None if wait is None else Requeue(wait)

    # --- Writes. ---

    async def create(
        self, owner: Owner, about: Any, pods: Sequence[NewPod], *, tried: Tried = _unheard
    ) -> APIError | None:
        """Create in growing batches, so that what the server refuses is refused a few times only; the first error.

        `tried` hears how each attempt ended, but for those in a namespace that is on its way out.
        """
        pods = self._with_lost(owner, pods)
        size = _FIRST_BATCH
        while pods:
            batch, pods = pods[:size], pods[size:]
            outcomes = await asyncio.gather(*(self._create_one(owner, about, item, tried) for item in batch))
            failure = next((outcome for outcome in outcomes if outcome is not None), None)
            if failure is not None:
                return failure
            size *= 2
        return None

    async def delete(self, about: Any, pods: Sequence[Pod]) -> APIError | None:
        """Delete; the first error. A Pod that is gone already is no error."""
        failure: APIError | None = None
        for start in range(0, len(pods), DELETIONS_AT_ONCE):
            batch = pods[start : start + DELETIONS_AT_ONCE]
            outcomes = await asyncio.gather(*(self._delete_one(about, pod) for pod in batch))
            failure = next((outcome for outcome in (failure, *outcomes) if outcome is not None), None)
        return failure

    def _with_lost(self, owner: Owner, pods: Sequence[NewPod]) -> list[NewPod]:
        """Give the Pods the names under which they may exist already; what is not wanted any more is let be."""
        waiting: dict[Hashable, list[str]] = defaultdict(list)
        for key, slot in self.unseen.lost(owner.uid):
            waiting[slot].append(key.name)
        return [
            NewPod(renamed(item.pod, waiting[item.slot].pop(0)), item.slot) if waiting[item.slot] else item
            for item in pods
        ]

    async def _create_one(self, owner: Owner, about: Any, item: NewPod, tried: Tried) -> APIError | None:
        wanted = item.pod if item.pod.metadata.name else named(item.pod, self._rng)
        key = key_of(wanted)
        self.unseen.creating(owner.uid, key, item.slot, self._clock.monotonic())
        try:
            pod = await self._create_or_find(owner, wanted)
        except APIError as error:
            if error.code < _SERVER_ERROR:
                self.unseen.not_created(key)
            if is_namespace_terminating(error):
                return None
            self._tell(about, WARNING, FAILED_CREATE, f"Error creating: {error.message}")
            tried(error)
            return error
        self.unseen.created(pod)
        tried(None)
        self._tell(about, NORMAL, _CREATED, f"Created pod: {pod.metadata.name}")
        return None

    async def _create_or_find(self, owner: Owner, pod: Pod) -> Pod:
        try:
            return await self._client.create(PODS, pod)
        except AlreadyExistsError:
            key = key_of(pod)
            found = await self._client.get(PODS, key.name, key.namespace)
            controller = controller_of(found)
            if controller is None or controller.uid != owner.uid:
                raise
            return found

    async def _delete_one(self, about: Any, pod: Pod) -> APIError | None:
        key, uid = key_of(pod), pod.metadata.uid or ""
        self.unseen.deleting(uid, self._clock.monotonic())
        try:
            await self._client.delete(PODS, key.name, key.namespace, DeleteOptions(uid=uid))
        except NotFoundError:
            return None
        except APIError as error:
            self.unseen.not_deleted(uid)
            self._tell(about, WARNING, FAILED_DELETE, f"Error deleting: {error.message}")
            return error
        self._tell(about, NORMAL, _DELETED, f"Deleted pod: {key.name}")
        return None

    def _tell(self, about: Any, event_type: str, reason: str, message: str) -> None:
        self.recorder.event(self._keeper.owners.group_version_kind, about, event_type, reason, message)


async def claim(client: Client, items: SharedInformer[T], owners: Resource[Any], owner: Owner) -> tuple[T, ...]:
    """The owner's items, after those it should have were adopted and those it should not have were let go."""
    found = _belongings(items, owner)
    if not found.adopt and not found.release:
        return found.owned
    return (*found.owned, *await _settle(client, items.resource, owners, owner, found))


def _belongings(items: SharedInformer[T], owner: Owner) -> Belongings[T]:
    """How the items known stand to the owner; their informer has `OWNER_INDEXES`."""
    lister = items.lister
    return sort_out(owner, lister.owned_by(owner.uid), lister.by_index(BY_ORPHAN_NAMESPACE, owner.namespace))


async def _settle(
    client: Client,
    items: Resource[T],
    owners: Resource[Any],
    owner: Owner,
    found: Belongings[T],
    *,
    finalizer: str = "",
) -> tuple[T, ...]:
    """Adopt and let go; those adopted, as they are now."""
    for item in found.release:
        patch = Patch(PatchType.STRATEGIC, release_patch(owner, item, finalizer=finalizer))
        await _patched(client, items, item, patch)
    if not found.adopt or not await _may_adopt(client, owners, owner):
        return ()
    adopted = []
    for item in found.adopt:
        patch = Patch(PatchType.STRATEGIC, adoption_patch(owner, item, finalizer=finalizer))
        answer = await _patched(client, items, item, patch)
        if answer is not None:
            adopted.append(answer)
    return tuple(adopted)


async def _patched(client: Client, resource: Resource[T], item: T, patch: Patch) -> T | None:
    key = key_of(item)
    return await ignore_not_found(client.patch(resource, key.name, key.namespace, patch))


async def _may_adopt(client: Client, owners: Resource[Any], owner: Owner) -> bool:
    """Whether the owner is still there: the cache may tell of one that is gone, and its Pods would go with it."""
    live = await ignore_not_found(client.get(owners, owner.name, owner.namespace))
    return live is not None and live.metadata.uid == owner.uid and live.metadata.deletion_timestamp is None


def is_namespace_terminating(error: APIError) -> bool:
    """Whether nothing can be created because the namespace is on its way out."""
    causes = (error.details or {}).get("causes") or ()
    return any(cause.get("reason") == "NamespaceTerminating" for cause in causes)
