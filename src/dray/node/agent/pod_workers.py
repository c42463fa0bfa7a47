"""Pod workers: performs the actions of each Pod's `PodMachine` and reports their results to it as events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Final, TypeAlias

from dray.api.document import Document
from dray.api.errors import APIError
from dray.api.types.core_v1 import Pod
from dray.client.objects import key_of
from dray.framework.resources import amounts_of
from dray.node.agent.admission import check_fit, check_node_selector
from dray.node.agent.container_lifecycle import STOP_RETRY_SECONDS, ContainerStarter, ContainerStopper
from dray.node.agent.cpuset_reconciler import CpusetReconciler, RunningContainer
from dray.node.agent.dependencies import Dependencies, NodeInfo
from dray.node.agent.pod.containers import ContainerKind
from dray.node.agent.pod.events import (
    Admit,
    Admitted,
    CleanUp,
    ContainerExited,
    DeletePod,
    Event,
    MustFail,
    PodAdded,
    PodRemoved,
    PodUpdated,
    PostStartFinished,
    Prepare,
    Prepared,
    PrepareFailed,
    ProbeKind,
    RecordEvent,
    Rejected,
    Release,
    Released,
    ReleaseFailed,
    RemoveContainer,
    RetryNow,
    RunPostStart,
    StartContainer,
    StartProbes,
    StopContainer,
    TimerFired,
)
from dray.node.agent.pod.machine import WARNING, PodMachine, Stage
from dray.node.agent.pod.status import HostInfo, pod_status
from dray.node.agent.pod_manager import PodManager, PodWorker
from dray.node.agent.pod_setup import REFRESH_SECONDS
from dray.node.agent.probes.thresholds import probe_of
from dray.node.agent.probes.worker import ProbedContainer, ProbeWorker
from dray.node.resource_manager import UNEXPECTED_ADMISSION_ERROR, Rejection, ResourceError
from dray.node.runtimes.runtime import ContainerRecord, RuntimeFailure
from dray.runtime.logs import fields
from dray.runtime.tasks import cancel_and_wait

_log = logging.getLogger(__name__)

ORPHAN_GRACE_SECONDS: Final = 30.0
# The delay before an operation that failed unexpectedly is repeated.
RETRY_SECONDS: Final = 2.0
# kubelet's reason for the event about it.
FAILED_SYNC: Final = "FailedSync"
# A plugin or driver that takes longer is named in an event.
LONG_WAIT_SECONDS: Final = 5.0
LONG_WAIT: Final = "WaitingForDevices"

_Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class PodWorkers:
    """The workers for the Pods of one node."""

    def __init__(self, node: Callable[[], NodeInfo], pods: PodManager, dependencies: Dependencies) -> None:
        self._node = node
        self._pods = pods
        self._workers = pods.workers
        self._deps = dependencies
        self._clock = dependencies.clock
        # Container runs found at the start, by Pod UID, until their Pod is added.
        self._found: dict[str, list[ContainerRecord]] = {}
        self._probe_worker = ProbeWorker(dependencies.prober, dependencies.clock)
        self._cpusets = CpusetReconciler(dependencies.runtime, dependencies.clock, dependencies.cpusets)
        self._starter = ContainerStarter(dependencies, self._cpusets, self._record)
        self._stopper = ContainerStopper(dependencies, self._address, self._record)
        # Cleanups, which outlive their Pods.
        self._cleanups: set[asyncio.Task[Any]] = set()

    @property
    def pods(self) -> PodManager:
        """The Pods of the node."""
        return self._pods

    # --- For the owner. ---

    async def start(self) -> None:
        """Start the runtime and find the containers that are running; Pods may be added afterwards."""
        records = await self._deps.runtime.start(self.container_exited, self._deps.tasks)
        self._pods.found_at_start += records
        for record in records:
            self._found.setdefault(record.pod_uid, []).append(record)
            self._pods.admitted_before.add(record.pod_uid)
            if record.exit is None:
                self._pods.settled_at_start.add((record.pod_uid, record.name))

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Handle an informer event."""
        if new is not None:
            worker = self._workers.get(new.metadata.uid or "")
            if worker is None:
                self._add(new)
            else:
                worker.pod = new
                self._deps.status_manager.pod_updated(worker)
                self._post(worker, PodUpdated(new))
        elif old is not None:
            worker = self._workers.get(old.metadata.uid or "")
            if worker is not None:
                self._post(worker, PodRemoved())

    def pods_synced(self) -> None:
        """Remove the containers that belong to no Pod; every Pod has been added."""
        orphans = [record for records in self._found.values() for record in records]
        self._found.clear()
        for record in orphans:
            self._spawn_cleanup(self._remove_orphan(record), f"removal of orphaned container {record.name}")
        self._pods.set_synced(orphans)

    def container_exited(self, record: ContainerRecord) -> None:
        """Handle the exit of a container; the runtime's listener."""
        worker = self._workers.get(record.pod_uid)
        if worker is None:
            # The Pod has not been added yet.
            found = self._found.get(record.pod_uid, [])
            found[:] = [record if item.id == record.id else item for item in found]
        else:
            self._spawn(worker, lambda: self._report_exit(worker, record), f"exit of {record.name}", retry=True)

    def resources_changed(self, uids: Sequence[str]) -> None:
        """Update the Pods whose resources changed; a resource manager's listener."""
        for uid in uids:
            worker = self._workers.get(uid)
            if worker is not None:
                self._check_health(worker)
                self._status_changed(worker)
                self._retry(worker, Stage.PREPARING, Stage.RUNNING)

    def retry_now(self) -> None:
        """Retry preparations and releases without waiting for their delay; a resource manager's listener."""
        for worker in tuple(self._workers.values()):
            self._retry(worker, Stage.PREPARING, Stage.RELEASING)

    def _retry(self, worker: PodWorker, *stages: Stage) -> None:
        if worker.machine.stage in stages:
            self._post(worker, RetryNow())

    async def stop(self) -> None:
        """Cancel everything and stop the runtime; containers keep running."""
        tasks = [task for worker in self._workers.values() for task in worker.tasks]
        await cancel_and_wait([*tasks, *self._cleanups])
        await self._deps.runtime.stop()

    async def report_statuses(self) -> None:
        """Write statuses until cancelled."""
        await self._deps.status_manager.run()

    async def refresh_volumes(self) -> None:
        """Update the volumes made from API objects periodically, until cancelled."""
        while True:
            await self._clock.sleep(REFRESH_SECONDS)
            for worker in tuple(self._workers.values()):
                if worker.machine.stage is Stage.RUNNING:
                    await self._refresh(worker)

    async def _refresh(self, worker: PodWorker) -> None:
        try:
            await self._deps.pod_setup.prepare(worker.pod)
        except ResourceError as error:
            self._record(worker, RecordEvent(WARNING, error.reason, error.message))
        except Exception:  # noqa: BLE001 - a full disk must not end the agent
            _log.exception("volumes not updated", extra=fields(pod=str(key_of(worker.pod))))

    async def reconcile_cpusets(self) -> None:
        """Keep containers on their CPUs until cancelled."""
        await self._cpusets.run(self._running)

    def _running(self) -> list[RunningContainer]:
        return [
            RunningContainer(worker.pod, state.name, state.current.id)
            for worker in self._workers.values()
            for state in worker.machine.containers.all
            if state.current is not None and state.current.exit is None and state.kind is not ContainerKind.EPHEMERAL
        ]

    def status_of(self, worker: PodWorker) -> Document | None:
        """Return the status to report; None if the API server had a final one before the agent started."""
        if worker.machine.was_terminal:
            return None

        def allocated(container: str) -> Sequence[Document]:
            managers = self._deps.managers
            return [item for manager in managers for item in manager.container_resources(worker.pod, container)]

        host = HostInfo(self._deps.runtime.name, self._node().addresses)
        return pod_status(worker.machine, host, self._clock.now(), reported=worker.reported_status, allocated=allocated)

    # --- Events in, actions out. ---

    def _add(self, pod: Pod) -> None:
        uid = pod.metadata.uid or ""
        records = self._found.pop(uid, [])
        machine = PodMachine(pod, records, now=self._clock.now(), timing=self._deps.timing)
        self._pods.settled_at_start.update((uid, name) for name in machine.completed_init_containers)
        worker = self._workers[uid] = PodWorker(pod, machine, status_source=self.status_of)
        self._post(worker, PodAdded())

    def _post(self, worker: PodWorker, event: Event) -> None:
        for action in worker.machine.handle(event, self._clock.now()):
            self._PERFORM[type(action)](self, worker, action)
        self._set_timer(worker)
        if worker.machine.stage < Stage.REMOVED:
            self._status_changed(worker)

    def _status_changed(self, worker: PodWorker) -> None:
        self._deps.status_manager.status_changed(worker)
        self._pods.notify_changed(worker)

    def _set_timer(self, worker: PodWorker) -> None:
        wake_at = worker.machine.wake_at
        if wake_at == worker.timer_at:
            return
        if worker.timer is not None:
            worker.timer.cancel()
        worker.timer, worker.timer_at = None, wake_at
        if wake_at is not None:
            seconds = (wake_at - self._clock.now()).total_seconds()
            worker.timer = self._spawn(worker, lambda: self._fire(worker, seconds), "timer")

    async def _fire(self, worker: PodWorker, seconds: float) -> None:
        await self._clock.sleep(max(seconds, 0.001))
        worker.timer, worker.timer_at = None, None
        self._post(worker, TimerFired())

    def _spawn(self, worker: PodWorker, work: _Work, name: str, *, retry: bool = False) -> asyncio.Task[Any]:
        """Start an operation for a Pod, which is cancelled with the Pod's worker."""
        task = self._deps.tasks.spawn(self._guarded(worker, work, name, retry=retry), f"{key_of(worker.pod)} {name}")
        worker.tasks.add(task)
        task.add_done_callback(worker.tasks.discard)
        return task

    async def _guarded(self, worker: PodWorker, work: _Work, name: str, *, retry: bool) -> None:
        """Confine an unexpected failure to the Pod: record it, and repeat the operation if that is safe."""
        while True:
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - one Pod must not end the agent
                _log.exception("pod worker failed", extra=fields(pod=str(key_of(worker.pod)), operation=name))
                self._record(worker, RecordEvent(WARNING, FAILED_SYNC, f"error syncing pod: {name}: {error}"))
            else:
                return
            if not retry:
                return
            await self._clock.sleep(RETRY_SECONDS)

    def _spawn_cleanup(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._deps.tasks.spawn(work, name)
        self._cleanups.add(task)
        task.add_done_callback(self._cleanups.discard)

    def _record(self, worker: PodWorker, action: RecordEvent) -> None:
        about = worker.reference(action.container)
        self._deps.recorder.event_for(about, action.type, action.reason, action.message)

    # --- Admission. ---

    def _perform_admit(self, worker: PodWorker, _action: Admit) -> None:
        self._spawn(worker, lambda: self._admit(worker), "admission")

    async def _admit(self, worker: PodWorker) -> None:
        try:
            with self._waits_noted(worker):
                rejection = await self._request_admission(worker)
        except Exception as error:  # noqa: BLE001 - whatever the failure, the Pod is rejected
            _log.exception("admission failed", extra=fields(pod=str(key_of(worker.pod))))
            rejection = Rejection(UNEXPECTED_ADMISSION_ERROR, str(error))
        if rejection is None:
            # Other containers leave the Pod's exclusive CPUs before any of its own starts.
            await self._cpusets.reconcile(self._running())
        self._post(worker, Rejected(rejection) if rejection is not None else Admitted())
        worker.fits = False
        # During admission health changes are ignored.
        self._check_health(worker)

    async def _request_admission(self, worker: PodWorker) -> Rejection | None:
        is_new = worker.uid not in self._pods.admitted_before
        if is_new and check_node_selector(worker.pod, self._node().labels) is not None:
            # The scheduler follows the Node's labels, and the agent reads them now and then: a Pod that waited for a
            # new label would be rejected, and its successors as well.
            await self._deps.refresh_node()
        rejection = self._check(worker)
        if rejection is not None:
            return rejection
        # From here on the Pod counts for others, which are admitted while it waits for its managers.
        worker.fits = True
        for position, manager in enumerate(self._deps.managers):
            rejection = await manager.admit(worker.pod)
            if rejection is not None:
                for earlier in self._deps.managers[:position]:
                    await self._attempt(earlier.release(worker.pod), "release of a rejected Pod")
                return rejection
        return None

    def _check(self, worker: PodWorker) -> Rejection | None:
        """Return why the node cannot have the Pod."""
        node = self._node()
        # Pods found at the start count before they are readmitted: new Pods must not take their resources.
        others = [
            other.requests()
            for other in self._workers.values()
            if other is not worker and (other.machine.admitted or other.fits or other.machine.awaits_readmission)
        ]
        if worker.uid not in self._pods.admitted_before:
            allocatable = self._deps.effective_allocatable(worker.pod, amounts_of(node.allocatable))
            rejection = check_node_selector(worker.pod, node.labels)
            return rejection or check_fit(worker.requests(), others, allocatable)
        return None

    @contextmanager
    def _waits_noted(self, worker: PodWorker) -> Iterator[None]:
        """Record events while the Pod waits long for something that one of its managers can name.

        Each wait is as long as all before together: few events, and the newest says how long it has been.
        """
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def note(seconds: float) -> None:
            nonlocal timer
            for text in filter(None, (manager.waits_for(worker.pod) for manager in self._deps.managers)):
                self._record(worker, RecordEvent(WARNING, LONG_WAIT, text))
            timer = loop.call_later(seconds, note, 2 * seconds)

        timer = loop.call_later(LONG_WAIT_SECONDS, note, LONG_WAIT_SECONDS)
        try:
            yield
        finally:
            timer.cancel()

    def _check_health(self, worker: PodWorker) -> None:
        failure = next(filter(None, (check(worker.pod) for check in self._deps.health_checks)), None)
        if failure is not None:
            self._post(worker, MustFail(failure))

    async def _attempt(self, work: Awaitable[None], operation: str) -> None:
        """Log a failure that must not prevent what comes next."""
        try:
            await work
        except Exception as error:  # noqa: BLE001 - logged; the caller goes on
            _log.warning("%s failed", operation, extra=fields(error=str(error)))

    # --- Preparation and release. ---

    def _perform_prepare(self, worker: PodWorker, _action: Prepare) -> None:
        worker.preparing = self._spawn(worker, lambda: self._prepare(worker), "preparation")

    async def _prepare(self, worker: PodWorker) -> None:
        setup = self._deps.pod_setup
        try:
            await setup.prepare(worker.pod)
            with self._waits_noted(worker):
                for manager in self._deps.managers:
                    await manager.prepare(worker.pod)
            addresses = await self._deps.runtime.ensure_sandbox(setup.sandbox(worker.pod))
        except ResourceError as error:
            self._post(worker, PrepareFailed(error.reason, error.message))
        except Exception as error:  # noqa: BLE001 - whatever the failure, preparation is retried
            if not isinstance(error, RuntimeFailure | APIError | OSError):
                _log.exception("preparation failed", extra=fields(pod=str(key_of(worker.pod))))
            self._post(worker, PrepareFailed("FailedCreatePodSandBox", f"Failed to create pod sandbox: {error}"))
        else:
            self._post(worker, Prepared(addresses))

    def _perform_release(self, worker: PodWorker, _action: Release) -> None:
        self._spawn(worker, lambda: self._release(worker), "release")

    async def _release(self, worker: PodWorker) -> None:
        if worker.preparing is not None:
            await cancel_and_wait([worker.preparing])
        try:
            for manager in self._deps.managers:
                await manager.release(worker.pod)
        except ResourceError as error:
            self._post(worker, ReleaseFailed(error.reason, error.message))
        except Exception as error:  # noqa: BLE001 - whatever the failure, the release is retried
            _log.exception("release failed", extra=fields(pod=str(key_of(worker.pod))))
            self._post(worker, ReleaseFailed("FailedKillPod", f"error killing pod: {error}"))
        else:
            # Not an operation of the Pod, whose own may be cancelled by what follows.
            self._spawn_cleanup(self._share_cpus(), f"cpuset update after {key_of(worker.pod)}")
            self._post(worker, Released())

    async def _share_cpus(self) -> None:
        """Give the CPUs that a Pod has released to the remaining containers."""
        await self._attempt(self._cpusets.reconcile(self._running()), "cpuset update")

    # --- Containers. ---

    def _perform_start(self, worker: PodWorker, action: StartContainer) -> None:
        self._spawn(worker, lambda: self._start_container(worker, action), f"start of {action.container}")

    async def _start_container(self, worker: PodWorker, action: StartContainer) -> None:
        with self._waits_noted(worker):
            event = await self._starter.start(worker, action)
        self._post(worker, event)

    def _perform_post_start(self, worker: PodWorker, action: RunPostStart) -> None:
        self._spawn(worker, lambda: self._post_start(worker, action), f"postStart hook of {action.container}")

    async def _post_start(self, worker: PodWorker, action: RunPostStart) -> None:
        failure = await self._stopper.post_start(worker, action.container, action.container_id)
        text = f"PostStartHook failed: {failure}" if failure else ""
        self._post(worker, PostStartFinished(action.container, action.container_id, text))

    def _perform_probes(self, worker: PodWorker, action: StartProbes) -> None:
        state = worker.machine.containers.by_name[action.container]
        self._stop_probes(worker, action.container)
        probed = ProbedContainer(
            action,
            state,
            address=lambda: self._address(worker),
            post=lambda event: self._post(worker, event),
            record=lambda event: self._record(worker, event),
        )
        worker.probes[action.container] = [
            self._start_probe(worker, probed, kind) for kind in ProbeKind if probe_of(state.spec, kind) is not None
        ]

    def _start_probe(self, worker: PodWorker, probed: ProbedContainer, kind: ProbeKind) -> asyncio.Task[Any]:
        name = f"{kind} probe of {probed.run.container}"
        return self._spawn(worker, lambda: self._probe_worker.run(probed, kind), name, retry=True)

    def _stop_probes(self, worker: PodWorker, container: str) -> None:
        for task in worker.probes.pop(container, ()):
            task.cancel()

    def _address(self, worker: PodWorker) -> str:
        addresses = worker.machine.addresses or self._node().addresses
        return addresses[0] if addresses else "127.0.0.1"

    def _perform_stop(self, worker: PodWorker, action: StopContainer) -> None:
        earlier = worker.stopping.pop(action.container_id, None)
        if earlier is not None:
            earlier.cancel()
        name = f"stop of {action.container}"
        task = self._spawn(worker, lambda: self._stopper.stop(worker, action), name, retry=True)
        worker.stopping[action.container_id] = task

    async def _report_exit(self, worker: PodWorker, record: ContainerRecord) -> None:
        self._stop_probes(worker, record.name)
        worker.stopping.pop(record.id, None)
        self._post(worker, ContainerExited(await self._with_message(worker, record)))

    async def _with_message(self, worker: PodWorker, record: ContainerRecord) -> ContainerRecord:
        assert record.exit is not None
        if record.exit.message:
            return record
        failed = record.exit.code != 0
        message = await self._deps.pod_setup.termination_message(worker.pod, record.name, record.attempt, failed=failed)
        if not message:
            return record
        return replace(record, exit=replace(record.exit, message=message))

    def _perform_remove(self, worker: PodWorker, action: RemoveContainer) -> None:
        self._spawn(worker, lambda: self._remove_run(worker, action.record), f"removal of {action.record.name}")

    async def _remove_run(self, worker: PodWorker, record: ContainerRecord) -> None:
        operation = f"removal of {record.name}"
        await self._attempt(self._deps.runtime.remove_container(record.id), operation)
        await self._attempt(self._deps.pod_setup.remove_log(worker.pod, record.name, record.attempt), operation)

    # --- Cleaning up. ---

    def _perform_delete(self, worker: PodWorker, _action: DeletePod) -> None:
        worker.delete_requested = True

    def _perform_clean_up(self, worker: PodWorker, _action: CleanUp) -> None:
        self._pods.remove(worker)
        self._deps.status_manager.remove(worker)
        worker.cancel()
        self._spawn_cleanup(self._clean_up(worker), f"removal of {key_of(worker.pod)}")

    async def _clean_up(self, worker: PodWorker) -> None:
        runtime, operation = self._deps.runtime, f"removal of {key_of(worker.pod)}"
        for state in worker.machine.containers.all:
            for record in (state.current, state.previous):
                if record is not None:
                    await self._attempt(runtime.remove_container(record.id), operation)
        await self._attempt(runtime.remove_sandbox(worker.uid), operation)
        await self._attempt(self._deps.pod_setup.remove_pod(worker.pod), operation)

    async def _remove_orphan(self, record: ContainerRecord) -> None:
        _log.info("stopping a container without a Pod", extra=fields(pod=record.pod_name, container=record.name))
        while True:
            try:
                await self._deps.runtime.stop_container(record.id, ORPHAN_GRACE_SECONDS)
                break
            except Exception as error:  # noqa: BLE001 - its devices are in use until it has ended
                _log.warning("orphaned container not stopped", extra=fields(pod=record.pod_name, error=str(error)))
                await self._clock.sleep(STOP_RETRY_SECONDS)
        self._pods.remove_orphan(record.pod_uid)
        operation = "removal of an orphaned container"
        await self._attempt(self._deps.runtime.remove_container(record.id), operation)
        await self._attempt(self._deps.runtime.remove_sandbox(record.pod_uid), operation)

    _PERFORM: ClassVar[Mapping[type[Any], Perform]] = {
        Admit: _perform_admit,
        Prepare: _perform_prepare,
        StartContainer: _perform_start,
        RunPostStart: _perform_post_start,
        StartProbes: _perform_probes,
        StopContainer: _perform_stop,
        RemoveContainer: _perform_remove,
        Release: _perform_release,
        RecordEvent: _record,
        DeletePod: _perform_delete,
        CleanUp: _perform_clean_up,
    }


Perform: TypeAlias = Callable[[PodWorkers, PodWorker, Any], None]
