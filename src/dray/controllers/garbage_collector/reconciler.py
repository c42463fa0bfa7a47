"""The garbage collector's hands: follows every served kind, looks at objects live, writes what the plan says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from dray.api.document import UID, Document, GroupResource, GroupVersionKind
from dray.api.errors import ConflictError, NotFoundError
from dray.client.controller import Controller, Requeue, Result
from dray.client.interface import Client, DeleteOptions, Patch, PatchType, Resource, ServedResource
from dray.client.objects import OwnerReference, uid_of
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.garbage_collector import plan
from dray.controllers.garbage_collector.deadline_set import Patience
from dray.controllers.garbage_collector.graph import FOREGROUND, ORPHAN, Graph, Node, Observed, observe
from dray.controllers.garbage_collector.monitors import Monitor, SharedMonitor, keep
from dray.lib.clock import Clock
from dray.lib.lru import LRUSet
from dray.runtime.logs import fields
from dray.runtime.metrics import Metrics

_log = logging.getLogger(__name__)

# Events have no owners that matter and come in great numbers.
IGNORED: Final = frozenset({GroupResource("", "events"), GroupResource("events.k8s.io", "events")})
NEEDED_VERBS: Final = frozenset({"delete", "list", "watch"})
CRDS: Final = GroupResource("apiextensions.k8s.io", "customresourcedefinitions")
WORKERS: Final = 20
# As many as the most common owner has dependents in one wave of deletions.
ABSENT_MAX: Final = 500
# Custom resource definitions wake discovery at once; this only covers servers that have none, or lost events.
DISCOVERY_SECONDS: Final = 30.0
# How long the objects of a kind that cannot be listed are waited for before others go on without them.
SYNC_PATIENCE_SECONDS: Final = 10.0
# An owner that is there but not in the graph yet will be; until then the dependent is looked at again.
UNOBSERVED_OWNER_SECONDS: Final = 5.0
# Who put a finalizer on an object often tidies up by itself when the owner goes; deleting the object meanwhile would
# only make their writes and ours refuse each other.
FINALIZER_PATIENCE_SECONDS: Final = 1.0
CONFLICTS_MAX: Final = 5

# The key that stands for "find out which kinds are served".
_DISCOVERY: Final = UID("")
# The key that stands for "whose time is over".
_PATIENCE: Final = UID("patience")


class UnknownKindError(Exception):
    """An owner reference names a kind that is not served (now)."""


class GarbageCollector:
    """Runs until cancelled; everything it knows can be rebuilt from the server.

    `whole` are the kinds that others follow with the same informers: of these no metadata is asked for beside.
    """

    def __init__(
        self,
        client: Client,
        informers: SharedInformerFactory,
        clock: Clock,
        metrics: Metrics | None = None,
        *,
        whole: Iterable[Resource[Any]] = (),
    ) -> None:
        self._client = client
        self._informers = informers
        self._clock = clock
        self._graph = Graph()
        self._whole = {resource.group_resource: resource for resource in whole}
        self._monitors: dict[GroupResource, Monitor] = {}
        # Monitors whose objects are not all known yet.
        self._new_kinds: dict[GroupResource, Monitor] = {}
        # Dependents of an owner that is gone, held by somebody's finalizer.
        self._held = Patience(FINALIZER_PATIENCE_SECONDS)
        self._by_kind: dict[GroupVersionKind, ServedResource] = {}
        # Owners known to be gone: a uid that was seen to go, or a whole reference that a live read denied.
        self._absent: LRUSet[tuple[str, ...]] = LRUSet(ABSENT_MAX)
        self.controller: Controller[UID] = Controller(
            "garbage_collector", self.reconcile, clock, metrics=metrics, workers=WORKERS
        )

    async def run(self) -> None:
        """Collect garbage until cancelled."""
        self.controller.queue.add(_DISCOVERY)
        await self.controller.run()

    async def reconcile(self, uid: UID) -> Result:
        """Look at one object, at which kinds there are, or at whose time is over."""
        if uid == _DISCOVERY:
            await self._discover()
            return Requeue(DISCOVERY_SECONDS)
        if uid == _PATIENCE:
            return self._end_patience()
        return await self._look(uid)

    async def _look(self, uid: UID) -> Result:
        await self._wait_for_new_kinds()
        node = self._graph.node(uid)
        if node is None or node.observed is None:
            return None
        known = node.observed
        if known.being_deleted and not (known.deleting_dependents or known.orphaning):
            return None
        document = await self._read(known)
        if document is None:
            # Gone already; the watch will say so, and then its dependents are looked at.
            return None
        live = observe(known.resource, document)
        if (live.deleting_dependents, live.orphaning) != (known.deleting_dependents, known.orphaning):
            # The graph is behind; the watch's news of this very change will have it looked at again.
            return None
        return await self._act(node, document, live)

    # --- Which kinds are there. ---

    async def _discover(self) -> None:
        served = await self._client.resources()
        self._by_kind = {GroupVersionKind(item.group, item.version, item.kind): item for item in served}
        wanted = {
            GroupResource(item.group, item.plural): item for item in served if item.preferred and _collectable(item)
        }
        for resource in tuple(self._monitors):
            if resource not in wanted:
                self._unfollow(resource)
        for resource, item in wanted.items():
            if resource not in self._monitors:
                self._follow(resource, item)

    def _follow(self, resource: GroupResource, item: ServedResource) -> None:
        monitor = self._monitors[resource] = self._new_kinds[resource] = self._monitor(resource, item)
        if resource == CRDS:
            monitor.informer.add_handler(lambda _old, _new: self.controller.queue.add(_DISCOVERY))
        monitor.informer.add_handler(lambda old, new: self._changed(monitor, old, new))

    def _monitor(self, resource: GroupResource, item: ServedResource) -> Monitor:
        requests, now = item.resource(metadata_only=True), self._clock.monotonic()
        whole = self._whole.get(resource)
        if whole is not None:
            return SharedMonitor(resource, requests, self._informers.informer(whole), now)
        informer = self._informers.transformed(requests, lambda document: keep(resource, document))
        return Monitor(resource, requests, informer, now)

    def _unfollow(self, resource: GroupResource) -> None:
        if isinstance(self._monitors[resource], SharedMonitor):
            # Not ours to stop; it knows as well as anybody whether there is anything left of the kind.
            return
        monitor = self._monitors.pop(resource)
        self._new_kinds.pop(resource, None)
        self._informers.stop(monitor.requests)
        self._look_at(self._graph.remove_resource(resource))

    def _changed(self, monitor: Monitor, old: Any, new: Any) -> None:
        if new is None:
            self._gone(uid_of(old))
        elif old is None or monitor.is_news(old, new):
            observed = monitor.observe(new)
            self._know_owners(observed)
            self._look_at(self._graph.put(observed))

    def _gone(self, uid: UID) -> None:
        self._absent.add((uid,))
        self._held.forget(uid)
        self._look_at_dependents(self._graph.remove(uid))

    def _look_at_dependents(self, uids: tuple[UID, ...]) -> None:
        """An owner is gone: whoever holds a dependent by a finalizer is given time to do away with it."""
        for uid in uids:
            node = self._graph.node(uid)
            if node is not None and node.observed is not None and node.observed.is_held:
                if self._held.begin(uid, self._clock.monotonic()):
                    self.controller.queue.add_after(_PATIENCE, FINALIZER_PATIENCE_SECONDS)
            else:
                self.controller.queue.add(uid)

    def _end_patience(self) -> Result:
        now = self._clock.monotonic()
        self._look_at(self._held.ended(now))
        left = self._held.left(now)
        return Requeue(left) if left is not None else None

    def _know_owners(self, dependent: Observed) -> None:
        """Put owners into the graph that were of no interest until now."""
        for owner in dependent.owners:
            if self._graph.is_observed(owner.uid):
                continue
            known = self._cached(owner, dependent.namespace)
            if known is not None and known.uid == owner.uid:
                self._look_at(self._graph.put(known, as_owner=True))

    def _cached(self, owner: OwnerReference, namespace: str) -> Observed | None:
        group, _, version = owner.api_version.rpartition("/")
        served = self._by_kind.get(GroupVersionKind(group, version, owner.kind))
        monitor = self._monitors.get(GroupResource(served.group, served.plural)) if served is not None else None
        return monitor.find(owner.name, namespace) if monitor is not None else None

    def _look_at(self, uids: tuple[UID, ...]) -> None:
        for uid in uids:
            self.controller.queue.add(uid)

    async def _wait_for_new_kinds(self) -> None:
        """Dependents of a kind just discovered must be known before anything is decided."""
        for resource, monitor in tuple(self._new_kinds.items()):
            left = monitor.since + SYNC_PATIENCE_SECONDS - self._clock.monotonic()
            if left > 0 and not monitor.informer.synced:
                await _within(left, monitor.informer.wait_for_sync)
            if self._new_kinds.get(resource) is monitor:
                del self._new_kinds[resource]

    # --- Looking at one object. ---

    async def _act(self, node: Node, document: Document, live: Observed) -> Result:
        if live.being_deleted:
            await self._perform(live, document, plan.plan_being_deleted(live, node))
            return None
        try:
            states = {owner.uid: await self._owner_state(live, owner) for owner in live.owners}
        except _InvalidOwnerError as error:
            _log.warning("owner cannot be", extra=fields(object=_name(live), error=str(error)))
            return None
        await self._perform(live, document, plan.plan_owned(live, states, tuple(node.dependents.values())))
        if not self._rests_on_unobserved(states):
            return None
        self._know_owners(live)
        return Requeue(UNOBSERVED_OWNER_SECONDS)

    def _rests_on_unobserved(self, states: dict[UID, plan.OwnerState]) -> bool:
        present = [uid for uid, state in states.items() if state is plan.OwnerState.PRESENT]
        nodes = [self._graph.node(uid) for uid in present]
        return bool(nodes) and all(node is None or node.observed is None for node in nodes)

    async def _owner_state(self, dependent: Observed, owner: OwnerReference) -> plan.OwnerState:
        reference = (owner.api_version, owner.kind, dependent.namespace, owner.name, owner.uid)
        if (owner.uid,) in self._absent or reference in self._absent:
            return plan.OwnerState.ABSENT
        served = self._served(owner)
        resource = served.resource(metadata_only=True)
        if served.namespaced and not dependent.namespace:
            raise _InvalidOwnerError(f"{owner.kind} {owner.name} is namespaced and its dependent is not")
        try:
            document = await self._client.get(resource, owner.name, dependent.namespace)
        except NotFoundError:
            document = None
        if document is None or document["metadata"].get("uid") != owner.uid:
            self._absent.add(reference)
            return plan.OwnerState.ABSENT
        live = observe(GroupResource(served.group, served.plural), document)
        return plan.OwnerState.DELETING_DEPENDENTS if live.deleting_dependents else plan.OwnerState.PRESENT

    def _served(self, owner: OwnerReference) -> ServedResource:
        group, _, version = owner.api_version.rpartition("/")
        served = self._by_kind.get(GroupVersionKind(group, version, owner.kind))
        if served is None:
            self.controller.queue.add(_DISCOVERY)
            raise UnknownKindError(f"owner {owner.api_version} {owner.kind} {owner.name}: the kind is not served")
        return served

    async def _read(self, known: Observed) -> Document | None:
        """The object as it is now; None when it, or this uid of it, is gone."""
        resource = self._resource(known)
        if resource is None:
            return None
        try:
            document = await self._client.get(resource, known.name, known.namespace)
        except NotFoundError:
            return None
        return document if document["metadata"].get("uid") == known.uid else None

    def _resource(self, known: Observed) -> Resource[Document] | None:
        monitor = self._monitors.get(known.resource)
        return monitor.requests if monitor is not None else None

    # --- Writing. ---

    async def _perform(self, live: Observed, document: Document, step: plan.Step) -> None:
        match step:
            case plan.Nothing():
                return
            case plan.LookAtDependents(uids):
                self._look_at(uids)
            case plan.DropOwners(uids):
                await self._patch(live, document, lambda read: plan.patch_without_owners(read, uids))
            case plan.FinishForeground():
                await self._patch(live, document, lambda read: plan.patch_without_finalizer(read, FOREGROUND))
            case plan.StopBlocking():
                await self._patch(live, document, plan.patch_unblocking)
            case plan.OrphanDependents(dependents):
                await self._orphan(live, document, dependents)
            case plan.DeleteObject():
                await self._delete(live, document, step)

    async def _orphan(self, live: Observed, document: Document, uids: tuple[UID, ...]) -> None:
        for uid in uids:
            node = self._graph.node(uid)
            known = node.observed if node is not None else None
            read = await self._read(known) if known is not None else None
            if known is not None and read is not None:
                await self._patch(known, read, lambda now: plan.patch_without_owners(now, frozenset({live.uid})))
        await self._patch(live, document, lambda read: plan.patch_without_finalizer(read, ORPHAN))

    async def _delete(self, live: Observed, document: Document, step: plan.DeleteObject) -> None:
        resource = self._resource(live)
        if resource is None:
            return
        version = live.resource_version
        if step.unblock:
            await self._patch(live, document, plan.patch_unblocking)
            version = ""
        _log.debug("deleting", extra=fields(object=_name(live), policy=step.policy.value))
        # The version guards against an owner that was added after the live read.
        options = DeleteOptions(uid=live.uid, resource_version=version, propagation_policy=step.policy)
        try:
            await self._client.delete(resource, live.name, live.namespace, options)
        except NotFoundError:
            return

    async def _patch(
        self, known: Observed, document: Document | None, make: Callable[[Document], Document | None]
    ) -> None:
        """Write a patch bound to what was read; after a conflict read again."""
        resource = self._resource(known)
        for _ in range(CONFLICTS_MAX):
            body = make(document) if document is not None else None
            if body is None or resource is None:
                return
            try:
                await self._client.patch(resource, known.name, known.namespace, Patch(PatchType.MERGE, body))
            except NotFoundError:
                return
            except ConflictError:
                document = await self._read(known)
            else:
                return
        raise ConflictError(known.resource, known.name)


class _InvalidOwnerError(Exception):
    """An owner reference that can never be resolved."""


def _collectable(item: ServedResource) -> bool:
    return item.verbs >= NEEDED_VERBS and GroupResource(item.group, item.plural) not in IGNORED


def _name(live: Observed) -> str:
    return f"{live.resource} {live.namespace}/{live.name}".replace(" /", " ")


async def _within(seconds: float, wait: Callable[[], Awaitable[Any]]) -> None:
    try:
        async with asyncio.timeout(seconds):
            await wait()
    except TimeoutError:
        return
