"""Watches every served kind, checks candidates by live reads and performs what the plan decides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final

from dray.api.document import UID, Document, GroupResource, GroupVersionKind
from dray.api.errors import ConflictError, NotFoundError
from dray.client.controller import Requeue, Result
from dray.client.errors import ignore_not_found
from dray.client.interface import DeleteOptions, IncompleteDiscoveryError, Patch, PatchType, Resource, ServedResource
from dray.client.objects import OwnerReference, uid_of
from dray.controllers.garbage_collector import plan
from dray.controllers.garbage_collector.deadline_set import DeadlineSet
from dray.controllers.garbage_collector.graph import FOREGROUND, ORPHAN, Graph, Node, Observed, observe
from dray.controllers.garbage_collector.monitors import Monitor, SharedMonitor, reduce_metadata
from dray.controllers.reconciler import ControllerContext, Reconciler
from dray.lib.lru import LRUSet
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)

# Events are numerous and have no owners.
IGNORED: Final = frozenset({GroupResource("", "events"), GroupResource("events.k8s.io", "events")})
NEEDED_VERBS: Final = frozenset({"delete", "list", "watch"})
CRDS: Final = GroupResource("apiextensions.k8s.io", "customresourcedefinitions")
# Covers the dependents of one owner that are checked in a row.
ABSENT_MAX: Final = 500
# Custom resource definitions trigger discovery at once; this covers servers without them and missed events.
DISCOVERY_SECONDS: Final = 30.0
# How soon groups that could not be read are read again.
INCOMPLETE_DISCOVERY_SECONDS: Final = 5.0
# How long collection waits for the first list of a new kind.
SYNC_TIMEOUT_SECONDS: Final = 10.0
# How soon a dependent is checked again whose owner exists but is not in the graph yet.
UNOBSERVED_OWNER_SECONDS: Final = 5.0
# A controller that sets a finalizer often deletes the object itself when the owner is deleted; deleting it at the same
# time would only cause conflicts.
FINALIZER_GRACE_SECONDS: Final = 1.0
CONFLICTS_MAX: Final = 5

# The key of discovery.
_DISCOVERY: Final = UID("")
# The key of dependents whose grace period has ended.
_DEADLINES: Final = UID("deadlines")


class UnknownKindError(Exception):
    """An owner reference names a kind that is not served at present."""


class GarbageCollector(Reconciler[UID]):
    """Deletes objects whose owners are gone; its whole state can be rebuilt from the API server.

    `shared` are the kinds whose full objects other controllers cache: their informers are used, so that no metadata is
    requested in addition.
    """

    name = "garbage_collector"
    workers = 20

    def __init__(self, context: ControllerContext, *, shared: Iterable[Resource[Any]] = ()) -> None:
        super().__init__(context)
        self._informers = context.informers
        self._graph = Graph()
        self._shared = {resource.group_resource: resource for resource in shared}
        self._monitors: dict[GroupResource, Monitor] = {}
        # Monitors whose first list is not complete.
        self._new_kinds: dict[GroupResource, Monitor] = {}
        # Dependents of a deleted owner that have a finalizer of another controller.
        self._deadlines = DeadlineSet(FINALIZER_GRACE_SECONDS)
        self._by_kind: dict[GroupVersionKind, ServedResource] = {}
        # Owners known to be absent: uids of deleted objects, and references that a live read could not resolve.
        self._absent: LRUSet[tuple[str, ...]] = LRUSet(ABSENT_MAX)

    async def run(self) -> None:
        """Collect garbage until cancelled."""
        self.controller.queue.add(_DISCOVERY)
        await super().run()

    async def reconcile(self, uid: UID) -> Result:
        """Check one object, repeat discovery, or check the dependents whose grace period has ended."""
        if uid == _DISCOVERY:
            complete = await self._discover()
            return Requeue(DISCOVERY_SECONDS if complete else INCOMPLETE_DISCOVERY_SECONDS)
        if uid == _DEADLINES:
            return self._check_expired()
        return await self._check(uid)

    async def _check(self, uid: UID) -> Result:
        await self._wait_for_new_kinds()
        node = self._graph.node(uid)
        if node is None or node.observed is None:
            return None
        known = node.observed
        if known.being_deleted and not (known.deleting_dependents or known.orphaning):
            return None
        document = await self._read(known)
        if document is None:
            # Deleted already; the watch event enqueues its dependents.
            return None
        live = observe(known.resource, document)
        if (live.deleting_dependents, live.orphaning) != (known.deleting_dependents, known.orphaning):
            # The graph is stale; the watch event of this change enqueues the object again.
            return None
        return await self._act(node, document, live)

    # --- Discovery and monitors. ---

    async def _discover(self) -> bool:
        """Start and stop monitors; return whether every group could be read."""
        try:
            served, complete = await self._client.resources(complete=True), True
        except IncompleteDiscoveryError as error:
            served, complete = error.found, False
        kept = {} if complete else self._by_kind
        self._by_kind = kept | {GroupVersionKind(item.group, item.version, item.kind): item for item in served}
        wanted = {
            GroupResource(item.group, item.plural): item for item in served if item.preferred and _collectable(item)
        }
        # A kind is given up only if it is certain that it is no longer served.
        for resource in tuple(self._monitors) if complete else ():
            if resource not in wanted:
                self._stop_monitor(resource)
        for resource, item in wanted.items():
            if resource not in self._monitors:
                self._start_monitor(resource, item)
        return complete

    def _start_monitor(self, resource: GroupResource, item: ServedResource) -> None:
        monitor = self._monitors[resource] = self._new_kinds[resource] = self._monitor(resource, item)
        if resource == CRDS:
            monitor.informer.add_handler(lambda _old, _new: self.controller.queue.add(_DISCOVERY))
        monitor.informer.add_handler(partial(self._changed, monitor))

    def _monitor(self, resource: GroupResource, item: ServedResource) -> Monitor:
        requests, now = item.resource(metadata_only=True), self._clock.monotonic()
        shared = self._shared.get(resource)
        if shared is not None:
            return SharedMonitor(resource, requests, self._informers.informer(shared), now)
        informer = self._informers.transformed(requests, lambda document: reduce_metadata(resource, document))
        return Monitor(resource, requests, informer, now)

    def _stop_monitor(self, resource: GroupResource) -> None:
        if isinstance(self._monitors[resource], SharedMonitor):
            # Other controllers use the informer.
            return
        monitor = self._monitors.pop(resource)
        self._new_kinds.pop(resource, None)
        self._informers.stop(monitor.requests)
        self._enqueue(self._graph.remove_resource(resource))

    def _changed(self, monitor: Monitor, old: Any, new: Any) -> None:
        if new is None:
            self._gone(uid_of(old))
            return
        if old is not None:
            concerns_graph = monitor.is_relevant_change(old, new)
        else:
            # Most new objects have no owners, and nothing references them yet.
            concerns_graph = monitor.may_be_dependent(new) or self._graph.node(uid_of(new)) is not None
        if concerns_graph:
            observed = monitor.observe(new)
            self._add_owners(observed)
            self._enqueue(self._graph.put(observed))

    def _gone(self, uid: UID) -> None:
        self._absent.add((uid,))
        self._deadlines.discard(uid)
        self._enqueue_dependents(self._graph.remove(uid))

    def _enqueue_dependents(self, uids: tuple[UID, ...]) -> None:
        """Enqueue the dependents of a deleted owner; those with foreign finalizers after a grace period."""
        for uid in uids:
            node = self._graph.node(uid)
            if node is not None and node.observed is not None and node.observed.has_foreign_finalizer:
                if self._deadlines.add(uid, self._clock.monotonic()):
                    self.controller.queue.add_after(_DEADLINES, FINALIZER_GRACE_SECONDS)
            else:
                self.controller.queue.add(uid)

    def _check_expired(self) -> Result:
        now = self._clock.monotonic()
        self._enqueue(self._deadlines.pop_expired(now))
        left = self._deadlines.next_seconds(now)
        return Requeue(left) if left is not None else None

    def _add_owners(self, dependent: Observed) -> None:
        """Add the cached owners of a dependent to the graph."""
        for owner in dependent.owners:
            if self._graph.is_observed(owner.uid):
                continue
            known = self._cached(owner, dependent.namespace)
            if known is not None and known.uid == owner.uid:
                self._enqueue(self._graph.put(known, as_owner=True))

    def _cached(self, owner: OwnerReference, namespace: str) -> Observed | None:
        group, _, version = owner.api_version.rpartition("/")
        served = self._by_kind.get(GroupVersionKind(group, version, owner.kind))
        monitor = self._monitors.get(GroupResource(served.group, served.plural)) if served is not None else None
        return monitor.find(owner.name, namespace) if monitor is not None else None

    def _enqueue(self, uids: tuple[UID, ...]) -> None:
        for uid in uids:
            self.controller.queue.add(uid)

    async def _wait_for_new_kinds(self) -> None:
        """Wait for the first list of newly discovered kinds, since it may contain dependents."""
        for resource, monitor in tuple(self._new_kinds.items()):
            left = monitor.since + SYNC_TIMEOUT_SECONDS - self._clock.monotonic()
            if left > 0 and not monitor.informer.synced:
                await _within(left, monitor.informer.wait_for_sync)
            if self._new_kinds.get(resource) is monitor:
                del self._new_kinds[resource]

    # --- Checking one object. ---

    async def _act(self, node: Node, document: Document, live: Observed) -> Result:
        if live.being_deleted:
            await self._perform(live, document, plan.plan_being_deleted(live, node))
            return None
        try:
            states = {owner.uid: await self._owner_state(live, owner) for owner in live.owners}
        except _InvalidOwnerError as error:
            _log.warning("invalid owner reference", extra=fields(object=_name(live), error=str(error)))
            return None
        await self._perform(live, document, plan.plan_owned(live, states, tuple(node.dependents.values())))
        if not self._has_only_unobserved_owners(states):
            return None
        self._add_owners(live)
        return Requeue(UNOBSERVED_OWNER_SECONDS)

    def _has_only_unobserved_owners(self, states: dict[UID, plan.OwnerState]) -> bool:
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
        document = await ignore_not_found(self._client.get(resource, owner.name, dependent.namespace))
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
        """Read the object from the API server; None if it does not exist or has another uid."""
        resource = self._resource(known)
        if resource is None:
            return None
        document = await ignore_not_found(self._client.get(resource, known.name, known.namespace))
        return document if document is not None and document["metadata"].get("uid") == known.uid else None

    def _resource(self, known: Observed) -> Resource[Document] | None:
        monitor = self._monitors.get(known.resource)
        return monitor.requests if monitor is not None else None

    # --- Writing. ---

    async def _perform(self, live: Observed, document: Document, step: plan.Step) -> None:
        match step:
            case plan.Nothing():
                return
            case plan.CheckDependents(uids):
                self._enqueue(uids)
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
        # The resource version rejects the deletion if an owner was added after the live read.
        options = DeleteOptions(uid=live.uid, resource_version=version, propagation_policy=step.policy)
        await ignore_not_found(self._client.delete(resource, live.name, live.namespace, options))

    async def _patch(
        self, known: Observed, document: Document | None, make: Callable[[Document], Document | None]
    ) -> None:
        """Write a patch bound to the version read; after a conflict read again and retry."""
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
