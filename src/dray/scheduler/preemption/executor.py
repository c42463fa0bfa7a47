"""Evicts the victims of a preemption, beside later scheduling attempts.

The preemptor is kept out of the queue meanwhile. All victims but the last are evicted concurrently; the last one goes
when all others have gone well, so that its deletion, which requeues the preemptor, comes when the room is complete.
A preemptor that is deleted meanwhile, or a group that is not nominated any more, needs no more evictions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.errors import APIError, ConflictError, InternalError, NotFoundError, ServiceUnavailableError
from dray.api.pod_groups import priority_of
from dray.api.timestamps import format_time
from dray.api.types.core_v1 import Pod, PodCondition
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.client.interface import DeleteOptions, Patch, PatchType, WriteOptions
from dray.client.objects import key_of
from dray.client.resources import PODS
from dray.framework.pod_info import PodInfo
from dray.runtime.logs import fields
from dray.scheduler.cluster_events import UNFINISHED
from dray.scheduler.handle import Handle
from dray.scheduler.preemption.metrics import POD, POD_GROUP, PreemptionMetrics

_log = logging.getLogger(__name__)

DISRUPTION_TARGET: Final = "DisruptionTarget"
REASON: Final = "PreemptionByScheduler"
# Victims evicted at the same time, of one preemption and of all.
CONCURRENT_MAX: Final = 16
EVICTIONS_MAX: Final = 64
# Writes of one condition: a conflict, an overloaded server or a broken connection is tried again. So is a conflict of
# the deletion, which may mean no more than that somebody else wrote at the same time.
ATTEMPTS_MAX: Final = 4
RETRY_SECONDS: Final = 0.1
_RETRIED: Final = (ConflictError, InternalError, ServiceUnavailableError)
_STATUS: Final = WriteOptions(subresource="status")


@dataclass(frozen=True, slots=True)
class Preemptor:
    """Who preempts: a Pod, or a PodGroup with its Pods."""

    subject: Pod | PodGroup
    # As in texts and metrics.
    kind: str
    scheduler_name: str
    priority: int
    # The nominated node of each Pod that waits, by uid, and the place in texts.
    nodes: Mapping[str, str]
    place: str

    @property
    def uid(self) -> str:
        """Return the uid of the Pod or group."""
        return self.subject.metadata.uid or ""


def pod_preemptor(pod: Pod, node_name: str) -> Preemptor:
    """Return a Pod that preempts on a node."""
    nodes = {pod.metadata.uid or "": node_name}
    return Preemptor(pod, POD, pod.spec.scheduler_name or "", pod.spec.priority or 0, nodes, node_name)


def group_preemptor(group: PodGroup, scheduler_name: str, nodes: Mapping[str, str]) -> Preemptor:
    """Return a group that preempts in the whole cluster."""
    return Preemptor(group, POD_GROUP, scheduler_name, priority_of(group), nodes, "cluster")


@dataclass(slots=True)
class _Work:
    """One preemption."""

    preemptor: Preemptor
    victims: tuple[PodInfo, ...]
    # The last victim, once its eviction begins.
    last: Pod | None = None


class Executor:
    """The preemptions that are being carried out; one per scheduler."""

    def __init__(self, handle: Handle, metrics: PreemptionMetrics) -> None:
        self._handle = handle
        self._client = handle.client
        self._clock = handle.clock
        self._metrics = metrics
        self._pods = handle.informers.informer(PODS, UNFINISHED).lister
        # By uid of the Pods that wait.
        self._preempting: dict[str, _Work] = {}
        self._slots = asyncio.Semaphore(EVICTIONS_MAX)

    def is_waiting(self, uid: str) -> bool:
        """Return whether a Pod, the preemptor or one of its group, has to wait for evictions.

        It does not while the last victim is evicted and can be seen to go: the event of its deletion may come before
        the write has returned, and it would be the last one.
        """
        work = self._preempting.get(uid)
        if work is None:
            return False
        if work.last is None:
            return True
        current = self._current(work.last)
        return current is not None and current.metadata.deletion_timestamp is None

    def start(self, preemptor: Preemptor, victims: tuple[PodInfo, ...]) -> None:
        """Evict the victims, and withdraw the nominations of Pods with a lower priority to the same nodes."""
        work = _Work(preemptor, victims)
        self._metrics.selected(preemptor.kind, len(victims))
        self._clear_nominations(preemptor)
        if all(pod.pod.metadata.deletion_timestamp is not None for pod in victims):
            return
        self._preempting.update(dict.fromkeys(preemptor.nodes, work))
        self._handle.spawn(self._run(work), f"preemption for {preemptor.subject.metadata.name}")

    def _clear_nominations(self, preemptor: Preemptor) -> None:
        """Let Pods of lower priority look elsewhere: they may not fit on the nodes any more."""
        for node_name in dict.fromkeys(preemptor.nodes.values()):
            for other in self._handle.nominations.on(node_name):
                if other.priority < preemptor.priority and other.uid not in preemptor.nodes:
                    self._handle.clear_nomination(other.uid)

    async def _run(self, work: _Work) -> None:
        preemptor = work.preemptor
        started = self._clock.monotonic()
        in_memory, succeeded = False, False
        try:
            in_memory = await self._evict_all(work)
            succeeded = True
        except APIError as failure:
            _log.warning("preemption failed", extra=fields(object=str(key_of(preemptor.subject)), error=str(failure)))
        finally:
            for uid in preemptor.nodes:
                self._preempting.pop(uid, None)
        self._metrics.executed(preemptor.kind, self._clock.monotonic() - started, succeeded=succeeded)
        for uid in preemptor.nodes:
            if not succeeded:
                # After a backoff: the server may be down.
                self._handle.preemption_failed(uid)
            elif in_memory:
                # There will be no event of a deleted Pod.
                self._handle.activate(uid)
            self._handle.recheck_gate(uid)

    async def _evict_all(self, work: _Work) -> bool:
        """Evict the victims, the last one when all others are; return whether that one was not deleted."""
        *others, last = work.victims
        await _for_all(others, lambda victim: self._evict(work, victim))
        work.last = last.pod
        return not await self._evict(work, last)

    def _is_wanted(self, preemptor: Preemptor) -> bool:
        """Return whether the preemptor still needs evictions: the Pod exists, or the group is still nominated."""
        if isinstance(preemptor.subject, Pod):
            return self._current(preemptor.subject) is not None
        return any(self._handle.nominations.node_of(uid) for uid in preemptor.nodes)

    async def _evict(self, work: _Work, victim: PodInfo) -> bool:
        """Evict one victim; return False if it has no node yet, so that ending its attempt is enough."""
        preemptor = work.preemptor
        if not self._is_wanted(preemptor):
            return True
        note = f"Preempted by {preemptor.kind} {preemptor.uid} on node {preemptor.place}"
        ended = self._end_attempt(victim.uid)
        if ended is not None:
            self._record(victim.pod, preemptor, f"{note} (in kube-scheduler memory).")
            # Its reservations, and perhaps claims that were written, are the preemptor's only when all is undone.
            await ended.wait()
            return False
        pod = self._current(victim.pod)
        if pod is None or pod.metadata.deletion_timestamp is not None:
            return True
        async with self._slots:
            deleted = await self._delete(pod, preemptor)
        if deleted:
            self._record(pod, preemptor, note)
        return True

    def _record(self, victim: Pod, preemptor: Preemptor, note: str) -> None:
        self._handle.record_preempted(victim, preemptor.subject, preemptor.scheduler_name, note)

    def _end_attempt(self, uid: str) -> asyncio.Event | None:
        """End the attempt of a victim that is not bound yet, and is tried again; None if it is bound."""
        waiting = self._handle.waiting_pods.get(uid)
        if waiting is not None:
            waiting.preempt("preempted")
            return self._handle.cancel_binding(uid, "preempted")
        return self._handle.cancel_binding(uid, "preempted by DefaultPreemption")

    async def _delete(self, pod: Pod, preemptor: Preemptor) -> bool:
        """Write why the Pod goes, and delete it; return False if it is gone already."""

        async def write_condition() -> None:
            body = disruption_patch(pod, preemptor.scheduler_name, self._clock.now(), preemptor.kind)
            if body is not None:
                await self._client.patch(PODS, *_name_of(pod), Patch(PatchType.STRATEGIC, body), _STATUS)

        async def delete() -> None:
            await self._client.delete(PODS, *_name_of(pod), DeleteOptions(uid=pod.metadata.uid or ""))

        try:
            await self._retry(write_condition, _RETRIED)
            await self._retry(delete, (ConflictError,))
        except NotFoundError:
            return False
        except ConflictError:
            if await self._is_replaced(pod):
                return False
            raise
        return True

    async def _retry(self, write: Callable[[], Awaitable[None]], retried: tuple[type[APIError], ...]) -> None:
        for attempt in range(1, ATTEMPTS_MAX):
            try:
                return await write()
            except retried:
                await self._clock.sleep(RETRY_SECONDS * attempt)
        return await write()

    async def _is_replaced(self, pod: Pod) -> bool:
        """Return whether a conflict is due to another Pod that has the name now; the cache may not have it yet."""
        try:
            found = await self._client.get(PODS, *_name_of(pod))
        except NotFoundError:
            return True
        return found.metadata.uid != pod.metadata.uid

    def _current(self, pod: Pod) -> Pod | None:
        """Return the Pod as last observed; None if it is gone."""
        current = self._pods.get_key(key_of(pod))
        return current if current is not None and current.metadata.uid == pod.metadata.uid else None


def _name_of(pod: Pod) -> tuple[str, str]:
    return pod.metadata.name or "", pod.metadata.namespace or ""


async def _for_all(victims: Sequence[PodInfo], evict: Callable[[PodInfo], Awaitable[bool]]) -> None:
    """Evict concurrently; raises the first failure when all have ended."""
    for start in range(0, len(victims), CONCURRENT_MAX):
        part = victims[start : start + CONCURRENT_MAX]
        results = await asyncio.gather(*(evict(victim) for victim in part), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result


def disruption_patch(pod: Pod, scheduler_name: str, now: datetime, kind: str = POD) -> Document | None:
    """Return the patch of the status that says why the Pod is deleted; None if it says so already."""
    message = f"{scheduler_name}: preempting to accommodate a higher priority {kind}"
    old = next((item for item in pod.status.conditions if item.type == DISRUPTION_TARGET), None)
    if old is not None and (old.status, old.reason, old.message) == ("True", REASON, message):
        return None
    changed = old.last_transition_time if old is not None and old.status == "True" else None
    condition: Document = {
        "type": DISRUPTION_TARGET,
        "status": "True",
        "reason": REASON,
        "message": message,
        "lastTransitionTime": format_time(changed or now),
    }
    if pod.metadata.generation:
        condition["observedGeneration"] = pod.metadata.generation
    return {"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}}


def is_preempted(pod: Pod) -> bool:
    """Return whether the Pod is being deleted because of a preemption."""
    condition: PodCondition | None = next(
        (item for item in pod.status.conditions if item.type == DISRUPTION_TARGET), None
    )
    return (
        pod.metadata.deletion_timestamp is not None
        and condition is not None
        and (condition.status, condition.reason) == ("True", REASON)
    )
