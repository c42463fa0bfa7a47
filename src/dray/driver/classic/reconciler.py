"""The driver side of the classic protocol: a crash between any two steps leaks nothing.

The finalizer is set before the author's code is called and removed after it has deallocated. `driverName` marks an
attempt in progress. It is cleared before an attempt with unknown outcome is undone, so that late writes of that attempt
fail.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from dray.api import classic_claims as classic
from dray.api.classic_claims import Actor, State
from dray.api.document import GroupVersionKind, NamespacedName
from dray.api.errors import APIError, NotFoundError
from dray.api.types.cdi_v1alpha1 import ResourceClaim, ResourceClass
from dray.client.controller import Controller, Requeue, Result
from dray.client.event_recorder import WARNING, EventRecorder, Source
from dray.client.indexer import BY_OWNER_UID
from dray.client.interface import Client, ignore_not_found
from dray.client.objects import key_of, owner_uids
from dray.client.resources import CLASSIC_CLAIMS, CLASSIC_CLASSES
from dray.client.shared_informers import SharedInformerFactory
from dray.driver.classic import plan
from dray.driver.classic.interface import Allocation, ClassicController, NoRoomError
from dray.driver.classic.plan import Task
from dray.driver.program import call_author
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


@dataclass(frozen=True, slots=True)
class Refresh:
    """The key that refreshes all waiting claims."""


REFRESH: Final = Refresh()


class DriverFailedError(APIError):
    """The author's code raised an error, which is logged; the claim is retried."""

    code = 500
    reason = "DriverFailed"


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
        self._calls = asyncio.Semaphore(driver.concurrency)
        # Resource versions written here that the informer has not delivered yet.
        self._written: dict[NamespacedName, int] = {}
        # Claims whose unsuitable nodes were reported.
        self._waiting: dict[NamespacedName, None] = {}
        self._refreshing = False
        # Immediate claims that could not be allocated: when to retry, and the last backoff.
        self._rejected: dict[NamespacedName, tuple[float, float]] = {}
        self._seconds = metrics.histogram(
            "classic_driver_operations_duration_seconds",
            "Duration of one call of the driver",
            ["driver_name", "operation", "is_error"],
        )
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
            await self._call("start", self._driver.start, [plan.to_claim(claim, self._class(claim)) for claim in held])
            await self.controller.run()

    # --- Event handlers. ---

    def _claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        # Allocations by nodes are visible only in claims.
        if self._driver.node_local and plan.changes_capacity(old, new, self._name):
            self._capacity_changed()
        if new is None:
            if old is not None:
                self._written.pop(key_of(old), None)
                self._waiting.pop(key_of(old), None)
                self._rejected.pop(key_of(old), None)
            return
        task = self._task(new)
        if task is not Task.CHECK:
            self._waiting.pop(key_of(new), None)
        if task is not Task.NOTHING:
            self.controller.queue.add(key_of(new))

    def _class_changed(self, _old: ResourceClass | None, new: ResourceClass | None) -> None:
        if new is not None and new.driver_name == self._name:
            for claim in self._claims.lister.by_index(_BY_CLASS, new.metadata.name or ""):
                self.controller.queue.add(key_of(claim))

    def _capacity_changed(self) -> None:
        """Schedule a refresh: reported unsuitable nodes may be outdated."""
        if not self._refreshing and (self._waiting or self._rejected):
            self._refreshing = True
            self.controller.queue.add_after(REFRESH, REFRESH_SECONDS)

    def _class(self, claim: ResourceClaim) -> ResourceClass | None:
        return self._classes.lister.get(claim.spec.resource_class_name)

    def _task(self, claim: ResourceClaim) -> Task:
        if self._node:
            return plan.task_on_node(claim, self._name, self._class(claim), self._node)
        if self._driver.node_local:
            return plan.task_without_allocation(claim, self._name, self._class(claim))
        return plan.task_for(claim, self._name, self._class(claim))

    # --- One claim. ---

    async def reconcile(self, key: NamespacedName | Refresh) -> Result:
        """Perform the driver's task for one claim."""
        if isinstance(key, Refresh):
            self._refreshing = False
            for waiting in (*self._waiting, *self._rejected):
                self.controller.queue.add(waiting)
            self._rejected.clear()
            return None
        claim = self._claims.lister.get_key(key)
        if claim is None or self._is_behind(claim):
            # The informer event of the deletion or of the last write enqueues the key again.
            return None
        claim_class = self._class(claim)
        task = self._task(claim)
        if task is Task.PLACE:
            return await self._select_node(claim)
        if task is Task.CHECK and claim_class is not None:
            return await self._check(claim)
        if task is Task.ALLOCATE and claim_class is not None:
            return await self._allocate(claim, claim_class)
        if task is Task.FREE:
            await self._free(claim)
        elif task is Task.CLEAN:
            await self._clean(claim)
        elif task is Task.RELEASE:
            await self._deallocate(claim)
            await self._remove_finalizer(claim)
        return None

    def _is_behind(self, claim: ResourceClaim) -> bool:
        written = self._written.get(key_of(claim))
        if written is None or _version(claim) < written:
            return written is not None
        del self._written[key_of(claim)]
        return False

    # --- Nodes. ---

    async def _check(self, claim: ResourceClaim) -> Result:
        self._waiting[key_of(claim)] = None
        after = plan.with_unsuitable_nodes(claim, await self._unsuitable(claim))
        if after is not None:
            await self._write_status(claim, after)
        return Requeue(REPEAT_SECONDS)

    async def _unsuitable(self, claim: ResourceClaim) -> list[str]:
        # Including nodes reported before: the scheduler omits them from the potential nodes.
        nodes = sorted(
            {*classic.scheduler_status(claim).potential_nodes, *classic.driver_status(claim).unsuitable_nodes}
        )
        if not nodes:
            return []
        owners = [owner.uid for owner in claim.metadata.owner_references if owner.controller]
        pod_claims = [item for uid in owners for item in self._claims.lister.owned_by(uid)]
        unallocated = [
            item
            for item in plan.siblings(claim, pod_claims)
            if item is claim or self._task(item) in (Task.CHECK, Task.ALLOCATE)
        ]
        arguments = [plan.to_claim(item, self._class(item)) for item in unallocated]
        return list(await self._call("unsuitable_nodes", self._driver.unsuitable_nodes, arguments, nodes))

    async def _select_node(self, claim: ResourceClaim) -> Result:
        """Select a node as the scheduler would; when all nodes have rejected the claim, retry with backoff."""
        key, now = key_of(claim), self._clock.monotonic()
        due, before = self._rejected.get(key, (0.0, 0.0))
        if now < due:
            return Requeue(due - now)
        refused = classic.driver_status(claim).unsuitable_nodes
        mine = plan.to_claim(claim, self._class(claim))
        node = await self._call("choose_node", self._driver.choose_node, mine, refused)
        if node:
            await self._write_status(claim, plan.with_selected_node(claim, node))
            return None
        wait = min(max(2 * before, REFRESH_SECONDS), REPEAT_SECONDS)
        self._rejected[key] = (now + wait, wait)
        if refused:
            await self._write_status(claim, plan.without_unsuitable_nodes(claim))
        return Requeue(wait)

    # --- Allocation. ---

    async def _allocate(self, claim: ResourceClaim, claim_class: ResourceClass) -> Result:
        due, _ = self._rejected.get(key_of(claim), (0.0, 0.0))
        if self._clock.monotonic() < due:
            return Requeue(due - self._clock.monotonic())
        claim = await self._begin(claim)
        node = classic.selected_node(claim)
        mine = plan.to_claim(claim, claim_class)
        try:
            allocation: Allocation = await self._call(
                "allocate", self._driver.allocate, mine, mine.class_parameters, mine.parameters, node or None
            )
        except NoRoomError as why:
            return await self._reject(claim, node, why)
        except DriverFailedError as failure:
            self._record_event(claim, "FailedAllocation", str(failure))
            raise
        await self._record(claim, allocation)
        self._rejected.pop(key_of(claim), None)
        self._capacity_changed()
        return None

    async def _begin(self, claim: ResourceClaim) -> ResourceClaim:
        """Set finalizer and `driverName`, after undoing an earlier attempt."""
        if not plan.has_finalizer(claim, self._name, self._node):
            claim = await self._write(claim, plan.with_finalizer(claim, self._name, self._node))
        else:
            if classic.status_of(claim).driver_name:
                claim = await self._write_status(claim, plan.with_driver(claim, None))
            await self._deallocate(claim)
        return await self._write_status(claim, plan.with_driver(claim, self._name))

    async def _record(self, claim: ResourceClaim, allocation: Allocation) -> None:
        """Write the allocation; if the claim has changed meanwhile, the allocation is begun again."""
        wanted = plan.allocated(claim, self._name, allocation)
        for attempt in range(ATTEMPTS_MAX):
            try:
                if attempt:
                    await self._clock.sleep(RETRY_SECONDS)
                    now = await self._live(claim)
                    if now is not None and plan.is_written(now, wanted):
                        self._note_written(now)
                        return
                    if now is None or not plan.is_same_request(now, claim):
                        break
                    claim, wanted = now, plan.allocated(now, self._name, allocation)
                await self._write_status(claim, wanted)
            except APIError as error:
                _log.info("allocation not written", extra=fields(claim=classic.label(claim), error=str(error)))
            else:
                return
        # The outcome of the writes is unknown; the next reconcile clears `driverName` before it deallocates.
        raise DriverFailedError(f"allocation of claim {classic.label(claim)} could not be recorded")

    async def _reject(self, claim: ResourceClaim, node: str, why: NoRoomError) -> Result:
        """Report the failure: the scheduler selects another node, an immediate claim is retried with backoff."""
        self._record_event(claim, "FailedAllocation", str(why) or "no room")
        if node:
            # An instance on a node keeps the reports about other nodes.
            others = classic.driver_status(claim).unsuitable_nodes if self._node else await self._unsuitable(claim)
            claim = await self._write_status(claim, plan.rejected(claim, node, others))
            await self._remove_finalizer(claim)
            return None
        _, before = self._rejected.get(key_of(claim), (0.0, 0.0))
        wait = min(max(2 * before, REFRESH_SECONDS), REPEAT_SECONDS)
        self._rejected[key_of(claim)] = (self._clock.monotonic() + wait, wait)
        claim = await self._write_status(claim, plan.with_driver(claim, None))
        await self._remove_finalizer(claim)
        return Requeue(wait)

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
        try:
            await self._call("deallocate", self._driver.deallocate, plan.to_claim(claim, self._class(claim)))
        except DriverFailedError as failure:
            self._record_event(claim, "FailedDeallocation", str(failure))
            raise
        self._capacity_changed()

    async def _remove_finalizer(self, claim: ResourceClaim) -> None:
        await self._write(claim, plan.without_finalizer(claim, self._name, self._node))

    # --- The author's code. ---

    async def _call(self, operation: str, method: Callable[..., Any], *given: Any) -> Any:
        """Call a method of the author; its errors become `DriverFailedError`."""
        async with self._calls:
            started = self._clock.monotonic()
            failed = "true"
            try:
                if getattr(ClassicController, operation) is getattr(method, "__func__", None):
                    # Not overridden by the author: it does not block.
                    answer = method(*given)
                else:
                    answer = await call_author(method, *given)
                failed = "false"
            except NoRoomError:
                raise
            except Exception as error:
                _log.exception("driver failed", extra=fields(driver=self._name, operation=operation))
                raise DriverFailedError(f"{type(error).__name__}: {error}") from error
            finally:
                self._seconds.labels(self._name, operation, failed).observe(self._clock.monotonic() - started)
        return answer

    def _record_event(self, claim: ResourceClaim, reason: str, message: str) -> None:
        self._recorder.event(CLAIM_KIND, claim, WARNING, reason, message)

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
        if known is not None and _version(known) < _version(claim):
            self._written[key_of(claim)] = _version(claim)
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
