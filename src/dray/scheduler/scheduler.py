"""The scheduler's hand: follows the API, takes Pods from the queue one by one, binds many at the same time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from dray.api.features import FeatureGates
from dray.api.types.core_v1 import Pod
from dray.client.event_recorder import NORMAL, WARNING
from dray.client.interface import Client
from dray.client.resources import NODES, PODS
from dray.client.shared_informers import SharedInformerFactory
from dray.framework.cycle_state import CycleState
from dray.framework.events import ClusterEvent
from dray.framework.plugins import POST_FILTER
from dray.framework.pod_info import NO_NAMES
from dray.framework.snapshot import Snapshot
from dray.framework.status import Code, Status, unresolvable
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup
from dray.scheduler import metrics as results
from dray.scheduler.binder import Attempt, Binder, HeldPods
from dray.scheduler.cache import Cache
from dray.scheduler.cluster_events import ASSIGNED_POD_DELETE
from dray.scheduler.config import SchedulerConfig
from dray.scheduler.cycle import AttemptError, Cycle, Placement
from dray.scheduler.diagnosis import REASON_ERROR, REASON_UNSCHEDULABLE, Diagnosis
from dray.scheduler.event_handlers import EventHandlers
from dray.scheduler.handle import Handle, PluginFactory
from dray.scheduler.kinds import EXTRA, UNFINISHED
from dray.scheduler.metrics import SchedulerMetrics
from dray.scheduler.nominations import Nominations
from dray.scheduler.profile import Profile
from dray.scheduler.queue import FLUSH_EVERY_SECONDS, SchedulingQueue
from dray.scheduler.queued_pod import QueuedPod
from dray.scheduler.registry import make_profiles
from dray.scheduler.reporter import Reporter
from dray.scheduler.timing import SAMPLE_EVERY

_log = logging.getLogger(__name__)

# In one process with the API server, a long run of attempts must not keep requests waiting.
TURN_SECONDS_MAX: Final = 0.002
# A Pod that fails again for the same reasons is not told of more often: with thousands waiting for one slot,
# telling would cost more than trying.
TELL_AGAIN_SECONDS: Final = 60.0


class Scheduler:
    """One scheduler with its profiles; `run` once."""

    def __init__(  # noqa: PLR0913 - its hands, its words and its rules
        self,
        client: Client,
        informers: SharedInformerFactory,
        clock: Clock,
        metrics: Metrics,
        *,
        factories: Mapping[str, PluginFactory],
        config: SchedulerConfig | None = None,
        features: FeatureGates | None = None,
    ) -> None:
        config = config or SchedulerConfig()
        self._client = client
        self._clock = clock
        self._metrics = SchedulerMetrics(metrics)
        self._snapshot = Snapshot()
        self._held = HeldPods()
        self._nominations = Nominations()
        self.cache = Cache()
        self.handle = Handle(client, informers, clock, metrics, features or FeatureGates(), self._snapshot, self._held)
        self.profiles = make_profiles(config.profiles, factories, self.handle)
        self.queue = SchedulingQueue(
            lambda pod: self.profiles[pod.spec.scheduler_name or ""],
            self.profiles.values(),
            backoff=config.backoff,
            observe_incoming=self._metrics.incoming,
        )
        self._timed = {
            name: profile.timed(clock.monotonic, self._metrics.plugin_ran) for name, profile in self.profiles.items()
        }
        self._attempts = 0
        self._cycle = Cycle(self._snapshot, self._nominations)
        self._binder = Binder(clock, self._held)
        self._wake = asyncio.Event()
        self._follow(informers)

    def _follow(self, informers: SharedInformerFactory) -> None:
        follower = EventHandlers(self.queue, self.cache, self._nominations, self.profiles, self._clock.monotonic)
        self._pods = informers.informer(PODS, UNFINISHED)
        self._nodes = informers.informer(NODES)
        self._informers = [self._nodes, self._pods]
        registered = {
            item.event.resource
            for profile in self.profiles.values()
            for items in profile.registrations().values()
            for item in items
        }
        for resource in sorted(registered & EXTRA.keys()):
            loop = informers.informer(EXTRA[resource])
            loop.add_handler(follower.handler_of(resource))
            loop.add_handler(self._wake_up)
            self._informers.append(loop)
        self._nodes.add_handler(follower.node_changed)
        self._nodes.add_handler(self._wake_up)
        self._pods.add_handler(follower.pod_changed)
        self._pods.add_handler(self._pod_changed)
        self.handle.notify = self._notify
        self.handle.activate = self._activate
        sizes = {"nodes": lambda: self.cache.node_count, "pods": self.cache.pod_count}
        self._metrics.follow(self.queue.counts, sizes | {"assumed_pods": self.cache.assumed_count})

    # --- Running. ---

    async def run(self) -> None:
        """Schedule until cancelled; the informers must be run by someone."""
        async with TaskGroup("scheduler") as group:
            self._group = group
            self._reporter = Reporter(self._client, self._clock, group)
            for name in self.profiles:
                self._reporter.add_profile(name)
            self.handle.record = self._reporter.event
            self.handle.record_node = self._reporter.node_event
            await self.handle.informers.wait_for_sync()
            group.spawn(self._flush(), "queue flush")
            group.spawn(self._schedule(), "scheduling")
            await group.wait(asyncio.Event())

    async def _schedule(self) -> None:
        turn_started = self._clock.monotonic()
        while True:
            now = self._clock.monotonic()
            queued = self.queue.pop(now)
            if queued is None:
                await self._wait_for_work()
                turn_started = self._clock.monotonic()
                continue
            await self._attempt(queued)
            if self._clock.monotonic() - turn_started > TURN_SECONDS_MAX:
                await asyncio.sleep(0)
                turn_started = self._clock.monotonic()

    async def _wait_for_work(self) -> None:
        self._wake.clear()
        due = self.queue.next_due()
        if due is None:
            await self._wake.wait()
            return
        timer = asyncio.ensure_future(self._clock.sleep(due - self._clock.monotonic()))
        waiter = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait((timer, waiter), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            waiter.cancel()

    async def _flush(self) -> None:
        while True:
            await self._clock.sleep(FLUSH_EVERY_SECONDS)
            self.queue.flush(self._clock.monotonic())
            self._wake.set()

    # --- One attempt. ---

    async def _attempt(self, queued: QueuedPod) -> None:
        """The scheduling cycle; the binding cycle goes on beside the next one."""
        started = self._clock.monotonic()
        pod = queued.pod
        if pod.metadata.deletion_timestamp is not None or self.cache.node_of(queued.uid) is not None:
            self.queue.done(queued.uid)
            return
        self._attempts += 1
        profiles = self._timed if self._attempts % SAMPLE_EVERY == 0 else self.profiles
        profile = profiles[pod.spec.scheduler_name or ""]
        state = CycleState(queued.info)
        self.cache.update_snapshot(self._snapshot)
        try:
            found = self._cycle.place(profile, state)
        except AttemptError as error:
            self._failed(queued, profile, REASON_ERROR, str(error), started)
            return
        except Exception as error:  # noqa: BLE001 - one Pod's failure must not stop the others
            _log.exception("attempt broke", extra=fields(pod=str(queued.info.key)))
            self._failed(queued, profile, REASON_ERROR, f"{type(error).__name__}: {error}", started)
            return
        self._metrics.searched(self._clock.monotonic() - started)
        if isinstance(found, Placement):
            await self._assume(queued, profile, state, found, started)
        else:
            await self._rejected(queued, profile, state, found, started)

    async def _rejected(
        self, queued: QueuedPod, profile: Profile, state: CycleState, diagnosis: Diagnosis, started: float
    ) -> None:
        message, nominated, broken = "", None, False
        diagnosis = _explained(profile, state, diagnosis)
        if diagnosis.node_count and profile.at(POST_FILTER):
            message, nominated, broken = await self._post_filter(profile, state, queued.pod, diagnosis)
        self._failed(
            queued,
            profile,
            REASON_UNSCHEDULABLE,
            diagnosis.message(message),
            started,
            plugins=diagnosis.plugins,
            pending=diagnosis.pending_plugins,
            nominated=nominated,
            broken=broken,
        )

    async def _post_filter(
        self, profile: Profile, state: CycleState, pod: Pod, diagnosis: Diagnosis
    ) -> tuple[str, str | None, bool]:
        """What the plugins say about making room, where the Pod is then expected, and whether one of them broke."""
        statuses = dict(diagnosis.statuses)
        if diagnosis.absent is not None and not statuses:
            statuses = {node.name: diagnosis.absent for node in self._snapshot}
        messages: list[str] = []
        for plugin in profile.at(POST_FILTER):
            try:
                result, status = await plugin.post_filter(state, pod, statuses)
            except Exception as error:  # noqa: BLE001 - one Pod's failure must not stop the others
                _log.exception("PostFilter plugin %s", plugin.name)
                messages.append(f"{type(error).__name__}: {error}")
                continue
            messages.extend(status.reasons)
            if status.is_success or not status.is_rejected:
                nominated = result.nominated_node_name if result is not None else None
                return ", ".join(messages), nominated, status.code is Code.ERROR
        return ", ".join(messages), None, False

    async def _assume(
        self, queued: QueuedPod, profile: Profile, state: CycleState, placement: Placement, started: float
    ) -> None:
        node_name = placement.node_name
        served = state.device_resources(node_name) if state.device_resources is not None else NO_NAMES
        assumed = queued.info.on_node(node_name, served)
        self.cache.assume(assumed, node_name)
        self._nominations.remove(queued.uid)
        attempt = Attempt(queued, profile, state, assumed.pod, node_name, started)
        try:
            status = self._binder.reserve(attempt)
        except Exception as error:  # noqa: BLE001 - one Pod's failure must not stop the others
            _log.exception("Reserve or Permit broke", extra=fields(pod=str(queued.info.key)))
            status = Status(Code.ERROR, (f"{type(error).__name__}: {error}",))
        if status.is_success:
            self._group.spawn(self._bind(attempt), f"bind {queued.info.key}")
        else:
            await self._undo(attempt, status)

    async def _bind(self, attempt: Attempt) -> None:
        queued = attempt.queued
        await self._reporter.settled(queued.uid)
        try:
            status = await self._binder.bind(attempt)
        except Exception as error:  # noqa: BLE001 - one Pod's failure must not stop the others
            _log.exception("binding broke", extra=fields(pod=str(queued.info.key)))
            status = Status(Code.ERROR, (f"{type(error).__name__}: {error}",))
        if not status.is_success:
            await self._undo(attempt, status)
            return
        self.queue.done(queued.uid)
        now = self._clock.monotonic()
        self._metrics.attempted(results.SCHEDULED, attempt.profile.scheduler_name, now - attempt.started)
        self._metrics.bound(queued.attempts, now - queued.added_at)
        message = f"Successfully assigned {queued.info.key} to {attempt.node_name}"
        self._reporter.event(queued.pod, NORMAL, "Scheduled", message)
        self._binder.post_bind(attempt)

    async def _undo(self, attempt: Attempt, status: Status) -> None:
        """Take back what the attempt took, and have the Pod tried again."""
        await self._binder.unreserve(attempt)
        queued = attempt.queued
        if self.cache.forget(queued.uid):
            # What it would have taken is free for others.
            self.queue.requeue_for_event(ASSIGNED_POD_DELETE, attempt.pod, None, self._clock.monotonic())
        if not status.is_rejected:
            self._failed(queued, attempt.profile, REASON_ERROR, status.message, attempt.started)
            return
        plugins = frozenset((status.plugin,)) if status.plugin else frozenset()
        pending = plugins if status.code is Code.PENDING else frozenset()
        rejection = Diagnosis(1, {attempt.node_name: unresolvable(*status.reasons)})
        self._failed(
            queued,
            attempt.profile,
            REASON_UNSCHEDULABLE,
            rejection.message(),
            attempt.started,
            plugins=plugins - pending,
            pending=pending,
        )

    def _failed(  # noqa: PLR0913 - the whole outcome of an attempt
        self,
        queued: QueuedPod,
        profile: Profile,
        reason: str,
        message: str,
        started: float,
        *,
        plugins: frozenset[str] = frozenset(),
        pending: frozenset[str] = frozenset(),
        nominated: str | None = None,
        broken: bool = False,
    ) -> None:
        """Queue the Pod again, if it is still there and has no node, and tell its user why.

        What could not be done for it when it was rejected is tried again soon, since nothing else would wake it.
        """
        now = self._clock.monotonic()
        result = results.ERROR if reason == REASON_ERROR else results.UNSCHEDULABLE
        self._metrics.attempted(result, profile.scheduler_name, now - started)
        self._wake.set()
        pod = self._pods.lister.get_key(queued.info.key)
        if pod is None or pod.metadata.uid != queued.uid or pod.spec.node_name:
            self.queue.done(queued.uid)
            return
        queued.info = queued.info.updated(pod)
        self.queue.reject(queued, now, plugins=plugins, pending=pending, is_error=broken or reason == REASON_ERROR)
        if nominated is not None:
            self._nominations.set(queued.info, nominated)
        self._reporter.set_status(pod, reason, message, nominated)
        if message != queued.told or now - queued.told_at > TELL_AGAIN_SECONDS:
            queued.told, queued.told_at = message, now
            self._reporter.event(pod, WARNING, "FailedScheduling", message)

    # --- What others cause. ---

    def _wake_up(self, _old: object, _new: object) -> None:
        self._wake.set()

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        self._wake.set()
        if new is None and old is not None:
            held = self._held.get(old.metadata.uid or "")
            if held is not None:
                held.reject("", "removed")

    def _notify(self, event: ClusterEvent, old: object, new: object) -> None:
        self.queue.requeue_for_event(event, old, new, self._clock.monotonic())
        self._wake.set()

    def _activate(self, uid: str) -> None:
        self.queue.activate(uid, self._clock.monotonic())
        self._wake.set()


def _explained(profile: Profile, state: CycleState, diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis in the fullest words that the plugins have."""
    statuses = dict(diagnosis.statuses)
    for plugin in profile.explainers if statuses else ():
        plugin.explain_rejections(state, state.pod_info.pod, statuses)
    return replace(diagnosis, statuses=statuses)
