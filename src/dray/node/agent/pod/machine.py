"""The lifecycle of one Pod as a state machine: events in, actions out. Pure; time is an argument.

    ADMITTING -> PREPARING -> RUNNING -> TERMINATING -> RELEASING -> TERMINATED -> REMOVED

A Pod leaves RUNNING when its containers are done, it is deleted, its deadline has passed, or one of its resources
fails. Its final phase is reported only in TERMINATED: all containers have stopped and all resources are released.

`NEXT_STAGE` has every transition, and `PodMachine.HANDLERS` every event that a stage accepts. Anything else raises
`UnexpectedEventError`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, TypeAlias

from dray.api.pod_claims import TERMINAL_PHASES
from dray.api.timestamps import seconds_after
from dray.api.types.core_v1 import Pod
from dray.node.agent.pod.containers import ContainerKind, ContainerState, Operation, Waiting, restore_containers
from dray.node.agent.pod.events import (
    Action,
    Admit,
    Admitted,
    CleanUp,
    ContainerExited,
    ContainerStarted,
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
)
from dray.node.agent.pod.optional_fields import RUNTIME_LIMITATION
from dray.node.agent.pod.timing import (
    KUBELET_TIMING,
    Retry,
    Timing,
    format_duration,
    probe_grace,
    spec_grace,
    termination_grace,
)
from dray.node.resource_manager import Rejection
from dray.node.runtimes.runtime import ContainerRecord

NORMAL: Final = "Normal"
WARNING: Final = "Warning"
CRASH_LOOP: Final = "CrashLoopBackOff"
IMAGE_BACKOFF: Final = "ImagePullBackOff"
# Failed pulls, which are repeated with a backoff, and all other reasons for a missing image.
PULL_REASONS: Final = ("ErrImagePull", "RegistryUnavailable")
IMAGE_REASONS: Final = (*PULL_REASONS, "ErrImageNeverPull", "InvalidImageName")
# The container waits for a resource, or refers to a missing object.
CONFIG_ERROR: Final = "CreateContainerConfigError"
DEADLINE: Final = Rejection("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")


class Stage(enum.IntEnum):
    """The stages of a Pod on its node, in order; a Pod never returns to an earlier one."""

    ADMITTING = 1
    PREPARING = 2
    RUNNING = 3
    TERMINATING = 4
    RELEASING = 5
    TERMINATED = 6
    REMOVED = 7


class Trigger(enum.Enum):
    """The causes of a transition."""

    ADMITTED = enum.auto()
    REJECTED = enum.auto()
    PREPARED = enum.auto()
    # The containers are done, the Pod was deleted, its deadline has passed, or one of its resources failed.
    TERMINATE = enum.auto()
    CONTAINERS_STOPPED = enum.auto()
    RELEASED = enum.auto()
    REMOVED = enum.auto()


NEXT_STAGE: Final[Mapping[tuple[Stage, Trigger], Stage]] = {
    (Stage.ADMITTING, Trigger.ADMITTED): Stage.PREPARING,
    # The Pod holds nothing new, but may have containers and claims from before an agent restart.
    (Stage.ADMITTING, Trigger.REJECTED): Stage.TERMINATING,
    (Stage.ADMITTING, Trigger.TERMINATE): Stage.TERMINATING,
    (Stage.PREPARING, Trigger.PREPARED): Stage.RUNNING,
    (Stage.PREPARING, Trigger.TERMINATE): Stage.TERMINATING,
    (Stage.RUNNING, Trigger.TERMINATE): Stage.TERMINATING,
    (Stage.TERMINATING, Trigger.CONTAINERS_STOPPED): Stage.RELEASING,
    (Stage.RELEASING, Trigger.RELEASED): Stage.TERMINATED,
    (Stage.TERMINATED, Trigger.REMOVED): Stage.REMOVED,
}


class UnexpectedEventError(AssertionError):
    """An event or transition that the Pod's stage does not allow: a bug."""


