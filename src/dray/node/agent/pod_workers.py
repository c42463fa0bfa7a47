"""The agent's hands for Pods: performs what each Pod's machine asks for and tells it how that went."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from dray.api.document import Document, NamespacedName
from dray.api.errors import APIError
from dray.api.types.core_v1 import Pod
from dray.client.objects import key_of
from dray.framework.resources import amounts_of
from dray.node.agent.admission import check_fit, check_place
from dray.node.agent.container_lifecycle import STOP_RETRY_SECONDS, ContainerStarter, ContainerStopper
from dray.node.agent.cpuset_reconciler import CpusetReconciler, RunningContainer
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
from dray.node.agent.pod_setup import REFRESH_SECONDS
from dray.node.agent.pod_worker import Dependencies, NodeInfo, PodWorker
from dray.node.agent.probes.thresholds import probe_of
from dray.node.agent.probes.worker import ProbedContainer, ProbeWorker
from dray.node.resource_manager import (
    UNEXPECTED_ADMISSION_ERROR,
    Rejection,
    ResourceError,
)
from dray.node.runtimes.runtime import ContainerRecord, RuntimeFailure
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)

ORPHAN_GRACE_SECONDS: Final = 30.0


class PodWorkers:
    """The Pods of one node."""

    def __init__(self, facts: Callable[[], NodeInfo], parts: Dependencies) -> None:
        self._facts = facts
        self._parts = parts
        self._clock = parts.clock
        self._works: dict[str, PodWorker] = {}
        # Runs found at the start, by Pod, until their Pod is seen.
        self._found: dict[str, list[ContainerRecord]] = {}
        # UIDs of Pods that are gone, whose containers are being ended; one for each container.
        self._orphans: list[str] = []
        # Called when the Pods that may hold something have become fewer without any of them being released.
        self.on_gone: Callable[[], None] = lambda: None
        # Containers that ran before this process did, as (Pod UID, name).
        self.ran_before: frozenset[tuple[str, str]] = frozenset()
        # Whether every Pod of the node has been fed in.
        self.all_seen = False
        self._prober = ProbeWorker(parts.asker, parts.clock)
        self._pins = CpusetReconciler(parts.runtime, parts.clock, parts.pinning)
        self._starter = ContainerStarter(parts, self._pins, self._tell_of)
        self._stopper = ContainerStopper(parts, self._address, self._tell_of)
        self._admission = asyncio.Lock()
        self._background: set[asyncio.Task[Any]] = set()

    # --- What the owner calls. ---

    async def start(self) -> None:
        """Find what runs from before; afterwards Pods may be fed in."""
        records = await self._parts.runtime.start(self.exited)
        for record in records:
            self._found.setdefault(record.pod_uid, []).append(record)
        self.ran_before = frozenset((record.pod_uid, record.name) for record in records if record.exit is None)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """An informer's handler."""
        if new is not None:
            work = self._works.get(new.metadata.uid or "")
            if work is None:
                self._begin(new)
            else:
                work.pod = new
                self._parts.reporter.seen(work)
                self._post(work, PodUpdated(new))
        elif old is not None:
            work = self._works.get(old.metadata.uid or "")
            if work is not None:
                self._post(work, PodRemoved())

    def synced(self) -> None:
        """All Pods have been seen: what runs for none of them must go."""
        self.all_seen = True
        orphans = [record for records in self._found.values() for record in records]
        self._found.clear()
        self._orphans = [record.pod_uid for record in orphans]
        for record in orphans:
            self._spawn(self._remove_orphan(record), f"orphan {record.name}")
        self.on_gone()

    def exited(self, record: ContainerRecord) -> None:
        """The runtime's listener."""
        work = self._works.get(record.pod_uid)
        if work is None:
            # Its Pod has not been seen yet.
            found = self._found.get(record.pod_uid, [])
            found[:] = [record if item.id == record.id else item for item in found]
        else:
            self._do(work, self._tell_exit(work, record), f"exit of {record.name}")

    def resources_changed(self, uids: Sequence[str]) -> None:
        """A manager's listener."""
        for uid in uids:
            work = self._works.get(uid)
            if work is None:
                continue
            self._judge(work)
            self._parts.reporter.changed(work)

    def try_again(self) -> None:
        """A manager's listener: what was missing for a Pod may be there now."""
        for work in tuple(self._works.values()):
            if work.machine.stage in (Stage.PREPARING, Stage.RELEASING):
                self._post(work, RetryNow())

    def _judge(self, work: PodWorker) -> None:
        doom = next(filter(None, (verdict(work.pod) for verdict in self._parts.verdicts)), None)
        if doom is not None:
            self._post(work, MustFail(doom))

    async def stop(self) -> None:
        """Let go of everything; containers run on."""
        for work in self._works.values():
            work.cancel()
        for task in self._background:
            task.cancel()
        tasks = [task for work in self._works.values() for task in work.tasks]
        await asyncio.gather(*tasks, *self._background, return_exceptions=True)
        await self._parts.runtime.stop()

    async def report(self) -> None:
        """Write statuses until cancelled."""
        await self._parts.reporter.run()

    async def refresh(self) -> None:
        """Make volumes from API objects again, now and then, until cancelled."""
        while True:
            await self._clock.sleep(REFRESH_SECONDS)
            for work in tuple(self._works.values()):
                if work.machine.stage is Stage.RUNNING:
                    await self._refresh(work)

    async def _refresh(self, work: PodWorker) -> None:
        try:
            await self._parts.builder.prepare(work.pod)
        except ResourceError as error:
            self._tell_of(work, RecordEvent(WARNING, error.reason, error.message))
        except Exception:  # noqa: BLE001 - the outer edge: a full disk must not end the agent
            _log.exception("volumes", extra=fields(pod=str(key_of(work.pod))))

    async def keep_pinned(self) -> None:
        """Keep containers on their CPUs until cancelled."""
        await self._pins.keep(self._running)

    def _running(self) -> list[RunningContainer]:
        return [
            RunningContainer(work.pod, state.name, state.current.id)
            for work in self._works.values()
            for state in work.machine.containers.all
            if state.current is not None and state.current.exit is None
        ]

    # --- `PodSource`. ---

    def active(self) -> tuple[Pod, ...]:
        """Admitted Pods whose containers may still run."""
        return tuple(work.pod for work in self._works.values() if work.machine.admitted)

    def all(self) -> tuple[Pod, ...]:
        """Every Pod the agent knows."""
        return tuple(work.pod for work in self._works.values())

    def get(self, uid: str) -> Pod | None:
        """One Pod."""
        work = self._works.get(uid)
        return work.pod if work is not None else None

    def orphans(self) -> frozenset[str]:
        """UIDs of Pods that are gone, though containers of theirs may still run."""
        return frozenset(self._orphans)

    def work_of(self, namespace: str, name: str) -> PodWorker | None:
        """A Pod by its name; of several, of which the API server has forgotten the others, the newest."""
        wanted = NamespacedName(namespace, name)
        return next((work for work in reversed(self._works.values()) if key_of(work.pod) == wanted), None)

    def status_of(self, work: PodWorker) -> Document | None:
        """What to report of a Pod; None when the API server has it as finished from before."""
        if work.machine.was_terminal:
            return None
        facts = self._facts()

        def allocated(container: str) -> Sequence[Document]:
            return [item for part in self._parts.managers for item in part.container_resources(work.pod, container)]

        place = HostInfo(self._parts.runtime.name, facts.addresses)
        return pod_status(work.machine, place, self._clock.now(), told=work.told, allocated=allocated)

    # --- Events in, actions out. ---

    def _begin(self, pod: Pod) -> None:
        uid = pod.metadata.uid or ""
        records = self._found.pop(uid, [])
        machine = PodMachine(pod, records, now=self._clock.now(), timing=self._parts.timing)
        work = PodWorker(pod, machine, status_source=self.status_of)
        self._works[uid] = work
        self._post(work, PodAdded())

    def _post(self, work: PodWorker, event: Event) -> None:
        for action in work.machine.handle(event, self._clock.now()):
            _PERFORM[type(action)](self, work, action)
        self._arm(work)
        if work.machine.stage < Stage.REMOVED:
            self._parts.reporter.changed(work)

    def _arm(self, work: PodWorker) -> None:
        if work.timer is not None:
            work.timer.cancel()
            work.timer = None
        wake = work.machine.wake_at
        if wake is not None:
            work.timer = asyncio.create_task(self._wake(work, (wake - self._clock.now()).total_seconds()))

    async def _wake(self, work: PodWorker, seconds: float) -> None:
        await self._clock.sleep(max(seconds, 0.001))
        work.timer = None
        self._post(work, TimerFired())

    def _do(self, work: PodWorker, job: Coroutine[Any, Any, None], name: str) -> asyncio.Task[Any]:
        task = asyncio.create_task(job, name=f"{key_of(work.pod)} {name}")
        work.tasks.add(task)
        task.add_done_callback(lambda done: self._done(done, work.tasks))
        return task

    def _spawn(self, job: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(job, name=name)
        self._background.add(task)
        task.add_done_callback(lambda done: self._done(done, self._background))

    def _done(self, task: asyncio.Task[Any], among: set[asyncio.Task[Any]]) -> None:
        among.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("work crashed", exc_info=task.exception(), extra=fields(task=task.get_name()))

    # --- Admission, preparation, release. ---

    def _perform_admit(self, work: PodWorker, _action: Admit) -> None:
        self._do(work, self._admit(work), "admission")

    async def _admit(self, work: PodWorker) -> None:
        async with self._admission:
            try:
                rejection = await self._ask_admission(work)
            except Exception as error:  # noqa: BLE001 - the outer edge: a Pod that cannot be judged is not let in
                _log.exception("admission", extra=fields(pod=str(key_of(work.pod))))
                rejection = Rejection(UNEXPECTED_ADMISSION_ERROR, str(error))
            if rejection is None:
                # Before any of its containers starts, others leave the CPUs that it has alone.
                await self._pins.follow(self._running())
        self._post(work, Rejected(rejection) if rejection is not None else Admitted())
        # What happened to its devices while it was being admitted was not its affair yet.
        self._judge(work)

    async def _ask_admission(self, work: PodWorker) -> Rejection | None:
        facts = self._facts()
        # Running Pods found at the start count before they are admitted once more: newer ones must not take their room.
        others = [
            other.requests()
            for other in self._works.values()
            if other is not work and (other.machine.admitted or other.machine.awaits_readmission)
        ]
        capacity = self._parts.raised(work.pod, amounts_of(facts.allocatable))
        rejection = check_place(work.pod, facts.labels) or check_fit(work.requests(), others, capacity)
        if rejection is not None:
            return rejection
        for position, manager in enumerate(self._parts.managers):
            rejection = await manager.admit(work.pod)
            if rejection is not None:
                for earlier in self._parts.managers[:position]:
                    await self._quietly(earlier.release(work.pod), "release of a rejected Pod")
                return rejection
        return None

    async def _quietly(self, job: Awaitable[None], what: str) -> None:
        """Do what must not keep the rest from being done."""
        try:
            await job
        except Exception as error:  # noqa: BLE001 - told to people; the rest goes on
            _log.warning(what, extra=fields(error=str(error)))

    def _perform_prepare(self, work: PodWorker, _action: Prepare) -> None:
        work.preparing = self._do(work, self._prepare(work), "preparation")

    async def _prepare(self, work: PodWorker) -> None:
        try:
            await self._parts.builder.prepare(work.pod)
            for manager in self._parts.managers:
                await manager.prepare(work.pod)
            addresses = await self._parts.runtime.ensure_sandbox(self._parts.builder.sandbox(work.pod))
        except ResourceError as error:
            self._post(work, PrepareFailed(error.reason, error.message))
        except Exception as error:  # noqa: BLE001 - the outer edge: whatever it is, the Pod is tried again
            if not isinstance(error, RuntimeFailure | APIError | OSError):
                _log.exception("preparation", extra=fields(pod=str(key_of(work.pod))))
            self._post(work, PrepareFailed("FailedCreatePodSandBox", f"Failed to create pod sandbox: {error}"))
        else:
            self._post(work, Prepared(addresses))

    def _perform_release(self, work: PodWorker, _action: Release) -> None:
        self._do(work, self._release(work), "release")

    async def _release(self, work: PodWorker) -> None:
        if work.preparing is not None and not work.preparing.done():
            work.preparing.cancel()
            await asyncio.gather(work.preparing, return_exceptions=True)
        try:
            for manager in self._parts.managers:
                await manager.release(work.pod)
        except ResourceError as error:
            self._post(work, ReleaseFailed(error.reason, error.message))
        except Exception as error:  # noqa: BLE001 - the outer edge: nothing is given up for lost
            _log.exception("release", extra=fields(pod=str(key_of(work.pod))))
            self._post(work, ReleaseFailed("FailedKillPod", f"error killing pod: {error}"))
        else:
            self._post(work, Released())
            await self._pins.follow(self._running())

    # --- Starting. ---

    def _perform_start(self, work: PodWorker, action: StartContainer) -> None:
        self._do(work, self._start_container(work, action), f"start of {action.container}")

    async def _start_container(self, work: PodWorker, action: StartContainer) -> None:
        self._post(work, await self._starter.start(work, action))

    def _perform_post_start(self, work: PodWorker, action: RunPostStart) -> None:
        self._do(work, self._post_start(work, action), f"hook of {action.container}")

    async def _post_start(self, work: PodWorker, action: RunPostStart) -> None:
        failure = await self._stopper.post_start(work, action.container, action.container_id)
        text = f"PostStartHook failed: {failure}" if failure else ""
        self._post(work, PostStartFinished(action.container, action.container_id, text))

    # --- Probes. ---

    def _perform_probes(self, work: PodWorker, action: StartProbes) -> None:
        state = work.machine.containers.by_name[action.container]
        self._end_probes(work, action.container)
        subject = ProbedContainer(
            action,
            state,
            address=lambda: self._address(work),
            post=lambda event: self._post(work, event),
            tell=lambda tell: self._tell_of(work, tell),
        )
        work.probes[action.container] = [
            self._do(work, self._prober.probe(subject, kind), f"{kind} probe of {action.container}")
            for kind in ProbeKind
            if probe_of(state.spec, kind) is not None
        ]

    def _end_probes(self, work: PodWorker, container: str) -> None:
        for task in work.probes.pop(container, ()):
            task.cancel()

    def _address(self, work: PodWorker) -> str:
        addresses = work.machine.addresses or self._facts().addresses
        return addresses[0] if addresses else "127.0.0.1"

    # --- Stopping. ---

    def _perform_stop(self, work: PodWorker, action: StopContainer) -> None:
        earlier = work.stopping.pop(action.container_id, None)
        if earlier is not None:
            earlier.cancel()
        task = self._do(work, self._stopper.stop(work, action), f"stop of {action.container}")
        work.stopping[action.container_id] = task

    async def _tell_exit(self, work: PodWorker, record: ContainerRecord) -> None:
        self._end_probes(work, record.name)
        work.stopping.pop(record.id, None)
        self._post(work, ContainerExited(await self._with_message(work, record)))

    async def _with_message(self, work: PodWorker, record: ContainerRecord) -> ContainerRecord:
        assert record.exit is not None
        if record.exit.message:
            return record
        failed = record.exit.code != 0
        words = await self._parts.builder.last_words(work.pod, record.name, record.attempt, failed=failed)
        if not words:
            return record
        return replace(record, exit=replace(record.exit, message=words))

    # --- The end. ---

    def _perform_remove(self, work: PodWorker, action: RemoveContainer) -> None:
        self._do(work, self._remove_run(work, action.record), f"removal of {action.record.name}")

    async def _remove_run(self, work: PodWorker, record: ContainerRecord) -> None:
        await self._parts.runtime.remove_container(record.id)
        await self._parts.builder.forget_run(work.pod, record.name, record.attempt)

    def _perform_delete(self, work: PodWorker, _action: DeletePod) -> None:
        work.delete = True

    def _perform_forget(self, work: PodWorker, _action: CleanUp) -> None:
        self._works.pop(work.uid, None)
        self._parts.reporter.forget(work)
        work.cancel()
        self._spawn(self._forget(work), f"removal of {key_of(work.pod)}")

    async def _forget(self, work: PodWorker) -> None:
        runtime, what = self._parts.runtime, f"removal of {key_of(work.pod)}"
        for state in work.machine.containers.all:
            for record in (state.current, state.previous):
                if record is not None:
                    await self._quietly(runtime.remove_container(record.id), what)
        await self._quietly(runtime.remove_sandbox(work.uid), what)
        await self._quietly(self._parts.builder.forget(work.pod), what)

    async def _remove_orphan(self, record: ContainerRecord) -> None:
        _log.info("ending a container without a Pod", extra=fields(pod=record.pod_name, container=record.name))
        while True:
            try:
                await self._parts.runtime.stop_container(record.id, ORPHAN_GRACE_SECONDS)
                break
            except Exception as error:  # noqa: BLE001 - the outer edge: until it has ended its devices are in use
                _log.warning("orphan", extra=fields(pod=record.pod_name, error=str(error)))
                await self._clock.sleep(STOP_RETRY_SECONDS)
        self._orphans.remove(record.pod_uid)
        self.on_gone()
        await self._quietly(self._parts.runtime.remove_container(record.id), "removal of an orphan")
        await self._quietly(self._parts.runtime.remove_sandbox(record.pod_uid), "removal of an orphan")

    def _tell_of(self, work: PodWorker, action: RecordEvent) -> None:
        about = work.reference(action.container)
        self._parts.recorder.event_for(about, action.type, action.reason, action.message)


_PERFORM: Final[Mapping[type[Any], Callable[[PodWorkers, PodWorker, Any], None]]] = {
    Admit: PodWorkers._perform_admit,  # noqa: SLF001 - the class's own table
    Prepare: PodWorkers._perform_prepare,  # noqa: SLF001
    StartContainer: PodWorkers._perform_start,  # noqa: SLF001
    RunPostStart: PodWorkers._perform_post_start,  # noqa: SLF001
    StartProbes: PodWorkers._perform_probes,  # noqa: SLF001
    StopContainer: PodWorkers._perform_stop,  # noqa: SLF001
    RemoveContainer: PodWorkers._perform_remove,  # noqa: SLF001
    Release: PodWorkers._perform_release,  # noqa: SLF001
    RecordEvent: PodWorkers._tell_of,  # noqa: SLF001
    DeletePod: PodWorkers._perform_delete,  # noqa: SLF001
    CleanUp: PodWorkers._perform_forget,  # noqa: SLF001
}
