"""Creates, deletes, adopts and releases the Pods of one kind of owner, with events."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from dray.api.errors import AlreadyExistsError, APIError, NotFoundError
from dray.api.types.core_v1 import Pod
from dray.client.controller import Requeue
from dray.client.errors import ignore_not_found
from dray.client.event_recorder import NORMAL, WARNING, EventRecorder
from dray.client.indexer import BY_OWNER_UID
from dray.client.interface import DeleteOptions, Resource
from dray.client.objects import controller_of, key_of, owner_uids
from dray.client.resources import PODS
from dray.client.shared_informers import SharedInformer
from dray.controllers.pod_control.adoption import adopt_and_release, cached_dependents
from dray.controllers.pod_control.expectations import CONFIRM_SECONDS, PodExpectations
from dray.controllers.pod_control.ownership import BY_ORPHAN_NAMESPACE, Dependents, Owner, gone_uid, orphan_index
from dray.controllers.pod_control.pod_templates import with_name, with_random_name
from dray.controllers.reconciler import ControllerContext

# Called after each attempt to create a Pod, with its error if it failed.
OnCreated: TypeAlias = Callable[[APIError | None], None]

OWNER_INDEXES: Final = {BY_OWNER_UID: owner_uids, BY_ORPHAN_NAMESPACE: orphan_index}

FAILED_CREATE: Final = "FailedCreate"
FAILED_DELETE: Final = "FailedDelete"
_CREATED: Final = "SuccessfulCreate"
_DELETED: Final = "SuccessfulDelete"
_SERVER_ERROR: Final = 500
# As in client-go (slow start): batches double, since an error of one Pod is likely to affect its siblings.
_FIRST_BATCH: Final = 1
# Concurrent deletions.
DELETIONS_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class NewPod:
    """A Pod to create; `slot` identifies what it is for: a node, an index, or None."""

    pod: Pod
    slot: Hashable = None


@dataclass(frozen=True, slots=True)
class PodEventTexts:
    """The messages of events about Pods, with the fields `pod`, `owner` and `error`."""

    created: str = "Created pod: {pod}"
    not_created: str = "Error creating: {error}"
    deleted: str = "Deleted pod: {pod}"
    not_deleted: str = "Error deleting: {error}"


_TEXTS: Final = PodEventTexts()


def _ignore(_error: APIError | None) -> None:
    """Do nothing."""


class PodControl:
    """The Pods of one kind of owner."""

    def __init__(
        self,
        context: ControllerContext,
        owners: Resource[Any],
        recorder: EventRecorder,
        *,
        finalizer: str = "",
        texts: PodEventTexts = _TEXTS,
        is_member: Callable[[Owner, Pod], bool] = lambda _owner, _pod: True,
    ) -> None:
        self._client = context.client
        self._clock = context.clock
        self._rng = context.rng
        self._owners = owners
        self._recorder = recorder
        self._texts = texts
        # Whether an orphan that the selector matches can be adopted.
        self._is_member = is_member
        # Set on adopted Pods and removed from released ones.
        self._finalizer = finalizer
        self.expectations = PodExpectations()
        self.pods: SharedInformer[Pod] = context.informers.informer(PODS, indexes=OWNER_INDEXES)
        self.pods.add_handler(self.expectations.observe_creation, needed_while=self.expectations.creations)
        self.pods.add_handler(self.expectations.observe_deletion, needed_while=self.expectations.deletions)
        context.informers.informer(owners).add_handler(self._owner_changed)

    def _owner_changed(self, old: Any, new: Any) -> None:
        gone = gone_uid(old, new)
        if gone is not None:
            self.expectations.delete(gone)

    # --- The Pods of an owner. ---

    def dependents(self, owner: Owner) -> Dependents[Pod]:
        """Compare the cached Pods, with this controller's latest writes applied, with the owner's selector."""
        found = cached_dependents(self.pods, owner)
        now, wall = self._clock.monotonic(), self._clock.now()
        adopt = tuple(pod for pod in found.adopt if self._is_member(owner, pod))
        return replace(found, owned=self.expectations.apply(owner.uid, found.owned, now, wall), adopt=adopt)

    async def claim(self, owner: Owner) -> tuple[Pod, ...]:
        """Adopt and release Pods as the owner's selector requires; return the owner's Pods."""
        await self._confirm(owner)
        found = self.dependents(owner)
        if not found.adopt and not found.release:
            return found.owned
        keys = [key_of(pod) for pod in found.adopt]
        for key in keys:
            self.expectations.expect_creation(owner.uid, key, None, self._clock.monotonic())
        try:
            for pod in await adopt_and_release(
                self._client, PODS, self._owners, owner, found, finalizer=self._finalizer
            ):
                self.expectations.created(pod)
                keys.remove(key_of(pod))
        finally:
            # No event is expected for Pods that were not adopted.
            for key in keys:
                self.expectations.creation_failed(key)
        return self.dependents(owner).owned

    async def _confirm(self, owner: Owner) -> None:
        """Drop expected Pods that were deleted before the informer could deliver them."""
        for key in self.expectations.to_confirm(owner.uid, self._clock.monotonic()):
            if await ignore_not_found(self._client.get(PODS, key.name, key.namespace)) is None:
                self.expectations.creation_failed(key)

    def requeue_after(self, owner: Owner, wait: float | None) -> Requeue | None:
        """Return when to reconcile again: after the wait, and earlier while expectations are unconfirmed."""
        if self.expectations.pending(owner.uid):
            wait = CONFIRM_SECONDS if wait is None else min(wait, CONFIRM_SECONDS)
        return None if wait is None else Requeue(wait)

    # --- Writes. ---

    async def create(
        self, owner: Owner, about: Any, pods: Sequence[NewPod], *, on_created: OnCreated = _ignore
    ) -> APIError | None:
        """Create Pods in growing batches, so that few requests fail for one cause; return the first error.

        `on_created` is called after each attempt, except in a terminating namespace. Events are about `about`.
        """
        pods = self._reuse_names(owner, pods)
        size = _FIRST_BATCH
        while pods:
            batch, pods = pods[:size], pods[size:]
            outcomes = await asyncio.gather(*(self._create_one(owner, about, item, on_created) for item in batch))
            failure = next((outcome for outcome in outcomes if outcome is not None), None)
            if failure is not None:
                return failure
            size *= 2
        return None

    async def delete(self, about: Any, pods: Sequence[Pod]) -> APIError | None:
        """Delete Pods; return the first error. A Pod that does not exist is no error."""
        failure: APIError | None = None
        for start in range(0, len(pods), DELETIONS_MAX):
            batch = pods[start : start + DELETIONS_MAX]
            outcomes = await asyncio.gather(*(self._delete_one(about, pod) for pod in batch))
            failure = next((outcome for outcome in (failure, *outcomes) if outcome is not None), None)
        return failure

    def _reuse_names(self, owner: Owner, pods: Sequence[NewPod]) -> list[NewPod]:
        """Give Pods the names of earlier creations with unknown outcome, so that none is created twice."""
        names: dict[Hashable, list[str]] = defaultdict(list)
        for key, slot in self.expectations.unanswered(owner.uid):
            names[slot].append(key.name)
        return [
            NewPod(with_name(item.pod, names[item.slot].pop(0)), item.slot) if names[item.slot] else item
            for item in pods
        ]

    async def _create_one(self, owner: Owner, about: Any, item: NewPod, on_created: OnCreated) -> APIError | None:
        wanted = item.pod if item.pod.metadata.name else with_random_name(item.pod, self._rng)
        key = key_of(wanted)
        self.expectations.expect_creation(owner.uid, key, item.slot, self._clock.monotonic())
        try:
            pod = await self._create_or_find(owner, wanted)
        except APIError as error:
            if error.code < _SERVER_ERROR:
                self.expectations.creation_rejected(key)
            if is_namespace_terminating(error):
                return None
            self._record(about, WARNING, FAILED_CREATE, self._texts.not_created, key.name, error.message)
            on_created(error)
            return error
        self.expectations.created(pod)
        on_created(None)
        self._record(about, NORMAL, _CREATED, self._texts.created, pod.metadata.name or "")
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
        self.expectations.expect_deletion(uid, self._clock.monotonic())
        try:
            await self._client.delete(PODS, key.name, key.namespace, DeleteOptions(uid=uid))
        except NotFoundError:
            self._drop_observed_deletion(pod)
            return None
        except APIError as error:
            self.expectations.deletion_failed(uid)
            self._record(about, WARNING, FAILED_DELETE, self._texts.not_deleted, key.name, error.message)
            return error
        self._drop_observed_deletion(pod)
        self._record(about, NORMAL, _DELETED, self._texts.deleted, key.name)
        return None

    def _drop_observed_deletion(self, pod: Pod) -> None:
        """Expect no event of a deletion that the informer delivered before the request: another client's."""
        cached = self.pods.lister.get_key(key_of(pod))
        same = cached is not None and cached.metadata.uid == pod.metadata.uid
        if cached is None or not same or cached.metadata.deletion_timestamp is not None:
            self.expectations.deletion_failed(pod.metadata.uid or "")

    def _record(self, about: Any, event_type: str, reason: str, text: str, pod: str, error: str = "") -> None:
        message = text.format(pod=pod, owner=key_of(about).name, error=error)
        self._recorder.event(self._owners.group_version_kind, about, event_type, reason, message)


def is_namespace_terminating(error: APIError) -> bool:
    """Return whether the request failed because the namespace is being deleted."""
    causes = (error.details or {}).get("causes") or ()
    return any(cause.get("reason") == "NamespaceTerminating" for cause in causes)
