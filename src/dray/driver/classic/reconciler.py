"""Does a driver's part of the classic protocol, so that a crash between any two steps leaks nothing.

The finalizer is there before the driver's code is called, and goes after it has freed. `driverName` says that an
attempt is under way: it is cleared before anything is freed whose outcome is not known, which at the same time makes
every write of the earlier attempt too late.
"""

from __future__ import annotations

import asyncio
import inspect
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
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup

_log = logging.getLogger(__name__)


CLAIM_KIND: Final = GroupVersionKind(classic.GROUP, classic.VERSION, "ResourceClaim")
# Claims worked at the same time; the driver's own calls are bounded by its `concurrency`.
WORKERS: Final = 32
# A write whose answer got lost is looked for so often before the attempt is begun anew.
ATTEMPTS_MAX: Final = 5
RETRY_SECONDS: Final = 0.05
# After an allocation or a deallocation, what was said about nodes is looked at again, but not more often than this.
REFRESH_SECONDS: Final = 1.0
# And in any case after this long, for what changes outside of the driver.
REPEAT_SECONDS: Final = 60.0
_BY_CLASS: Final = "resource-class"


@dataclass(frozen=True, slots=True)
class Refresh:
    """The key under which all waiting claims are looked at again."""


REFRESH: Final = Refresh()


class DriverFailedError(APIError):
    """The driver's code raised something, which has been logged; the claim is tried again later."""

    code = 500
    reason = "DriverFailed"