class PodMachine:
    """The state of one Pod; changed only by `handle`."""

    def __init__(
        self, pod: Pod, records: Iterable[ContainerRecord] = (), *, now: datetime, timing: Timing = KUBELET_TIMING
    ) -> None:
        self.pod = pod
        self.containers = restore_containers(pod, records, timing)
        self.start_time: datetime = pod.status.start_time or now
        self.addresses: tuple[str, ...] = ()
        # Pod-level failure reason; None if the container statuses determine the phase.
        self.failure: Rejection | None = None
        # Rejected at admission. May still hold resources from before an agent restart.
        self.rejected = False
        # Devices, volumes and sandbox are ready.
        self.prepared = False
        self._timing = timing
        self._admission_requested = False
        self._removed = False
        self._deletion_requested = False
        # All init containers have completed; from then on containers are independent of each other.
        self.initialized = not self.containers.initial or any(state.current for state in self.containers.regular)
        self._prepare = Retry()
        self._release = Retry()
        self._grace_ends: datetime | None = None
        # Warnings of the runtime that were recorded.
        self._warnings: set[str] = set()
        self._actions: list[Action] = []
        # The API server has a final phase from before an agent restart, which is not changed.
        self.was_terminal = pod.status.phase in TERMINAL_PHASES
        self.stage = Stage.TERMINATING if self.was_terminal else Stage.ADMITTING

    # --- Interface. ---

    def handle(self, event: Event, now: datetime) -> tuple[Action, ...]:
        """Handle an event and return the actions to perform, in order; raises `UnexpectedEventError`."""
        handler = self.HANDLERS.get((self.stage, type(event)))
        if handler is None:
            raise UnexpectedEventError(f"{type(event).__name__} for pod {self.pod.metadata.uid} in {self.stage.name}")
        self._actions = []
        handler(self, event, now)
        self._advance(now)
        return tuple(self._actions)

    @property
    def wake_at(self) -> datetime | None:
        """When to send `TimerFired`."""
        times = [self._deadline if self.stage < Stage.TERMINATING else None]
        if self.stage is Stage.PREPARING:
            times.append(self._prepare.at)
        elif self.stage is Stage.RUNNING:
            times += [state.retry_at for state in self.containers.all]
        elif self.stage is Stage.RELEASING:
            times.append(self._release.at)
        return min((time for time in times if time is not None), default=None)

    @property
    def awaits_readmission(self) -> bool:
        """Whether the Pod is not admitted yet, but has containers from before an agent restart."""
        return self.stage is Stage.ADMITTING and any(state.current is not None for state in self.containers.all)

    @property
    def completed_init_containers(self) -> tuple[str, ...]:
        """The ordinary init containers that will not run again."""
        states = (state for state in self.containers.initial if state.kind is ContainerKind.INIT)
        return tuple(state.name for state in states if self.initialized or state.exit_code == 0)

    @property
    def admitted(self) -> bool:
        """Whether the Pod was admitted and holds the resources it requested."""
        if self.rejected:
            return self.stage < Stage.TERMINATED and any(state.alive for state in self.containers.all)
        return Stage.ADMITTING < self.stage < Stage.TERMINATED

    # --- Handlers: the Pod. ---

    def _ignore(self, _event: Event, _now: datetime) -> None:
        """Do nothing; `_advance` may still have something to do."""

    def _update(self, event: PodUpdated, _now: datetime) -> None:
        self.pod = event.pod
        self.containers.update(event.pod)

    def _update_running(self, event: PodUpdated, now: datetime) -> None:
        self._update(event, now)
        for state in self.containers.all:
            if state.running and state.operation is Operation.NONE:
                self._restart_changed(state)

    def _update_terminating(self, event: PodUpdated, now: datetime) -> None:
        self._update(event, now)
        self._shorten_grace(now)

    def _remove(self, _event: PodRemoved, _now: datetime) -> None:
        self._removed = True

    def _admit(self, _event: Admitted, now: datetime) -> None:
        self._move(Trigger.ADMITTED)
        self._prepare.at = now

    def _reject(self, event: Rejected, _now: datetime) -> None:
        self.failure, self.rejected = event.rejection, True
        self._record(WARNING, event.rejection.reason, event.rejection.message)
        self._move(Trigger.REJECTED)

    def _run(self, event: Prepared, _now: datetime) -> None:
        self._move(Trigger.PREPARED)
        self.prepared = True
        self.addresses = event.addresses
        for state in self.containers.all:
            if state.running:
                self._start_probes(state)

    def _retry_prepare(self, event: PrepareFailed, now: datetime) -> None:
        self._record(WARNING, event.reason, event.message)
        self._prepare.failed(now, self._timing.prepare_retry, self._timing.prepare_retry_max)

    def _prepare_now(self, _event: RetryNow, now: datetime) -> None:
        self._prepare.retry_now(now)

    def _start_now(self, _event: RetryNow, now: datetime) -> None:
        for state in self.containers.all:
            if state.waiting is not None and state.waiting.reason == CONFIG_ERROR:
                state.retry_at = now

    def _fail(self, event: MustFail, now: datetime) -> None:
        self.failure = event.failure
        self._record(WARNING, event.failure.reason, event.failure.message)
        self._terminate(now)

    def _end(self, _event: Released, _now: datetime) -> None:
        self._move(Trigger.RELEASED)

    def _retry_release(self, event: ReleaseFailed, now: datetime) -> None:
        self._record(WARNING, event.reason, event.message)
        self._release.failed(now, self._timing.release_retry, self._timing.prepare_retry_max)

    def _release_now(self, _event: RetryNow, now: datetime) -> None:
        self._release.retry_now(now)

    # --- Handlers: containers. ---

    def _container_started(self, event: ContainerStarted, _now: datetime) -> None:
        state = self.containers.by_name.get(event.record.name)
        if state is None:
            return
        self._begin_run(state, event.record)
        for warning in event.warnings:
            if warning not in self._warnings:
                self._warnings.add(warning)
                self._record(WARNING, RUNTIME_LIMITATION, warning)
        self._record(NORMAL, "Started", "Container started", state)
        if state.spec.lifecycle is not None and state.spec.lifecycle.post_start is not None:
            state.operation = Operation.POST_START
            self._actions.append(RunPostStart(state.name, event.record.id))
        else:
            self._finish_start(state)

    def _start_failed(self, event: StartFailed, now: datetime) -> None:
        state = self.containers.by_name[event.container]
        state.operation = Operation.NONE
        if event.event:
            self._record(WARNING, event.event, event.message, state)
        state.waiting = Waiting(event.reason, event.message)
        if event.reason in IMAGE_REASONS:
            self._record(WARNING, "Failed", f"Error: {event.reason}", state)
        if event.reason not in PULL_REASONS:
            state.retry_at = now + timedelta(seconds=self._timing.start_retry)
            return
        failed_before = state.image_backoff.updated is not None
        state.image_backoff = state.image_backoff.after_retry(now)
        state.retry_at = state.image_backoff.ready_at(now)
        if failed_before:
            text = f'Back-off pulling image "{state.spec.image}"'
            self._record(NORMAL, "BackOff", text, state)
            self._record(WARNING, "Failed", f"Error: {IMAGE_BACKOFF}", state)
            state.waiting = Waiting(IMAGE_BACKOFF, f"{text}: {event.reason}: {event.message}")

    def _container_exited(self, event: ContainerExited, _now: datetime) -> None:
        state = self.containers.by_name.get(event.record.name)
        if state is None:
            return
        if not state.is_current(event.record.id):
            if state.operation is not Operation.STARTING:
                return
            # Created, but could not start: counts as a run.
            self._begin_run(state, event.record)
        state.end_run(event.record)

    def _post_start_finished(self, event: PostStartFinished, _now: datetime) -> None:
        state = self.containers.by_name[event.container]
        if state.operation is not Operation.POST_START or not state.is_current(event.container_id):
            return
        if not event.failure:
            self._finish_start(state)
            return
        self._record(WARNING, "FailedPostStartHook", event.failure, state)
        self._stop(state, spec_grace(self.pod), "FailedPostStartHook", hook=False)

    def _probed(self, event: ProbeResultChanged, _now: datetime) -> None:
        state = self.containers.by_name[event.container]
        if state.current is None or state.current.id != event.container_id or state.current.exit is not None:
            return
        if event.kind is ProbeKind.READINESS:
            state.ready = event.healthy and state.started
        elif event.kind is ProbeKind.STARTUP and event.healthy:
            state.started = True
            state.ready = state.spec.readiness_probe is None
        elif not event.healthy and state.operation is Operation.NONE and self.stage is Stage.RUNNING:
            probe = event.kind.value.lower()
            message = f"Container {state.name} failed {probe} probe, will be restarted"
            self._stop(state, probe_grace(self.pod, state.spec, event.kind), message)

    # What a stage does not list, it does not accept. Results of operations that a Pod has outlived are ignored.
    HANDLERS: ClassVar[Mapping[tuple[Stage, type[Any]], Handler]] = {
        (Stage.ADMITTING, PodAdded): _ignore,
        (Stage.ADMITTING, PodUpdated): _update,
        (Stage.ADMITTING, PodRemoved): _remove,
        (Stage.ADMITTING, Admitted): _admit,
        (Stage.ADMITTING, Rejected): _reject,
        (Stage.ADMITTING, ContainerExited): _container_exited,
        # Nothing can be taken back during admission; the caller checks again when it has ended.
        (Stage.ADMITTING, MustFail): _ignore,
        (Stage.ADMITTING, TimerFired): _ignore,
        (Stage.PREPARING, PodUpdated): _update,
        (Stage.PREPARING, PodRemoved): _remove,
        (Stage.PREPARING, Prepared): _run,
        (Stage.PREPARING, PrepareFailed): _retry_prepare,
        (Stage.PREPARING, ContainerExited): _container_exited,
        (Stage.PREPARING, MustFail): _fail,
        (Stage.PREPARING, RetryNow): _prepare_now,
        (Stage.PREPARING, TimerFired): _ignore,
        (Stage.RUNNING, PodUpdated): _update_running,
        (Stage.RUNNING, PodRemoved): _remove,
        (Stage.RUNNING, ContainerStarted): _container_started,
        (Stage.RUNNING, StartFailed): _start_failed,
        (Stage.RUNNING, ContainerExited): _container_exited,
        (Stage.RUNNING, PostStartFinished): _post_start_finished,
        (Stage.RUNNING, ProbeResultChanged): _probed,
        (Stage.RUNNING, MustFail): _fail,
        (Stage.RUNNING, RetryNow): _start_now,
        (Stage.RUNNING, TimerFired): _ignore,
        # A Pod that was terminal before an agent restart begins here.
        (Stage.TERMINATING, PodAdded): _ignore,
        (Stage.TERMINATING, PodUpdated): _update_terminating,
        (Stage.TERMINATING, PodRemoved): _remove,
        (Stage.TERMINATING, Prepared): _ignore,
        (Stage.TERMINATING, PrepareFailed): _ignore,
        (Stage.TERMINATING, ContainerStarted): _container_started,
        (Stage.TERMINATING, StartFailed): _start_failed,
        (Stage.TERMINATING, ContainerExited): _container_exited,
        (Stage.TERMINATING, PostStartFinished): _post_start_finished,
        (Stage.TERMINATING, ProbeResultChanged): _probed,
        (Stage.TERMINATING, MustFail): _ignore,
        (Stage.RELEASING, PodUpdated): _update,
        (Stage.RELEASING, PodRemoved): _remove,
        (Stage.RELEASING, Prepared): _ignore,
        (Stage.RELEASING, PrepareFailed): _ignore,
        (Stage.RELEASING, ContainerExited): _container_exited,
        (Stage.RELEASING, PostStartFinished): _ignore,
        (Stage.RELEASING, ProbeResultChanged): _ignore,
        (Stage.RELEASING, Released): _end,
        (Stage.RELEASING, ReleaseFailed): _retry_release,
        (Stage.RELEASING, MustFail): _ignore,
        (Stage.RELEASING, RetryNow): _release_now,
        (Stage.RELEASING, TimerFired): _ignore,
        (Stage.TERMINATED, PodUpdated): _update,
        (Stage.TERMINATED, PodRemoved): _remove,
        (Stage.TERMINATED, ContainerExited): _container_exited,
        (Stage.TERMINATED, PostStartFinished): _ignore,
        (Stage.TERMINATED, ProbeResultChanged): _ignore,
        (Stage.TERMINATED, MustFail): _ignore,
    }

    # --- Advancing. ---

    def _advance(self, now: datetime) -> None:
        """Do what the Pod's stage requires next; stages that are complete at once are passed through."""
        self._check_termination(now)
        before = None
        while self.stage is not before:
            before = self.stage
            match before:
                case Stage.ADMITTING:
                    self._request_admission()
                case Stage.PREPARING:
                    self._prepare_if_due(now)
                case Stage.RUNNING:
                    self._sync_containers(now)
                case Stage.TERMINATING:
                    self._stop_containers(now)
                case Stage.RELEASING:
                    self._release_if_due(now)
                case Stage.TERMINATED:
                    self._finish_deletion()

    def _check_termination(self, now: datetime) -> None:
        """Terminate the Pod if something other than its containers requires it."""
        if self.stage >= Stage.TERMINATING or (self.stage is Stage.ADMITTING and self._admission_requested):
            return
        deadline = self._deadline
        if self._removed or self.pod.metadata.deletion_timestamp is not None:
            self._terminate(now)
        elif self.stage is Stage.ADMITTING and self._containers_done():
            # The containers completed while no agent was running: there is nothing to admit.
            self._terminate(now)
        elif deadline is not None and deadline <= now:
            self.failure = DEADLINE
            self._record(NORMAL, DEADLINE.reason, DEADLINE.message)
            self._terminate(now)

    def _terminate(self, now: datetime) -> None:
        self._move(Trigger.TERMINATE)
        self._grace_ends = seconds_after(now, termination_grace(self.pod))

    def _request_admission(self) -> None:
        if not self._admission_requested:
            self._admission_requested = True
            self._actions.append(Admit())

    def _prepare_if_due(self, now: datetime) -> None:
        if self._prepare.due(now):
            self._prepare.at = None
            self._actions.append(Prepare())

    def _sync_containers(self, now: datetime) -> None:
        if not self.initialized:
            self.initialized = self._sync_init_containers(now)
        if self.initialized:
            for state in (*self.containers.sidecars, *self.containers.regular, *self.containers.ephemeral):
                self._start_if_needed(state, now)
        if self._containers_done():
            self._terminate(now)

    def _sync_init_containers(self, now: datetime) -> bool:
        """Run the init containers one after the other; return whether all have completed."""
        for position, state in enumerate(self.containers.initial):
            for sidecar in self.containers.initial[:position]:
                if sidecar.kind is ContainerKind.SIDECAR:
                    self._start_if_needed(sidecar, now)
            self._start_if_needed(state, now)
            is_init = state.kind is ContainerKind.INIT
            completed = state.exit_code == 0 if is_init else state.running and state.started
            if not completed:
                return False
        return True

    def _containers_done(self) -> bool:
        """Whether the containers have completed, or an init container failed for good."""
        if not self.initialized:
            return any(
                state.kind is ContainerKind.INIT and state.done(self._policy) and state.exit_code != 0
                for state in self.containers.initial
            )
        return all(state.done(self._policy) for state in self.containers.regular)

    def _stop_containers(self, now: datetime) -> None:
        """Stop the containers, then the sidecars in reverse order."""
        others = [state for state in self.containers.all if state.kind is not ContainerKind.SIDECAR]
        for state in others:
            self._stop_for_termination(state, now)
        if any(state.alive for state in others):
            return
        for state in reversed(self.containers.sidecars):
            self._stop_for_termination(state, now)
            if state.alive:
                return
        self._move(Trigger.CONTAINERS_STOPPED)
        self._release.at = now

    def _release_if_due(self, now: datetime) -> None:
        if self._release.due(now):
            self._release.at = None
            self._actions.append(Release())

    def _finish_deletion(self) -> None:
        if self._removed:
            self._move(Trigger.REMOVED)
            self._actions.append(CleanUp())
        elif self.pod.metadata.deletion_timestamp is not None and not self._deletion_requested:
            self._deletion_requested = True
            self._actions.append(DeletePod())

    def _move(self, trigger: Trigger) -> None:
        after = NEXT_STAGE.get((self.stage, trigger))
        if after is None:
            raise UnexpectedEventError(f"{trigger.name} for pod {self.pod.metadata.uid} in {self.stage.name}")
        self.stage = after

    # --- One container. ---

    def _begin_run(self, state: ContainerState, record: ContainerRecord) -> None:
        displaced = state.begin_run(record)
        if displaced is not None:
            self._actions.append(RemoveContainer(displaced))

    def _finish_start(self, state: ContainerState) -> None:
        state.finish_start()
        self._start_probes(state)

    def _start_probes(self, state: ContainerState) -> None:
        assert state.current is not None
        self._actions.append(StartProbes(state.name, state.current.id, state.current.started_at))

    def _start_if_needed(self, state: ContainerState, now: datetime) -> None:
        """Start the container if it should run and its back-off is over."""
        if state.alive or state.operation is not Operation.NONE:
            return
        if state.current is not None and not state.restarts(self._policy):
            return
        if state.retry_at is not None and now < state.retry_at:
            return
        last_exit = state.current.exit if state.current is not None else None
        # A missing image or configuration has its own delays.
        if last_exit is not None and (state.waiting is None or state.waiting.reason == CRASH_LOOP):
            if now < state.backoff.ready_at(last_exit.finished_at):
                self._wait_in_backoff(state, last_exit.finished_at)
                return
            state.backoff = state.backoff.after_retry(now)
        state.operation, state.waiting, state.retry_at = Operation.STARTING, None, None
        self._actions.append(StartContainer(state.name, state.next_attempt))

    def _wait_in_backoff(self, state: ContainerState, failed: datetime) -> None:
        metadata = self.pod.metadata
        pod = f"{metadata.name}_{metadata.namespace}({metadata.uid})"
        delay = format_duration(state.backoff.seconds_for(failed))
        if state.waiting is None:
            message = f"Back-off restarting failed container {state.name} in pod {pod}"
            self._record(WARNING, "BackOff", message, state)
        state.waiting = Waiting(CRASH_LOOP, f"back-off {delay} restarting failed container={state.name} pod={pod}")
        state.retry_at = state.backoff.ready_at(failed)

    def _restart_changed(self, state: ContainerState) -> None:
        assert state.current is not None
        if state.current.image and state.spec.image and state.current.image != state.spec.image:
            state.must_restart = True
            message = f"Container {state.name} definition changed, will be restarted"
            self._stop(state, spec_grace(self.pod), message)

    def _stop_for_termination(self, state: ContainerState, now: datetime) -> None:
        if state.operation in (Operation.STARTING, Operation.STOPPING) or not state.alive:
            return
        if self._grace_ends is None:
            self._grace_ends = seconds_after(now, termination_grace(self.pod))
        remaining = (self._grace_ends - now).total_seconds()
        least = min(self._timing.grace_least, termination_grace(self.pod))
        self._stop(state, max(remaining, least), f"Stopping container {state.name}")

    def _shorten_grace(self, now: datetime) -> None:
        """Stop containers again when the grace period has become shorter than the current one."""
        ends = seconds_after(now, termination_grace(self.pod))
        if self._grace_ends is None or ends >= self._grace_ends:
            return
        self._grace_ends = ends
        for state in self.containers.all:
            if state.operation is Operation.STOPPING and state.current is not None:
                grace = termination_grace(self.pod)
                self._actions.append(StopContainer(state.name, state.current.id, grace, hook=False))

    def _stop(self, state: ContainerState, grace_seconds: float, message: str, *, hook: bool = True) -> None:
        assert state.current is not None
        state.operation = Operation.STOPPING
        self._record(NORMAL, "Killing", message, state)
        self._actions.append(StopContainer(state.name, state.current.id, grace_seconds, hook))

    def _record(self, event_type: str, reason: str, message: str, state: ContainerState | None = None) -> None:
        self._actions.append(RecordEvent(event_type, reason, message, state.name if state is not None else ""))

    @property
    def _policy(self) -> str:
        return self.pod.spec.restart_policy or "Always"

    @property
    def _deadline(self) -> datetime | None:
        seconds = self.pod.spec.active_deadline_seconds
        return None if seconds is None else seconds_after(self.start_time, seconds)


Handler: TypeAlias = Callable[[PodMachine, Any, datetime], None]
