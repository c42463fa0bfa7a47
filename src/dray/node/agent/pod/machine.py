"""The life of one Pod: events in, actions out. Time is an argument; nothing here waits or asks.

    ADMITTING -> PREPARING -> RUNNING -> STOPPING -> RELEASING -> ENDED -> FORGOTTEN

A Pod leaves RUNNING when its containers are done, it is deleted or removed, or its deadline has passed. Its final
phase is reported only in ENDED, when all containers have stopped and its devices are given back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from dray.api.types.core_v1 import Pod
from dray.node.agent.pod.containers import (
    ContainerKind,
    ContainerState,
    Operation,
    PodContainers,
    Waiting,
    restore_containers,
)
from dray.node.agent.pod.events import (
    KUBELET_TIMING,
    Action,
    Admit,
    Admitted,
    CleanUp,
    ContainerExited,
    ContainerStarted,
    DeletePod,
    Event,
    MustFail,
    PodRemoved,
    PodUpdated,
    PostStartFinished,
    Prepare,
    Prepared,
    PrepareFailed,
    ProbeKind,
    ProbeResultChanged,
    RecordEvent,
    Rejected,
    Release,
    Released,
    ReleaseFailed,
    RemoveContainer,
    RetryNow,
    RunPostStart,
    StartContainer,
    StartFailed,
    StartProbes,
    StopContainer,
    TimerFired,
    Timing,
)
from dray.node.agent.pod.stages import Retry, Stage, duration_text
from dray.node.agent.pod.timing import end_grace, probe_grace, spec_grace
from dray.node.resource_manager import Rejection
from dray.node.runtimes.runtime import ContainerRecord

NORMAL: Final = "Normal"
WARNING: Final = "Warning"
CRASH_LOOP: Final = "CrashLoopBackOff"
IMAGE_BACKOFF: Final = "ImagePullBackOff"
DEADLINE: Final = Rejection("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
TERMINAL_PHASES: Final = ("Succeeded", "Failed")


class PodMachine:
    """One Pod; changed only by `handle`."""

    def __init__(
        self, pod: Pod, records: Iterable[ContainerRecord] = (), *, now: datetime, timing: Timing = KUBELET_TIMING
    ) -> None:
        self.pod = pod
        self.stage = Stage.ADMITTING
        self.containers: PodContainers = restore_containers(pod, records, timing)
        self.start_time: datetime = pod.status.start_time or now
        self.addresses: tuple[str, ...] = ()
        # Why the Pod failed, when that is not for its containers to say.
        self.verdict: Rejection | None = None
        # Not let in; it holds at most what it had before the agent restarted.
        self.rejected = False
        # All that was asked for is there: the sandbox can be said to be ready.
        self.prepared = False
        self._timing = timing
        self._admission_asked = False
        self._removed = False
        self._deletion_sent = False
        # Init containers are through; from then on each container is for itself.
        self._initialized = not self.containers.initial or any(state.current for state in self.containers.regular)
        self._prepare = Retry()
        self._release = Retry()
        self._grace_ends: datetime | None = None
        self._warned: set[str] = set()
        self._out: list[Action] = []
        # A Pod that the API server has as finished stays as it is said to be.
        self.settled = pod.status.phase in TERMINAL_PHASES
        if self.settled:
            self.stage = Stage.STOPPING

    # --- What the hand calls. ---

    def handle(self, event: Event | None, now: datetime) -> tuple[Action, ...]:
        """Take in an event (None to begin with) and return what to do, in order."""
        self._out = []
        if event is not None:
            _HANDLERS[type(event)](self, event, now)
        self._decide(now)
        return tuple(self._out)

    @property
    def wake_at(self) -> datetime | None:
        """When to send `TimePassed`, at the latest."""
        moments = [self._prepare.at if self.stage is Stage.PREPARING else None]
        moments.append(self._release.at if self.stage is Stage.RELEASING else None)
        if self.stage is Stage.RUNNING:
            moments += [state.retry_at for state in self.containers.all]
        if self.stage < Stage.STOPPING:
            moments.append(self._deadline)
        return min((moment for moment in moments if moment is not None), default=None)

    @property
    def initialized(self) -> bool:
        """Whether the init containers are through."""
        return self._initialized

    @property
    def active(self) -> bool:
        """Whether containers may still run."""
        return self.stage < Stage.ENDED

    @property
    def found_running(self) -> bool:
        """Whether it waits to be admitted once more, with containers that ran on without an agent."""
        return self.stage is Stage.ADMITTING and any(state.alive for state in self.containers.all)

    @property
    def admitted(self) -> bool:
        """Whether the Pod was admitted and holds what it asked for."""
        if self.rejected:
            return self.stage < Stage.ENDED and any(state.alive for state in self.containers.all)
        return Stage.ADMITTING < self.stage < Stage.ENDED

    # --- Events. ---

    def _on_updated(self, event: PodUpdated, now: datetime) -> None:
        self.pod = event.pod
        self.containers.update(event.pod)
        for state in self.containers.all:
            if (
                state.running
                and state.current is not None
                and state.work is Operation.NONE
                and self.stage is Stage.RUNNING
            ):
                self._restart_changed(state)
        if self.stage is Stage.STOPPING:
            self._hurry(now)

    def _hurry(self, now: datetime) -> None:
        """A shorter grace than the one under way."""
        ends = now + timedelta(seconds=end_grace(self.pod))
        if self._grace_ends is None or ends >= self._grace_ends:
            return
        self._grace_ends = ends
        for state in self.containers.all:
            if state.work is Operation.STOPPING and state.current is not None:
                self._out.append(StopContainer(state.name, state.current.id, end_grace(self.pod), hook=False))

    def _restart_changed(self, state: ContainerState) -> None:
        assert state.current is not None
        if state.current.image and state.spec.image and state.current.image != state.spec.image:
            state.must_restart = True
            message = f"Container {state.name} definition changed, will be restarted"
            self._stop(state, spec_grace(self.pod), message)

    def _on_removed(self, _event: PodRemoved, _now: datetime) -> None:
        self._removed = True

    def _on_admitted(self, _event: Admitted, now: datetime) -> None:
        if self.stage is Stage.ADMITTING:
            self.stage = Stage.PREPARING
            self._prepare.at = now

    def _on_rejected(self, event: Rejected, _now: datetime) -> None:
        self.verdict, self.rejected = event.rejection, True
        self._tell(WARNING, event.rejection.reason, event.rejection.message)
        # Nothing new is held; but an adopted Pod may have containers that must go, and claims from before.
        self.stage = Stage.STOPPING

    def _on_prepared(self, event: Prepared, _now: datetime) -> None:
        if self.stage is Stage.PREPARING:
            self.stage = Stage.RUNNING
            self.prepared = True
            self.addresses = event.addresses
            self._begin_adopted_probes()

    def _begin_adopted_probes(self) -> None:
        for state in self.containers.all:
            if state.running and state.current is not None:
                self._out.append(StartProbes(state.name, state.current.id, state.current.started_at))

    def _on_prepare_failed(self, event: PrepareFailed, now: datetime) -> None:
        if self.stage is Stage.PREPARING:
            self._tell(WARNING, event.reason, event.message)
            self._prepare.failed(now, self._timing.prepare_retry, self._timing.prepare_retry_max)

    def _on_started(self, event: ContainerStarted, _now: datetime) -> None:
        state = self._take_run(event.record)
        if state is None:
            return
        for warning in event.warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                self._tell(WARNING, "RuntimeLimitation", warning)
        self._tell(NORMAL, "Started", "Container started", state)
        if state.spec.lifecycle is not None and state.spec.lifecycle.post_start is not None:
            state.work = Operation.POST_START
            self._out.append(RunPostStart(state.name, event.record.id))
        else:
            self._through(state)

    def _take_run(self, record: ContainerRecord) -> ContainerState | None:
        state = self.containers.by_name.get(record.name)
        if state is None:
            return None
        if state.current is not None and state.current.id != record.id:
            if state.previous is not None:
                self._out.append(RemoveContainer(state.previous))
            state.previous = state.current
        state.current = record
        state.work, state.waiting, state.retry_at = Operation.NONE, None, None
        state.must_restart, state.started, state.ready = False, False, False
        return state

    def _through(self, state: ContainerState) -> None:
        """It runs and no hook is in the way."""
        assert state.current is not None
        state.work = Operation.NONE
        state.started = state.spec.startup_probe is None
        state.ready = state.started and state.spec.readiness_probe is None
        self._out.append(StartProbes(state.name, state.current.id, state.current.started_at))

    def _on_start_failed(self, event: StartFailed, now: datetime) -> None:
        state = self.containers.by_name[event.container]
        state.work = Operation.NONE
        if event.event:
            self._tell(WARNING, event.event, event.message, state)
        if event.reason != "ErrImagePull":
            state.waiting = Waiting(event.reason, event.message)
            state.retry_at = now + timedelta(seconds=self._timing.start_retry)
            return
        again = state.image_backoff.updated is not None
        state.image_backoff = state.image_backoff.after_retry(now)
        state.retry_at = state.image_backoff.ready_at(now)
        state.waiting = Waiting(event.reason, event.message)
        if again:
            text = f'Back-off pulling image "{state.spec.image}"'
            self._tell(NORMAL, "BackOff", text, state)
            state.waiting = Waiting(IMAGE_BACKOFF, f"{text}: {event.reason}: {event.message}")

    def _on_exited(self, event: ContainerExited, now: datetime) -> None:
        state = self.containers.by_name.get(event.record.name)
        if state is None:
            return
        if state.current is None or state.current.id != event.record.id:
            if state.work is not Operation.STARTING:
                return
            # It was made and could not start: a run of its own.
            self._take_run(event.record)
        state.current = event.record
        state.work = Operation.NONE
        state.started = state.ready = False

    def _on_post_start(self, event: PostStartFinished, _now: datetime) -> None:
        state = self.containers.by_name[event.container]
        if state.work is not Operation.POST_START or state.current is None or state.current.id != event.container_id:
            return
        if not event.failure:
            self._through(state)
            return
        self._tell(WARNING, "FailedPostStartHook", event.failure, state)
        self._stop(state, spec_grace(self.pod), "FailedPostStartHook", hook=False)

    def _on_probe(self, event: ProbeResultChanged, _now: datetime) -> None:
        state = self.containers.by_name[event.container]
        if state.current is None or state.current.id != event.container_id or state.current.exit is not None:
            return
        if event.kind is ProbeKind.READINESS:
            state.ready = event.healthy and state.started
        elif event.kind is ProbeKind.STARTUP and event.healthy:
            state.started = True
            state.ready = state.spec.readiness_probe is None
        elif not event.healthy and state.work is Operation.NONE and self.stage is Stage.RUNNING:
            word = event.kind.value.lower()
            self._stop(
                state,
                probe_grace(self.pod, state.spec, event.kind),
                f"Container {state.name} failed {word} probe, will be restarted",
            )

    def _on_released(self, _event: Released, _now: datetime) -> None:
        if self.stage is Stage.RELEASING:
            self.stage = Stage.ENDED

    def _on_release_failed(self, event: ReleaseFailed, now: datetime) -> None:
        self._tell(WARNING, event.reason, event.message)
        self._release.failed(now, self._timing.release_retry, self._timing.prepare_retry_max)

    def _on_doomed(self, event: MustFail, now: datetime) -> None:
        # While it is being admitted nothing may be taken back; whoever admits it asks again afterwards.
        if Stage.ADMITTING < self.stage < Stage.STOPPING and self.verdict is None:
            self.verdict = event.verdict
            self._tell(WARNING, event.verdict.reason, event.verdict.message)
            self._begin_stop(now)

    def _on_help(self, _event: RetryNow, now: datetime) -> None:
        self._prepare.hasten(now)
        self._release.hasten(now)

    def _on_time(self, _event: TimerFired, _now: datetime) -> None:
        """Deciding again is all there is to do."""

    # --- Deciding. ---

    def _decide(self, now: datetime) -> None:
        self._check_end(now)
        # A stage may be left as soon as it is entered, so each is given its turn.
        for stage, decide in _DECISIONS:
            if self.stage is stage:
                decide(self, now)

    def _check_end(self, now: datetime) -> None:
        """Whether something from outside the containers ends the Pod."""
        if self.stage >= Stage.STOPPING or (self.stage is Stage.ADMITTING and self._admission_asked):
            return
        deadline = self._deadline
        if self._removed or self.pod.metadata.deletion_timestamp is not None:
            self._begin_stop(now)
        elif self.stage is Stage.ADMITTING and self._done():
            # Its containers came to their end while no agent looked: there is nothing to be let in for.
            self._begin_stop(now)
        elif deadline is not None and deadline <= now:
            self.verdict = DEADLINE
            self._tell(NORMAL, DEADLINE.reason, DEADLINE.message)
            self._begin_stop(now)

    def _begin_stop(self, now: datetime) -> None:
        self.stage = Stage.STOPPING
        self._grace_ends = now + timedelta(seconds=end_grace(self.pod))

    def _decide_admitting(self, _now: datetime) -> None:
        if not self._admission_asked:
            self._admission_asked = True
            self._out.append(Admit())

    def _decide_preparing(self, now: datetime) -> None:
        if self._prepare.due(now):
            self._prepare.at = None
            self._out.append(Prepare())

    def _decide_running(self, now: datetime) -> None:
        if not self._initialized:
            self._initialized = self._initialize(now)
        for state in self.containers.sidecars:
            if self._initialized:
                self._keep_running(state, now)
        if self._initialized:
            for state in self.containers.regular:
                self._keep_running(state, now)
        if self._done():
            self._begin_stop(now)

    def _initialize(self, now: datetime) -> bool:
        """Run init containers one after the other; True when all are through."""
        for position, state in enumerate(self.containers.initial):
            for sidecar in self.containers.initial[:position]:
                if sidecar.kind is ContainerKind.SIDECAR:
                    self._keep_running(sidecar, now)
            self._keep_running(state, now)
            through = state.exit_code == 0 if state.kind is ContainerKind.INIT else state.running and state.started
            if not through:
                return False
        return True

    def _keep_running(self, state: ContainerState, now: datetime) -> None:
        """Start the container when it should run and its pauses are over."""
        if state.alive or state.work is not Operation.NONE:
            return
        if state.current is not None and not state.restarts(self._policy):
            return
        if state.retry_at is not None and now < state.retry_at:
            return
        failed = (
            state.current.exit.finished_at if state.current is not None and state.current.exit is not None else None
        )
        # What waits for an image or a configuration has its own pauses.
        if failed is not None and (state.waiting is None or state.waiting.reason == CRASH_LOOP):
            ready = state.backoff.ready_at(failed)
            if now < ready:
                self._wait_in_backoff(state, ready, state.backoff.seconds_for(failed))
                return
            state.backoff = state.backoff.after_retry(now)
        state.work, state.waiting, state.retry_at = Operation.STARTING, None, None
        self._out.append(StartContainer(state.name, state.next_attempt))

    def _wait_in_backoff(self, state: ContainerState, ready: datetime, seconds: float) -> None:
        metadata = self.pod.metadata
        pod = f"{metadata.name}_{metadata.namespace}({metadata.uid})"
        text = f"back-off {duration_text(seconds)} restarting failed container={state.name} pod={pod}"
        if state.waiting is None:
            told = f"Back-off restarting failed container {state.name} in pod {pod}"
            self._tell(WARNING, "BackOff", told, state)
        state.waiting, state.retry_at = Waiting(CRASH_LOOP, text), ready

    def _done(self) -> bool:
        """Whether the containers have come to their own end."""
        if not self._initialized:
            # An init container that may not run again fails the Pod.
            return any(
                state.kind is ContainerKind.INIT and state.done(self._policy) and state.exit_code != 0
                for state in self.containers.initial
            )
        return all(state.done(self._policy) for state in self.containers.regular)

    def _decide_stopping(self, now: datetime) -> None:
        others = [state for state in self.containers.all if state.kind is not ContainerKind.SIDECAR]
        for state in others:
            self._stop_for_end(state, now)
        if any(state.alive for state in others):
            return
        for state in reversed(self.containers.sidecars):
            self._stop_for_end(state, now)
            if state.alive:
                return
        self.stage = Stage.RELEASING
        self._release.at = now

    def _stop_for_end(self, state: ContainerState, now: datetime) -> None:
        if state.work in (Operation.STARTING, Operation.STOPPING) or not state.alive:
            return
        if self._grace_ends is None:
            self._grace_ends = now + timedelta(seconds=end_grace(self.pod))
        remaining = (self._grace_ends - now).total_seconds()
        floor = min(self._timing.grace_least, end_grace(self.pod))
        self._stop(state, max(remaining, floor), f"Stopping container {state.name}")

    def _decide_releasing(self, now: datetime) -> None:
        if self._release.due(now):
            self._release.at = None
            self._out.append(Release())

    def _decide_ended(self, _now: datetime) -> None:
        if self._removed:
            self.stage = Stage.FORGOTTEN
            self._out.append(CleanUp())
        elif self.pod.metadata.deletion_timestamp is not None and not self._deletion_sent:
            self._deletion_sent = True
            self._out.append(DeletePod())

    # --- Small parts. ---

    def _stop(self, state: ContainerState, grace_seconds: float, message: str, *, hook: bool = True) -> None:
        assert state.current is not None
        state.work = Operation.STOPPING
        self._tell(NORMAL, "Killing", message, state)
        self._out.append(StopContainer(state.name, state.current.id, grace_seconds, hook))

    def _tell(self, event_type: str, reason: str, message: str, state: ContainerState | None = None) -> None:
        self._out.append(RecordEvent(event_type, reason, message, state.name if state is not None else ""))

    @property
    def _policy(self) -> str:
        return self.pod.spec.restart_policy or "Always"

    @property
    def _deadline(self) -> datetime | None:
        seconds = self.pod.spec.active_deadline_seconds
        return None if seconds is None else self.start_time + timedelta(seconds=seconds)


_HANDLERS: Final[Mapping[type[Any], Callable[[PodMachine, Any, datetime], None]]] = {
    PodUpdated: PodMachine._on_updated,  # noqa: SLF001 - the class's own table
    PodRemoved: PodMachine._on_removed,  # noqa: SLF001
    Admitted: PodMachine._on_admitted,  # noqa: SLF001
    Rejected: PodMachine._on_rejected,  # noqa: SLF001
    Prepared: PodMachine._on_prepared,  # noqa: SLF001
    PrepareFailed: PodMachine._on_prepare_failed,  # noqa: SLF001
    ContainerStarted: PodMachine._on_started,  # noqa: SLF001
    StartFailed: PodMachine._on_start_failed,  # noqa: SLF001
    ContainerExited: PodMachine._on_exited,  # noqa: SLF001
    PostStartFinished: PodMachine._on_post_start,  # noqa: SLF001
    ProbeResultChanged: PodMachine._on_probe,  # noqa: SLF001
    Released: PodMachine._on_released,  # noqa: SLF001
    ReleaseFailed: PodMachine._on_release_failed,  # noqa: SLF001
    MustFail: PodMachine._on_doomed,  # noqa: SLF001
    RetryNow: PodMachine._on_help,  # noqa: SLF001
    TimerFired: PodMachine._on_time,  # noqa: SLF001
}

# In the order of the stages: one may lead to the next within a single decision.
_DECISIONS: Final[tuple[tuple[Stage, Callable[[PodMachine, datetime], None]], ...]] = (
    (Stage.ADMITTING, PodMachine._decide_admitting),  # noqa: SLF001
    (Stage.PREPARING, PodMachine._decide_preparing),  # noqa: SLF001
    (Stage.RUNNING, PodMachine._decide_running),  # noqa: SLF001
    (Stage.STOPPING, PodMachine._decide_stopping),  # noqa: SLF001
    (Stage.RELEASING, PodMachine._decide_releasing),  # noqa: SLF001
    (Stage.ENDED, PodMachine._decide_ended),  # noqa: SLF001
)