class DriverReconciler:
    """One driver's controller at work; only one may lead at a time."""

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
        # The node on which it allocates; empty for a controller of the whole cluster.
        self._node = node
        self._client = client
        self._clock = clock
        self._recorder = EventRecorder(client, clock, Source(driver.name))
        self._seats = asyncio.Semaphore(driver.concurrency)
        # Versions that were written here and that the informer has not told of yet.
        self._written: dict[NamespacedName, int] = {}
        # Claims for whose nodes the driver was asked.
        self._waiting: dict[NamespacedName, None] = {}
        self._refreshing = False
        # Immediate claims for which there was no room: when to try again, and how long they waited before.
        self._refused: dict[NamespacedName, tuple[float, float]] = {}
        self._seconds = metrics.histogram(
            "classic_driver_operations_duration_seconds",
            "Time of one call of the driver",
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
        """Remind the driver of what it holds, then work until cancelled; the informers are run by someone else."""
        async with TaskGroup(self._name) as group:
            group.spawn(self._recorder.run(), "events")
            await self._classes.wait_for_sync()
            await self._claims.wait_for_sync()
            held = [claim for claim in self._claims.lister.list() if plan.has_finalizer(claim, self._name, self._node)]
            await self._call("start", self._driver.start, [plan.to_claim(claim, self._class(claim)) for claim in held])
            await self.controller.run()

    # --- What a change wakes. ---

    def _claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        # What nodes take and give back is only seen here.
        if self._driver.node_local and plan.changes_room(old, new, self._name):
            self._room_changed()
        if new is None:
            if old is not None:
                self._written.pop(key_of(old), None)
                self._waiting.pop(key_of(old), None)
                self._refused.pop(key_of(old), None)
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

    def _room_changed(self) -> None:
        """What was said about nodes may be wrong by now."""
        if not self._refreshing and (self._waiting or self._refused):
            self._refreshing = True
            self.controller.queue.add_after(REFRESH, REFRESH_SECONDS)

    def _class(self, claim: ResourceClaim) -> ResourceClass | None:
        return self._classes.lister.get(claim.spec.resource_class_name)

    def _task(self, claim: ResourceClaim) -> Task:
        if self._node:
            return plan.task_on_node(claim, self._name, self._class(claim), self._node)
        if self._driver.node_local:
            return plan.task_beside_nodes(claim, self._name, self._class(claim))
        return plan.task_for(claim, self._name, self._class(claim))

    # --- One claim. ---

    async def reconcile(self, key: NamespacedName | Refresh) -> Result:
        """Do the driver's part for one claim."""
        if isinstance(key, Refresh):
            self._refreshing = False
            for waiting in (*self._waiting, *self._refused):
                self.controller.queue.add(waiting)
            self._refused.clear()
            return None
        claim = self._claims.lister.get_key(key)
        if claim is None or self._is_behind(claim):
            # Its end, or what was written here, is still to be told of; that wakes the key again.
            return None
        claim_class = self._class(claim)
        task = self._task(claim)
        if task is Task.PLACE:
            return await self._place(claim)
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
            await self._unprotect(claim)
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
        after = plan.answered(claim, await self._unsuitable(claim))
        if after is not None:
            await self._write_status(claim, after)
        return Requeue(REPEAT_SECONDS)

    async def _unsuitable(self, claim: ResourceClaim) -> list[str]:
        # Also those that were refused before: the scheduler leaves them out when it asks again.
        nodes = sorted(
            {*classic.scheduler_status(claim).potential_nodes, *classic.driver_status(claim).unsuitable_nodes}
        )
        if not nodes:
            return []
        owners = [owner.uid for owner in claim.metadata.owner_references if owner.controller]
        family = [item for uid in owners for item in self._claims.lister.owned_by(uid)]
        together = [
            item
            for item in plan.siblings(claim, family)
            if item is claim or self._task(item) in (Task.CHECK, Task.ALLOCATE)
        ]
        asked = [plan.to_claim(item, self._class(item)) for item in together]
        return list(await self._call("unsuitable_nodes", self._driver.unsuitable_nodes, asked, nodes))

    async def _place(self, claim: ResourceClaim) -> Result:
        """The node is asked as if the scheduler had selected it; when all have refused, they are asked anew later."""
        key, now = key_of(claim), self._clock.monotonic()
        due, before = self._refused.get(key, (0.0, 0.0))
        if now < due:
            return Requeue(due - now)
        refused = classic.driver_status(claim).unsuitable_nodes
        mine = plan.to_claim(claim, self._class(claim))
        node = await self._call("choose_node", self._driver.choose_node, mine, refused)
        if node:
            await self._write_status(claim, plan.placed(claim, node))
            return None
        wait = min(max(2 * before, REFRESH_SECONDS), REPEAT_SECONDS)
        self._refused[key] = (now + wait, wait)
        if refused:
            await self._write_status(claim, plan.asked_anew(claim))
        return Requeue(wait)

    # --- Allocation. ---

    async def _allocate(self, claim: ResourceClaim, claim_class: ResourceClass) -> Result:
        due, _ = self._refused.get(key_of(claim), (0.0, 0.0))
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
            return await self._refuse(claim, node, why)
        except DriverFailedError as failure:
            self._tell(claim, "FailedAllocation", str(failure))
            raise
        await self._record(claim, allocation)
        self._refused.pop(key_of(claim), None)
        self._room_changed()
        return None

    async def _begin(self, claim: ResourceClaim) -> ResourceClaim:
        """Finalizer and driver's name are written; of an earlier attempt nothing is left."""
        if not plan.has_finalizer(claim, self._name, self._node):
            claim = await self._write(claim, plan.protected(claim, self._name, self._node))
        else:
            if classic.status_of(claim).driver_name:
                claim = await self._write_status(claim, plan.with_driver(claim, None))
            await self._deallocate(claim)
        return await self._write_status(claim, plan.with_driver(claim, self._name))

    async def _record(self, claim: ResourceClaim, allocation: Allocation) -> None:
        """Write what was allocated; a claim that is wanted otherwise by now is begun anew."""
        wanted = plan.allocated(claim, self._name, allocation)
        for attempt in range(ATTEMPTS_MAX):
            try:
                if attempt:
                    await self._clock.sleep(RETRY_SECONDS)
                    now = await self._live(claim)
                    if now is not None and plan.is_written(now, wanted):
                        self._note_written(now)
                        return
                    if now is None or not plan.is_same_wish(now, claim):
                        break
                    claim, wanted = now, plan.allocated(now, self._name, allocation)
                await self._write_status(claim, wanted)
            except APIError as error:
                _log.info("allocation not written", extra=fields(claim=classic.label(claim), error=str(error)))
            else:
                return
        # Whatever became of the writes, the next look at the claim makes sure of it before anything is freed.
        raise DriverFailedError(f"allocation of claim {classic.label(claim)} could not be recorded")

    async def _refuse(self, claim: ResourceClaim, node: str, why: NoRoomError) -> Result:
        """The scheduler selects another node; a claim that is for no node in particular waits for room."""
        self._tell(claim, "FailedAllocation", str(why) or "no room")
        if node:
            # A node knows of no other; what was said of those stays.
            others = classic.driver_status(claim).unsuitable_nodes if self._node else await self._unsuitable(claim)
            claim = await self._write_status(claim, plan.refused(claim, node, others))
            await self._unprotect(claim)
            return None
        _, before = self._refused.get(key_of(claim), (0.0, 0.0))
        wait = min(max(2 * before, REFRESH_SECONDS), REPEAT_SECONDS)
        self._refused[key_of(claim)] = (self._clock.monotonic() + wait, wait)
        claim = await self._write_status(claim, plan.with_driver(claim, None))
        await self._unprotect(claim)
        return Requeue(wait)

    # --- Letting go. ---

    async def _free(self, claim: ResourceClaim) -> None:
        await self._deallocate(claim)
        if plan.has_finalizer(claim, self._name, self._node):
            claim = await self._write_status(claim, plan.freed(claim))
            await self._unprotect(claim)
        else:
            await self._write_status(claim, plan.freed(claim))

    async def _clean(self, claim: ResourceClaim) -> None:
        # Another node's attempt is none of this one's business.
        elsewhere = self._node and classic.selected_node(claim) not in ("", self._node)
        if classic.status_of(claim).driver_name and not elsewhere:
            claim = await self._write_status(claim, plan.with_driver(claim, None))
        await self._deallocate(claim)
        await self._unprotect(claim)

    async def _deallocate(self, claim: ResourceClaim) -> None:
        try:
            await self._call("deallocate", self._driver.deallocate, plan.to_claim(claim, self._class(claim)))
        except DriverFailedError as failure:
            self._tell(claim, "FailedDeallocation", str(failure))
            raise
        self._room_changed()

    async def _unprotect(self, claim: ResourceClaim) -> None:
        await self._write(claim, plan.unprotected(claim, self._name, self._node))

    # --- The driver's code. ---

    async def _call(self, operation: str, method: Callable[..., Any], *given: Any) -> Any:
        """Call the driver, in a thread unless it is a coroutine; what it raises becomes `DriverFailedError`."""
        async with self._seats:
            started = self._clock.monotonic()
            failed = "true"
            try:
                if inspect.iscoroutinefunction(method):
                    answer = await method(*given)
                elif getattr(ClassicController, operation) is getattr(method, "__func__", None):
                    # Not the author's: it does nothing, and needs no thread for that.
                    answer = method(*given)
                else:
                    answer = await asyncio.to_thread(method, *given)
                failed = "false"
            except NoRoomError:
                raise
            except Exception as error:
                _log.exception("driver failed", extra=fields(driver=self._name, operation=operation))
                raise DriverFailedError(f"{type(error).__name__}: {error}") from error
            finally:
                self._seconds.labels(self._name, operation, failed).observe(self._clock.monotonic() - started)
        return answer

    def _tell(self, claim: ResourceClaim, reason: str, message: str) -> None:
        self._recorder.event(CLAIM_KIND, claim, WARNING, reason, message)

    # --- Writes, each bound to the version it was decided on. ---

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
    """Versions of one object are numbers that rise; nothing else is made of them."""
    return int(claim.metadata.resource_version or "0")
