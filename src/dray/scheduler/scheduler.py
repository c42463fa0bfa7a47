"""The scheduler: runs the scheduling cycle of one Pod after the other, and binding cycles concurrently."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final

from dray.api.document import NamespacedName
from dray.api.features import FeatureGates
from dray.api.pod_groups import group_key_of
from dray.api.types.core_v1 import Pod
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.client.event_recorder import NORMAL, WARNING
from dray.client.interface import Client
from dray.client.objects import key_of
from dray.client.resources import NODES, POD_GROUPS, PODS
from dray.client.shared_informers import SharedInformerFactory
from dray.framework.cycle_state import CycleState
from dray.framework.events import ClusterEvent
from dray.framework.plugins import POST_FILTER
from dray.framework.pod_info import PodInfo
from dray.framework.snapshot import Snapshot
from dray.framework.status import Code, Status, unresolvable
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import ChildTasks, TaskGroup, WakeUpTimer
from dray.scheduler import metrics as results
from dray.scheduler.binder import Attempt, Binder, WaitingPodsMap
from dray.scheduler.cache import Cache
from dray.scheduler.cluster_events import ASSIGNED_POD_DELETE, RESOURCES_BY_EVENT, UNFINISHED
from dray.scheduler.config import SchedulerConfig
from dray.scheduler.cycle import Cycle, Placement
from dray.scheduler.decisions import DecisionLog
from dray.scheduler.diagnosis import REASON_ERROR, REASON_UNSCHEDULABLE, Diagnosis, Failure
from dray.scheduler.event_handlers import EventHandlers
from dray.scheduler.filter_runner import AttemptError
from dray.scheduler.group_cycle import GroupCycle
from dray.scheduler.group_dry_run import GroupDryRun
from dray.scheduler.group_metrics import GroupMetrics
from dray.scheduler.group_queue import GroupQueue
from dray.scheduler.group_reporter import GroupReporter
from dray.scheduler.group_scheduler import GroupScheduler, PodSteps
from dray.scheduler.handle import Handle, PluginFactory
from dray.scheduler.metrics import SchedulerMetrics
from dray.scheduler.nominations import Nominations
from dray.scheduler.post_filter import PostFilterOutcome, run_post_filter
from dray.scheduler.profile import Profile, explain
from dray.scheduler.queue import FLUSH_EVERY_SECONDS, SchedulingQueue
from dray.scheduler.queued_group import QueuedGroup
from dray.scheduler.queued_pod import QueuedPod
from dray.scheduler.registry import make_profiles
from dray.scheduler.reporter import Reporter
from dray.scheduler.timing import SAMPLE_EVERY

_log = logging.getLogger(__name__)

# The scheduler yields to the event loop this often, so that requests to an API server in the same process do not wait.
YIELD_AFTER_SECONDS: Final = 0.002
# A repeated failure with the same message is recorded again only after this time: with thousands of pending Pods,
# recording would cost more than scheduling.
RECORD_AGAIN_SECONDS: Final = 60.0


def _error(message: str, *, at_once: bool = False) -> Failure:
    return Failure(REASON_ERROR, message, nominated="", is_error=True, at_once=at_once)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


class Scheduler:
    """One scheduler with its profiles; `run` once."""

    def __init__(  # noqa: PLR0913 - the dependencies of a whole component
        self,
        client: Client,
        informers: SharedInformerFactory,
        clock: Clock,
        metrics: Metrics,
        *,
        factories: Mapping[str, PluginFactory],
        config: SchedulerConfig | None = None,
        features: FeatureGates | None = None,
        decisions: DecisionLog | None = None,
    ) -> None:
        config = config or SchedulerConfig()
        self._decisions = decisions
        self._clock = clock
        self._metrics = SchedulerMetrics(metrics)
        self._snapshot = Snapshot()
        self._waiting_pods = WaitingPodsMap()
        self._nominations = Nominations()
        self._wake = asyncio.Event()
        # What an idle scheduling loop waits for; empty while the loop has work, so that no change has to wake it.
        self._idle: set[asyncio.Event] = set()
        self._timer = WakeUpTimer(clock, self._wake)
        self._reporter = Reporter(client, clock, [profile.scheduler_name for profile in config.profiles])
        self._binder = Binder(clock, self._waiting_pods)
        self._bindings = ChildTasks("bindings")
        self._preemptions = ChildTasks("preemptions")
        features = features or FeatureGates()
        self.cache = Cache()
        self.handle = Handle(
            client=client,
            informers=informers,
            clock=clock,
            metrics=metrics,
            features=features,
            snapshot=self._snapshot,
            waiting_pods=self._waiting_pods,
            notify=self._notify,
            activate=self._activate,
            record=self._reporter.event,
            record_node=self._reporter.node_event,
            record_claim=self._reporter.claim_event,
            record_preempted=self._reporter.preempted,
            spawn=self._preemptions.spawn,
            recheck_gate=self._recheck_gate,
            clear_nomination=self._clear_nomination,
            preemption_failed=self._preemption_failed,
            cancel_binding=self._binder.cancel,
            binding_cancellation=self._binder.cancellation,
            nominations=self._nominations,
            activate_group=self._activate_group,
            dry_run_group=self._dry_run_group,
        )
        self.profiles = make_profiles(config.profiles, factories, self.handle)
        self.handle.profiles.update(self.profiles)
        self.queue = self._make_queue(config)
        self._timed = {
            name: profile.timed(clock.monotonic, self._metrics.plugin_ran) for name, profile in self.profiles.items()
        }
        # Whether the node of a Pod that waits to be bound is written to its status.
        self._announces = self.handle.features.enabled("NominatedNodeNameForExpectation")
        self._attempts = 0
        self._cycle = Cycle(self._snapshot, self._nominations, records=decisions is not None)
        self._pods = informers.informer(PODS, UNFINISHED)
        # None while there are no groups.
        self._groups: GroupScheduler | None = None
        if isinstance(self.queue, GroupQueue):
            self._groups = self._make_groups(self.queue, client, metrics)
        self._handlers = EventHandlers(
            self.queue,
            self.cache,
            self._nominations,
            self.profiles,
            clock.monotonic,
            self.handle.pod_groups if self._groups is not None else None,
        )
        self._add_handlers(informers)
        sizes = {"nodes": lambda: self.cache.node_count, "pods": self.cache.pod_count}
        self._metrics.follow(self.queue.counts, sizes | {"assumed_pods": self.cache.assumed_count})

    def _make_queue(self, config: SchedulerConfig) -> SchedulingQueue:
        def rules(pod: Pod) -> Profile:
            return self.profiles[pod.spec.scheduler_name or ""]

        every, observe = self.profiles.values(), self._metrics.incoming
        if not self.handle.features.enabled("GenericWorkload"):
            return SchedulingQueue(rules, every, backoff=config.backoff, observe_incoming=observe)
        groups = self.handle.pod_groups
        return GroupQueue(
            rules,
            every,
            has_group=lambda key: groups.get(key) is not None,
            backoff=config.backoff,
            observe_incoming=observe,
        )

    def _make_groups(self, queue: GroupQueue, client: Client, metrics: Metrics) -> GroupScheduler:
        groups = self.cache.pod_groups = self.handle.pod_groups
        group_metrics = GroupMetrics(metrics, self._clock)
        has_topology = self.handle.features.enabled("TopologyAwareWorkloadScheduling")
        observe = group_metrics.placement_tried if has_topology else None
        self._group_reporter = GroupReporter(client, self._clock, groups)
        return GroupScheduler(
            self._clock,
            queue=queue,
            cache=self.cache,
            cycle=GroupCycle(self._cycle, self.cache, self._snapshot, groups, explain, observe),
            binder=self._binder,
            nominations=self._nominations,
            pod_groups=groups,
            profiles=self.profiles,
            snapshot=self._snapshot,
            metrics=group_metrics,
            reporter=self._group_reporter,
            steps=PodSteps(
                self._start_binding,
                self._undo,
                self._report_member,
                self._is_pending,
                self._nominate,
                self._end_nomination,
            ),
        )

    def _add_handlers(self, informers: SharedInformerFactory) -> None:
        handlers = self._handlers
        registered = {
            item.event.resource
            for profile in self.profiles.values()
            for items in profile.registrations().values()
            for item in items
        }
        for resource in sorted(registered & RESOURCES_BY_EVENT.keys()):
            informer = informers.informer(RESOURCES_BY_EVENT[resource])
            informer.add_handler(handlers.handler_of(resource))
            informer.add_handler(self._on_change, needed_while=self._idle)
        nodes = informers.informer(NODES)
        nodes.add_handler(handlers.node_changed)
        nodes.add_handler(self._on_change, needed_while=self._idle)
        if self._groups is not None:
            informers.informer(POD_GROUPS).add_handler(handlers.group_changed)
            informers.informer(POD_GROUPS).add_handler(self._on_change, needed_while=self._idle)
            informers.informer(POD_GROUPS).add_handler(self._on_group_change)
        self._pods.add_handler(handlers.pod_changed)
        self._pods.add_handler(self._on_change, needed_while=self._idle)
        self._pods.add_handler(self._on_pod_change)

    # --- Running. ---

    async def run(self) -> None:
        """Schedule until cancelled; the caller runs the informers."""
        async with TaskGroup("scheduler") as group:
            group.spawn(self._reporter.run(), "reporter")
            group.spawn(self._bindings.supervise(), "bindings")
            group.spawn(self._preemptions.supervise(), "preemptions")
            if self._groups is not None:
                group.spawn(self._group_reporter.writes.supervise(), "pod group conditions")
            await self.handle.informers.wait_for_sync()
            if self._groups is not None:
                for key, _ in self.handle.pod_groups.all():
                    self._groups.bound_pods_changed(key)
            group.spawn(self._flush(), "queue flush")
            group.spawn(self._timer.run(), "wake-up timer")
            group.spawn(self._schedule(), "scheduling")
            await group.wait()

    async def _schedule(self) -> None:
        resumed = self._clock.monotonic()
        while True:
            now = self._clock.monotonic()
            self._report_gated(now)
            queued = self.queue.pop(now)
            if queued is None:
                await self._wait_for_work()
                resumed = self._clock.monotonic()
                continue
            await self._attempt(queued)
            if self._clock.monotonic() - resumed > YIELD_AFTER_SECONDS:
                await asyncio.sleep(0)
                resumed = self._clock.monotonic()

    def _report_gated(self, now: float) -> None:
        """Write why Pods are not in the queue, if that has lasted."""
        for queued in self.queue.gated_to_report(now):
            self._reporter.report_gate(queued, self.queue.is_gated)

    async def _wait_for_work(self) -> None:
        self._wake.clear()
        due = self.queue.next_due()
        if due is not None:
            self._timer.set_at(due)
        self._idle.add(self._wake)
        try:
            await self._wake.wait()
        finally:
            self._idle.clear()

    async def _flush(self) -> None:
        while True:
            await self._clock.sleep(FLUSH_EVERY_SECONDS)
            self.queue.flush(self._clock.monotonic())
            if self._groups is not None:
                self._groups.end_nominations_without_enough_pods()
            self._wake.set()

    # --- One attempt. ---

    async def _attempt(self, queued: QueuedPod) -> None:
        """Run the scheduling cycle; the binding cycle runs concurrently with the next one."""
        if self._groups is not None and isinstance(queued, QueuedGroup):
            await self._groups.attempt(queued, self._next_profile(queued.pod))
            return
        started = self._clock.monotonic()
        pod = queued.pod
        if pod.metadata.deletion_timestamp is not None or self.cache.node_of(queued.uid) is not None:
            self.queue.done(queued.uid)
            return
        profile = self._next_profile(pod)
        state = CycleState(queued.info)
        self.cache.update_snapshot(self._snapshot)
        try:
            found = self._cycle.place(profile, state)
        except AttemptError as error:
            self._fail(queued, profile, started, _error(str(error)))
            return
        except Exception as error:  # noqa: BLE001 - the failure of one Pod must not stop the others
            _log.exception("attempt failed", extra=fields(pod=str(queued.info.key)))
            self._fail(queued, profile, started, _error(_text(error)))
            return
        self._metrics.searched(self._clock.monotonic() - started)
        if isinstance(found, Placement):
            await self._assume(queued, profile, state, found, started)
        else:
            self._fail(queued, profile, started, await self._reject(profile, state, found))

    def _next_profile(self, pod: Pod) -> Profile:
        """Return the profile of a Pod; for one attempt in some the timed one."""
        self._attempts += 1
        profiles = self._timed if self._attempts % SAMPLE_EVERY == 0 else self.profiles
        return profiles[pod.spec.scheduler_name or ""]

    async def _reject(self, profile: Profile, state: CycleState, diagnosis: Diagnosis) -> Failure:
        """Explain the rejections, and run PostFilter."""
        diagnosis = explain(profile, state, diagnosis)
        statuses = diagnosis.statuses
        self._cycle.rejected(profile, state, statuses)
        outcome = PostFilterOutcome()
        if not diagnosis.node_count:
            outcome = PostFilterOutcome(nominated="")
        elif profile.at(POST_FILTER):
            if diagnosis.absent is not None and not statuses:
                statuses = {node.name: diagnosis.absent for node in self._snapshot}
            outcome = await run_post_filter(profile, state, statuses)
        return Failure(
            REASON_UNSCHEDULABLE,
            diagnosis.message(outcome.message),
            diagnosis.plugins,
            diagnosis.pending_plugins,
            outcome.nominated,
            outcome.is_error,
            evaluation=None if self._decisions is None else diagnosis.evaluation(),
        )

    async def _assume(
        self, queued: QueuedPod, profile: Profile, state: CycleState, placement: Placement, started: float
    ) -> None:
        node_name = placement.node_name
        assumed = state.pod_on(node_name)
        self.cache.assume(assumed, node_name)
        self._nominations.remove(queued.uid)
        attempt = Attempt(queued, profile, state, assumed.pod, node_name, started)
        try:
            status = self._binder.reserve(attempt)
        except Exception as error:  # noqa: BLE001 - the failure of one Pod must not stop the others
            _log.exception("Reserve or Permit failed", extra=fields(pod=str(queued.info.key)))
            status = Status(Code.ERROR, (_text(error),))
        if status.is_success:
            self._start_binding(attempt)
        else:
            await self._undo(attempt, status)

    def _start_binding(self, attempt: Attempt) -> None:
        if self._decisions is not None:
            self._decisions.placed(attempt, self._clock.now(), self._clock.monotonic() - attempt.started)
        self._binder.begin(attempt)
        self._bindings.spawn(self._binding_cycle(attempt), f"bind {attempt.queued.info.key}")

    async def _binding_cycle(self, attempt: Attempt) -> None:
        try:
            await self._bind(attempt)
        finally:
            self._binder.end(attempt)

    async def _bind(self, attempt: Attempt) -> None:
        queued = attempt.queued
        try:
            await self._reporter.settle_status(queued.uid)
            if self._announces and self._binder.will_wait(attempt):
                self._reporter.announce(attempt.pod, attempt.node_name)
                await self._reporter.wait_for_status(queued.uid)
            status = await self._binder.bind(attempt)
        except Exception as error:  # noqa: BLE001 - the failure of one Pod must not stop the others
            _log.exception("binding failed", extra=fields(pod=str(queued.info.key)))
            status = Status(Code.ERROR, (_text(error),))
        if not status.is_success:
            await self._undo(attempt, status)
            return
        self.queue.done(queued.uid)
        self._reporter.forget_announcement(queued.uid)
        if attempt.gang is not None:
            self.handle.pod_groups.pod_bound(attempt.pod)
        now = self._clock.monotonic()
        self._metrics.attempted(results.SCHEDULED, attempt.profile.scheduler_name, now - attempt.started)
        self._metrics.bound(queued.attempts, now - queued.added_at)
        message = f"Successfully assigned {queued.info.key} to {attempt.node_name}"
        self._reporter.event(queued.pod, NORMAL, "Scheduled", message)
        self._binder.post_bind(attempt)

    async def _undo(self, attempt: Attempt, status: Status) -> None:
        """Undo the reservations and the assumption, and requeue the Pod."""
        await self._binder.unreserve(attempt)
        queued = attempt.queued
        if self.cache.forget(queued.uid):
            # Its resources are available to other Pods again.
            self.queue.requeue_for_event(ASSIGNED_POD_DELETE, attempt.pod, None, self._clock.monotonic())
            if attempt.gang is not None:
                self._bound_pods_changed(group_key_of(attempt.pod))
        failure = _error(status.message, at_once=status.at_once)
        if status.is_rejected:
            plugins = frozenset((status.plugin,)) if status.plugin else frozenset()
            if status.code is Code.PENDING:
                # There is a node for the Pod: no numbers of nodes that are not available.
                failure = Failure(REASON_UNSCHEDULABLE, status.message, pending=plugins, nominated="", is_wait=True)
            else:
                rejection = Diagnosis(1, {attempt.node_name: unresolvable(*status.reasons)})
                failure = Failure(REASON_UNSCHEDULABLE, rejection.message(), plugins, nominated="")
        self._fail(queued, attempt.profile, attempt.started, failure)

    def _fail(self, queued: QueuedPod, profile: Profile, started: float, failure: Failure) -> None:
        """Requeue the Pod, if it still exists and has no node, and report the failure."""
        now = self._clock.monotonic()
        self._count_failure(profile, now - started, failure)
        pod = self._pending_pod(queued)
        if pod is None:
            self.queue.done(queued.uid)
            self._reporter.forget_announcement(queued.uid)
            return
        queued.info = queued.info.updated(pod)
        self.queue.reject(
            queued,
            now,
            plugins=failure.plugins,
            pending=failure.pending,
            is_error=failure.is_error,
            at_once=failure.at_once,
        )
        self._report(queued, profile, pod, failure, now - started)

    def _report_member(self, queued: QueuedPod, profile: Profile, started: float, failure: Failure) -> None:
        """Report the failure of a Pod that is requeued with its group."""
        now = self._clock.monotonic()
        self._count_failure(profile, now - started, failure)
        pod = self._pending_pod(queued)
        if pod is not None:
            queued.info = queued.info.updated(pod)
            self._report(queued, profile, pod, failure, now - started)

    def _count_failure(self, profile: Profile, seconds: float, failure: Failure) -> None:
        result = results.ERROR if failure.reason == REASON_ERROR else results.UNSCHEDULABLE
        self._metrics.attempted(result, profile.scheduler_name, seconds)
        self._wake.set()

    def _pending_pod(self, queued: QueuedPod) -> Pod | None:
        """Return the Pod as last observed; None if it is gone, or has a node."""
        pod = self._pods.lister.get_key(queued.info.key)
        return None if pod is None or pod.metadata.uid != queued.uid or pod.spec.node_name else pod

    def _is_pending(self, queued: QueuedPod) -> bool:
        return self._pending_pod(queued) is not None

    def _report(self, queued: QueuedPod, profile: Profile, pod: Pod, failure: Failure, seconds: float) -> None:
        """Write the condition and the nomination, and record an Event and the decision."""
        now = self._clock.monotonic()
        if self._decisions is not None:
            self._decisions.rejected(queued, profile.scheduler_name, failure, self._clock.now(), seconds)
        if failure.nominated is not None:
            self._handlers.nominate(queued.info, failure.nominated)
        self._reporter.set_status(pod, failure.reason, failure.message, failure.nominated)
        if failure.message != queued.last_message or now - queued.last_recorded_at > RECORD_AGAIN_SECONDS:
            queued.last_message, queued.last_recorded_at = failure.message, now
            kind, reason = (NORMAL, "WaitingForDriver") if failure.is_wait else (WARNING, "FailedScheduling")
            self._reporter.event(pod, kind, reason, failure.message)

    # --- Events. ---

    def _on_change(self, _old: object, _new: object) -> None:
        """Wake the idle scheduling loop if the change gave it work: most changes are its own writes."""
        if self.queue.has_work_before(self._timer.due):
            self._idle.clear()
            self._wake.set()

    def _on_pod_change(self, old: Pod | None, new: Pod | None) -> None:
        if self._groups is not None:
            if new is None:
                # It may have been on its way to a node.
                self._bound_pods_changed(None if old is None else group_key_of(old))
            elif new.spec.node_name and (old is None or not old.spec.node_name):
                self._bound_pods_changed(group_key_of(new))
        if old is not None and (new is None or new.metadata.deletion_timestamp is not None):
            self._binder.pod_deleted(old.metadata.uid or "")

    def _on_group_change(self, _old: PodGroup | None, new: PodGroup | None) -> None:
        if new is not None:
            self._bound_pods_changed(key_of(new))

    def _bound_pods_changed(self, key: NamespacedName | None) -> None:
        if self._groups is not None and key is not None:
            self._groups.bound_pods_changed(key)

    def _notify(self, event: ClusterEvent, old: object, new: object) -> None:
        if self._groups is not None and self._groups.is_undoing:
            return
        self.queue.requeue_for_event(event, old, new, self._clock.monotonic())
        self._wake.set()

    def _recheck_gate(self, uid: str) -> None:
        self.queue.recheck_gate(uid, self._clock.monotonic())
        self._wake.set()

    def _clear_nomination(self, uid: str) -> None:
        self._end_nomination(uid)
        self._activate(uid)

    def _preemption_failed(self, uid: str) -> None:
        self._end_nomination(uid)
        self.queue.retry_later(uid, self._clock.monotonic())
        self._wake.set()

    def _end_nomination(self, uid: str) -> None:
        info = self._nominations.get(uid)
        if info is not None:
            self._handlers.nominate(info, "")
            self._reporter.clear_nomination(info.pod)

    def _activate_group(self, key: NamespacedName) -> None:
        if isinstance(self.queue, GroupQueue):
            self.queue.activate_group(key, self._clock.monotonic())
            self._wake.set()

    def _nominate(self, info: PodInfo, node_name: str) -> None:
        self._handlers.nominate(info, node_name)

    def _dry_run_group(self, group: PodGroup, members: Sequence[PodInfo]) -> AbstractContextManager[GroupDryRun]:
        assert self._groups is not None, "only a group has a group cycle"
        return self._groups.dry_run(group, members)

    def _activate(self, uid: str) -> None:
        self.queue.activate(uid, self._clock.monotonic())
        self._wake.set()
