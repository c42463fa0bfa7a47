"""The driver side of the classic protocol: a crash between any two steps leaks nothing.

The finalizer is set before the author's code is called and removed after it has deallocated. `driverName` marks an
attempt in progress. It is cleared before an attempt with unknown outcome is undone, so that late writes of that attempt
fail. A failure is recorded in the claim's status, and the attempt repeated with backoff; the kit's own writes never
cause another attempt.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from dray.api import classic_claims as classic
from dray.api.classic_claims import Actor, State
from dray.api.document import GroupVersionKind, NamespacedName
from dray.api.errors import APIError, NotFoundError
from dray.api.types.cdi_v1alpha1 import ResourceClaim, ResourceClass
from dray.client.controller import Controller, Requeue, Result
from dray.client.errors import ignore_not_found
from dray.client.event_recorder import WARNING, EventRecorder, Source
from dray.client.indexer import BY_OWNER_UID
from dray.client.interface import Client
from dray.client.objects import key_of, owner_uids
from dray.client.resources import CLASSIC_CLAIMS, CLASSIC_CLASSES
from dray.client.shared_informers import SharedInformerFactory
from dray.driver.classic import plan
from dray.driver.classic.attempts import Attempts, Request
from dray.driver.classic.calls import AuthorCalls, DriverFailedError
from dray.driver.classic.interface import Allocation, ClassicController, NoRoomError, selector_of
from dray.driver.classic.plan import Task
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup

_log = logging.getLogger(__name__)

CLAIM_KIND: Final = GroupVersionKind(classic.GROUP, classic.VERSION, "ResourceClaim")
# Claims reconciled concurrently; calls of the author's code are bounded by `concurrency`.
WORKERS: Final = 32
# Attempts to write an allocation before it is begun again.
ATTEMPTS_MAX: Final = 5
RETRY_SECONDS: Final = 0.05
# Minimal interval between refreshes of unsuitable nodes after allocations and deallocations.
REFRESH_SECONDS: Final = 1.0
# Interval of refreshes for changes outside the driver.
REPEAT_SECONDS: Final = 60.0
_BY_CLASS: Final = "resource-class"
# Tasks of claims that are not allocated; their failures are in the claim's status.
_BEFORE_ALLOCATION: Final = frozenset({Task.CHECK, Task.ALLOCATE, Task.PLACE})
# Something is left to do for the claim.
_AGAIN: Final = Requeue(0.0)


@dataclass(frozen=True, slots=True)
class Refresh:
    """The key that refreshes all waiting claims."""


REFRESH: Final = Refresh()


@dataclass(frozen=True, slots=True)
class _Settled:
    """The version at which a claim was last reconciled, with the writes of that, and when it is due again."""

    version: int
    due: float


class DriverReconciler:
    """Reconciles the claims of one driver; only one instance may be active."""

    def __init__(
        self,
        driver: ClassicController,
        client: Client,
        informers: SharedInformerFactory,
        clock: Clock,
        metrics: Metrics,
        node: str = "",
    ) -> None:
        self._driver = driver
        self._name = driver.name
        # The node to allocate on; empty for a controller of the whole cluster.
        self._node = node
        self._client = client
        self._clock = clock
        self._recorder = EventRecorder(client, clock, Source(driver.name))
        self._author = AuthorCalls(driver, clock, metrics)
        # Whether the driver knows available nodes before it allocates.
        self._announces = type(driver).available_nodes is not ClassicController.available_nodes
        # The newest resource versions written here; the informer may not have delivered them yet.
        self._written: dict[NamespacedName, int] = {}
        self._settled: dict[NamespacedName, _Settled] = {}
        # Claims whose unsuitable nodes were reported, with what was.
        self._waiting: dict[NamespacedName, frozenset[str]] = {}
        self._attempts = Attempts()
        self._refreshing = False
        self._was_freed = False
        self.controller: Controller[NamespacedName | Refresh] = Controller(
            driver.name, self.reconcile, clock, metrics=metrics, workers=WORKERS
        )
        self._claims = informers.informer(CLASSIC_CLAIMS, indexes={_BY_CLASS: _class_of, BY_OWNER_UID: owner_uids})
        self._classes = informers.informer(CLASSIC_CLASSES)
        self.controller.follow(self._classes, self._class_changed)
        self.controller.follow(self._claims, self._claim_changed)

    async def run(self) -> None:
        """Pass the allocated claims to `start`, then reconcile until cancelled; the caller runs the informers."""
        async with TaskGroup(self._name) as group:
            group.spawn(self._recorder.run(), "events")
            await self._classes.wait_for_sync()
            await self._claims.wait_for_sync()
            held = [claim for claim in self._claims.lister.list() if plan.has_finalizer(claim, self._name, self._node)]
            await self._author.call(
                "start", self._driver.start, [plan.to_claim(claim, self._class(claim)) for claim in held]
            )
            await self.controller.run()

    # --- Event handlers. ---

    def _claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        # Allocations by nodes are visible only in claims.
        if self._driver.node_local and plan.changes_capacity(old, new, self._name):
            self._capacity_changed(freed=plan.frees_capacity(old, new, self._name))
        if new is None:
            if old is not None:
                self._forget(key_of(old))
            return
        task = self._task(new)
        if task is not Task.CHECK:
            self._waiting.pop(key_of(new), None)
        if task is not Task.NOTHING:
            self.controller.queue.add(key_of(new))

    def _class_changed(self, _old: ResourceClass | None, new: ResourceClass | None) -> None:
        if new is not None and new.driver_name == self._name:
            for claim in self._claims.lister.by_index(_BY_CLASS, new.metadata.name or ""):
                # Its parameters may have been the cause of a failure.
                self._attempts.forget(key_of(claim))
                self._wake(key_of(claim))

    def _wake(self, key: NamespacedName) -> None:
        self._settled.pop(key, None)
        self.controller.queue.add(key)

    def _forget(self, key: NamespacedName) -> None:
        self._written.pop(key, None)
        self._settled.pop(key, None)
        self._waiting.pop(key, None)
        self._attempts.forget(key)

    def _capacity_changed(self, *, freed: bool) -> None:
        """Schedule a refresh: reported unsuitable nodes may be outdated."""
        self._was_freed |= freed
        if not self._refreshing and (self._waiting or self._attempts):
            self._refreshing = True
            self.controller.queue.add_after(REFRESH, REFRESH_SECONDS)

    def _refresh(self) -> None:
        self._refreshing = False
        waiting = [*self._waiting]
        if self._was_freed:
            waiting += self._attempts.room_was_made()
        self._was_freed = False
        for key in waiting:
            self._wake(key)

    def _class(self, claim: ResourceClaim) -> ResourceClass | None:
        return self._classes.lister.get(claim.spec.resource_class_name)

    def _task(self, claim: ResourceClaim) -> Task:
        claim_class = self._class(claim)
        if self._node:
            return plan.task_on_node(claim, self._name, claim_class, self._node)
        if self._driver.node_local:
            return plan.task_without_allocation(claim, self._name, claim_class, announces=self._announces)
        return plan.task_for(claim, self._name, claim_class, announces=self._announces)

    # --- One claim. ---

    async def reconcile(self, key: NamespacedName | Refresh) -> Result:
        """Perform the driver's task for one claim, unless it was done already or has to wait."""
        if isinstance(key, Refresh):
            self._refresh()
            return None
        claim = self._claims.lister.get_key(key)
        if claim is None or _version(claim) < self._written.get(key, 0):
            # The informer event of the deletion or of the last write enqueues the key again.
            return None
        now = self._clock.monotonic()
        settled = self._settled.pop(key, None)
        if settled is not None and _version(claim) <= settled.version and now < settled.due:
            # Woken by a write of its own.
            return self._settle(key, settled.version, settled.due)
        request = Request(claim.metadata.uid or "", self._task(claim), classic.selected_node(claim))
        wait = self._attempts.wait(key, request, now)
        if wait > 0:
            return self._settle(key, _version(claim), now + wait)
        try:
            result = await self._perform(claim, request)
        except DriverFailedError as failure:
            result = await self._failed(claim, request, failure)
        due = self._clock.monotonic() + result.after_seconds if result is not None else math.inf
        return self._settle(key, max(_version(claim), self._written.get(key, 0)), due)

    def _settle(self, key: NamespacedName, version: int, due: float) -> Result:
        if self._claims.lister.get_key(key) is None:
            # Deleted meanwhile: no later event would remove what is known of it.
            self._forget(key)
            return None
        self._settled[key] = _Settled(version, due)
        return None if due == math.inf else Requeue(due - self._clock.monotonic())

    async def _perform(self, claim: ResourceClaim, request: Request) -> Result:
        claim_class = self._class(claim)
        match request.task:
            case Task.PLACE:
                return await self._select_node(claim, request)
            case Task.CHECK if claim_class is not None:
                return await self._check(claim)
            case Task.ALLOCATE if claim_class is not None:
                return await self._allocate(claim, claim_class, request)
            case Task.FREE:
                await self._free(claim)
            case Task.CLEAN:
                await self._clean(claim)
            case Task.RELEASE:
                await self._deallocate(claim)
                await self._remove_finalizer(claim)
            case _:
                return None
        self._attempts.succeeded(key_of(claim))
        return _AGAIN

    async def _failed(self, claim: ResourceClaim, request: Request, failure: DriverFailedError) -> Result:
        """Report a failure of the author's code, and repeat the call later."""
        wait = self._attempts.failed(key_of(claim), request, self._clock.monotonic())
        reason = "FailedDeallocation" if failure.operation == "deallocate" else "FailedAllocation"
        self._recorder.event(CLAIM_KIND, claim, WARNING, reason, str(failure))
        try:
            current = await self._live(claim)
            if current is None or self._task(current) not in _BEFORE_ALLOCATION:
                return Requeue(wait)
            after = plan.with_failure(current, classic.DRIVER_FAILED, str(failure), self._clock.now())
            if after is not None:
                await self._write_status(current, after)
        except APIError as error:
            _log.info("failure not recorded", extra=fields(claim=classic.label(claim), error=str(error)))
        return Requeue(wait)

    # --- Nodes. ---

    async def _check(self, claim: ResourceClaim) -> Result:
        key = key_of(claim)
        if self._driver.node_local:
            # What was not reported here was refused by nodes.
            listed = frozenset(classic.driver_status(claim).unsuitable_nodes)
            refused = listed - self._waiting.get(key, frozenset())
            if refused:
                self._attempts.refuse(key, refused, self._clock.monotonic())
        unsuitable = await self._unsuitable(claim)
        available = None
        if self._announces:
            mine = plan.to_claim(claim, self._class(claim))
            available = selector_of(await self._author.call("available_nodes", self._driver.available_nodes, mine))
        self._waiting[key] = frozenset(unsuitable)
        after = plan.with_nodes(claim, unsuitable, available)
        if after is not None:
            await self._write_status(claim, after)
        self._attempts.succeeded(key)
        return Requeue(self._attempts.refused_for(key, self._clock.monotonic()) or REPEAT_SECONDS)

    async def _unsuitable(self, claim: ResourceClaim) -> set[str]:
        """Return the nodes that the driver reports, and those it has refused."""
        refused = self._attempts.refused(key_of(claim), self._clock.monotonic())
        # Including nodes reported before: the scheduler omits them from the potential nodes.
        nodes = sorted(
            {*classic.scheduler_status(claim).potential_nodes, *classic.driver_status(claim).unsuitable_nodes}
        )
        if not nodes:
            return {*refused}
        owners = [owner.uid for owner in claim.metadata.owner_references if owner.controller]
        pod_claims = [item for uid in owners for item in self._claims.lister.owned_by(uid)]
        unallocated = [
            item
            for item in plan.siblings(claim, pod_claims)
            if item is claim or self._task(item) in (Task.CHECK, Task.ALLOCATE)
        ]
        arguments = [plan.to_claim(item, self._class(item)) for item in unallocated]
        return {*refused, *await self._author.call("unsuitable_nodes", self._driver.unsuitable_nodes, arguments, nodes)}

    async def _select_node(self, claim: ResourceClaim, request: Request) -> Result:
        """Select a node as the scheduler would; when all nodes have rejected the claim, retry with backoff."""
        refused = classic.driver_status(claim).unsuitable_nodes
        mine = plan.to_claim(claim, self._class(claim))
        node = await self._author.call("choose_node", self._driver.choose_node, mine, refused)
        if node and node not in refused:
            await self._write_status(claim, plan.with_selected_node(claim, node))
            return None
        wait = self._attempts.failed(key_of(claim), request, self._clock.monotonic(), no_room=True)
        if refused:
            await self._write_status(claim, plan.without_unsuitable_nodes(claim))
        return Requeue(wait)

    # --- Allocation. ---

    async def _allocate(self, claim: ResourceClaim, claim_class: ResourceClass, request: Request) -> Result:
        claim = await self._begin(claim)
        node = classic.selected_node(claim)
        mine = plan.to_claim(claim, claim_class)
        try:
            allocation: Allocation = await self._author.call(
                "allocate", self._driver.allocate, mine, mine.class_parameters, mine.parameters, node or None
            )
        except NoRoomError as why:
            return await self._reject(claim, request, str(why) or "no room")
        result = await self._record(claim, allocation)
        self._attempts.forget(key_of(claim))
        self._capacity_changed(freed=False)
        return result

    async def _begin(self, claim: ResourceClaim) -> ResourceClaim:
        """Set finalizer and `driverName`, after undoing an earlier attempt."""
        if not plan.has_finalizer(claim, self._name, self._node):
            claim = await self._write(claim, plan.with_finalizer(claim, self._name, self._node))
        else:
            if classic.status_of(claim).driver_name:
                claim = await self._write_status(claim, plan.with_driver(claim, None))
            await self._deallocate(claim)
        return await self._write_status(claim, plan.with_driver(claim, self._name))

    async def _record(self, claim: ResourceClaim, allocation: Allocation) -> Result:
        """Write the allocation; if the claim has changed meanwhile, the allocation is begun again."""
        wanted = plan.allocated(claim, self._name, allocation)
        for attempt in range(ATTEMPTS_MAX):
            try:
                if attempt:
                    await self._clock.sleep(RETRY_SECONDS)
                    now = await self._live(claim)
                    if now is not None and plan.is_written(now, wanted):
                        self._note_written(now)
                        # The version read may be of a later change by others, such as the deletion.
                        return _AGAIN
                    if now is None or not plan.is_same_request(now, claim):
                        break
                    claim, wanted = now, plan.allocated(now, self._name, allocation)
                await self._write_status(claim, wanted)
            except APIError as error:
                _log.info("allocation not written", extra=fields(claim=classic.label(claim), error=str(error)))
            else:
                return None
        # The outcome of the writes is unknown; the next reconcile clears `driverName` before it deallocates.
        raise DriverFailedError(f"allocation of claim {classic.label(claim)} could not be recorded")

    async def _reject(self, claim: ResourceClaim, request: Request, why: str) -> Result:
        """Report the refusal: the scheduler selects another node, an immediate claim is retried with backoff.

        The finalizer goes first: nothing is allocated, and the scheduler writes the claim as soon as it has no node.
        """
        claim = await self._remove_finalizer(claim)
        key, node = key_of(claim), request.node
        self._recorder.event(CLAIM_KIND, claim, WARNING, "FailedAllocation", why)
        result = _AGAIN
        if node:
            self._attempts.refuse(key, (node,), self._clock.monotonic())
            after = plan.rejected(claim, node, await self._refused(claim))
        else:
            result = Requeue(self._attempts.failed(key, request, self._clock.monotonic(), no_room=True))
            after = plan.with_driver(claim, None)
        after = plan.with_failure(after, classic.NO_ROOM, why, self._clock.now()) or after
        await self._write_status(claim, after)
        return result

    async def _refused(self, claim: ResourceClaim) -> Iterable[str]:
        """Return the nodes to report with a refusal."""
        if self._node:
            # An instance on a node keeps the reports about other nodes.
            return classic.driver_status(claim).unsuitable_nodes
        try:
            return await self._unsuitable(claim)
        except DriverFailedError:
            return self._attempts.refused(key_of(claim), self._clock.monotonic())

    # --- Deallocation. ---

    async def _free(self, claim: ResourceClaim) -> None:
        await self._deallocate(claim)
        if plan.has_finalizer(claim, self._name, self._node):
            claim = await self._write_status(claim, plan.deallocated(claim))
            await self._remove_finalizer(claim)
        else:
            await self._write_status(claim, plan.deallocated(claim))

    async def _clean(self, claim: ResourceClaim) -> None:
        # `driverName` may belong to an attempt on another node.
        elsewhere = self._node and classic.selected_node(claim) not in ("", self._node)
        if classic.status_of(claim).driver_name and not elsewhere:
            claim = await self._write_status(claim, plan.with_driver(claim, None))
        await self._deallocate(claim)
        await self._remove_finalizer(claim)

    async def _deallocate(self, claim: ResourceClaim) -> None:
        await self._author.call("deallocate", self._driver.deallocate, plan.to_claim(claim, self._class(claim)))
        # What is undone of a failed attempt makes no room: it would start the other attempts without a backoff.
        self._capacity_changed(freed=classic.status_of(claim).phase != classic.PENDING_PHASE)

    async def _remove_finalizer(self, claim: ResourceClaim) -> ResourceClaim:
        return await self._write(claim, plan.without_finalizer(claim, self._name, self._node))

    # --- Writes, each with the resource version that was read. ---

    async def _write_status(self, before: ResourceClaim, after: ResourceClaim) -> ResourceClaim:
        classic.check_transition(Actor.DRIVER, before, after)
        return self._note_written(await self._client.update_status(CLASSIC_CLAIMS, after))

    async def _write(self, before: ResourceClaim, after: ResourceClaim) -> ResourceClaim:
        gone = classic.state_of(before) is State.DELETING
        classic.check_transition(Actor.DRIVER, before, None if gone else after)
        try:
            return self._note_written(await self._client.update(CLASSIC_CLAIMS, after))
        except NotFoundError:
            if gone:
                return after
            raise

    def _note_written(self, claim: ResourceClaim) -> ResourceClaim:
        known = self._claims.lister.get_key(key_of(claim))
        if known is not None:
            self._written[key_of(claim)] = max(_version(claim), self._written.get(key_of(claim), 0))
        return claim

    async def _live(self, claim: ResourceClaim) -> ResourceClaim | None:
        return await ignore_not_found(
            self._client.get(CLASSIC_CLAIMS, claim.metadata.name or "", claim.metadata.namespace or "")
        )


def _class_of(claim: Any) -> tuple[str, ...]:
    return (claim.spec.resource_class_name,)


def _version(claim: ResourceClaim) -> int:
    """Return the resource version as a number: versions of one object are comparable."""
    return int(claim.metadata.resource_version or "0")
