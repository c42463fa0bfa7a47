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
from dray.node.agent.pod.containers import Kind, Slot, Slots, Waiting, Work, make_slots
from dray.node.agent.pod.events import (
    KUBELET_TIMING,
    Action,
    Admit,
    Admitted,
    BeginProbes,
    ContainerExited,
    ContainerStarted,
    DeleteObject,
    Doomed,
    Event,
    Forget,
    HelpArrived,
    PodRemoved,
    PodUpdated,
    PostStartDone,
    Prepare,
    Prepared,
    PrepareFailed,
    ProbeJudged,
    ProbeKind,
    Rejected,
    Release,
    Released,
    ReleaseFailed,
    RemoveContainer,
    RunPostStart,
    StartContainer,
    StartFailed,
    StopContainer,
    Tell,
    TimePassed,
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
        self.slots: Slots = make_slots(pod, records, timing)
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
        self._initialized = not self.slots.initial or any(slot.current for slot in self.slots.regular)
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
            moments += [slot.retry_at for slot in self.slots.all]
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
        return self.stage is Stage.ADMITTING and any(slot.alive for slot in self.slots.all)

    @property
    def admitted(self) -> bool:
        """Whether the Pod was admitted and holds what it asked for."""
        if self.rejected:
            return self.stage < Stage.ENDED and any(slot.alive for slot in self.slots.all)
        return Stage.ADMITTING < self.stage < Stage.ENDED

    # --- Events. ---

    def _on_updated(self, event: PodUpdated, now: datetime) -> None:
        self.pod = event.pod
        self.slots.update(event.pod)
        for slot in self.slots.all:
            if slot.running and slot.current is not None and slot.work is Work.NONE and self.stage is Stage.RUNNING:
                self._restart_changed(slot)
        if self.stage is Stage.STOPPING:
            self._hurry(now)

    def _hurry(self, now: datetime) -> None:
        """A shorter grace than the one under way."""
        ends = now + timedelta(seconds=end_grace(self.pod))
        if self._grace_ends is None or ends >= self._grace_ends:
            return
        self._grace_ends = ends
        for slot in self.slots.all:
            if slot.work is Work.STOPPING and slot.current is not None:
                self._out.append(StopContainer(slot.name, slot.current.id, end_grace(self.pod), hook=False))

    def _restart_changed(self, slot: Slot) -> None:
        assert slot.current is not None
        if slot.current.image and slot.spec.image and slot.current.image != slot.spec.image:
            slot.must_restart = True
            message = f"Container {slot.name} definition changed, will be restarted"
            self._stop(slot, spec_grace(self.pod), message)

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
        for slot in self.slots.all:
            if slot.running and slot.current is not None:
                self._out.append(BeginProbes(slot.name, slot.current.id, slot.current.started_at))

    def _on_prepare_failed(self, event: PrepareFailed, now: datetime) -> None:
        if self.stage is Stage.PREPARING:
            self._tell(WARNING, event.reason, event.message)
            self._prepare.failed(now, self._timing.prepare_retry, self._timing.prepare_retry_max)

    def _on_started(self, event: ContainerStarted, _now: datetime) -> None:
        slot = self._take_run(event.record)
        if slot is None:
            return
        for warning in event.warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                self._tell(WARNING, "RuntimeLimitation", warning)
        self._tell(NORMAL, "Started", "Container started", slot)
        if slot.spec.lifecycle is not None and slot.spec.lifecycle.post_start is not None:
            slot.work = Work.POST_START
            self._out.append(RunPostStart(slot.name, event.record.id))
        else:
            self._through(slot)

    def _take_run(self, record: ContainerRecord) -> Slot | None:
        slot = self.slots.by_name.get(record.name)
        if slot is None:
            return None
        if slot.current is not None and slot.current.id != record.id:
            if slot.previous is not None:
                self._out.append(RemoveContainer(slot.previous))
            slot.previous = slot.current
        slot.current = record
        slot.work, slot.waiting, slot.retry_at = Work.NONE, None, None
        slot.must_restart, slot.started, slot.ready = False, False, False
        return slot

    def _through(self, slot: Slot) -> None:
        """It runs and no hook is in the way."""
        assert slot.current is not None
        slot.work = Work.NONE
        slot.started = slot.spec.startup_probe is None
        slot.ready = slot.started and slot.spec.readiness_probe is None
        self._out.append(BeginProbes(slot.name, slot.current.id, slot.current.started_at))

    def _on_start_failed(self, event: StartFailed, now: datetime) -> None:
        slot = self.slots.by_name[event.container]
        slot.work = Work.NONE
        if event.event:
            self._tell(WARNING, event.event, event.message, slot)
        if event.reason != "ErrImagePull":
            slot.waiting = Waiting(event.reason, event.message)
            slot.retry_at = now + timedelta(seconds=self._timing.start_retry)
            return
        again = slot.image_backoff.updated is not None
        slot.image_backoff = slot.image_backoff.after_retry(now)
        slot.retry_at = slot.image_backoff.ready_at(now)
        slot.waiting = Waiting(event.reason, event.message)
        if again:
            text = f'Back-off pulling image "{slot.spec.image}"'
            self._tell(NORMAL, "BackOff", text, slot)
            slot.waiting = Waiting(IMAGE_BACKOFF, f"{text}: {event.reason}: {event.message}")

    def _on_exited(self, event: ContainerExited, now: datetime) -> None:
        slot = self.slots.by_name.get(event.record.name)
        if slot is None:
            return
        if slot.current is None or slot.current.id != event.record.id:
            if slot.work is not Work.STARTING:
                return
            # It was made and could not start: a run of its own.
            self._take_run(event.record)
        slot.current = event.record
        slot.work = Work.NONE
        slot.started = slot.ready = False

    def _on_post_start(self, event: PostStartDone, _now: datetime) -> None:
        slot = self.slots.by_name[event.container]
        if slot.work is not Work.POST_START or slot.current is None or slot.current.id != event.container_id:
            return
        if not event.failure:
            self._through(slot)
            return
        self._tell(WARNING, "FailedPostStartHook", event.failure, slot)
        self._stop(slot, spec_grace(self.pod), "FailedPostStartHook", hook=False)

    def _on_probe(self, event: ProbeJudged, _now: datetime) -> None:
        slot = self.slots.by_name[event.container]
        if slot.current is None or slot.current.id != event.container_id or slot.current.exit is not None:
            return
        if event.kind is ProbeKind.READINESS:
            slot.ready = event.healthy and slot.started
        elif event.kind is ProbeKind.STARTUP and event.healthy:
            slot.started = True
            slot.ready = slot.spec.readiness_probe is None
        elif not event.healthy and slot.work is Work.NONE and self.stage is Stage.RUNNING:
            word = event.kind.value.lower()
            self._stop(
                slot,
                probe_grace(self.pod, slot.spec, event.kind),
                f"Container {slot.name} failed {word} probe, will be restarted",
            )

    def _on_released(self, _event: Released, _now: datetime) -> None:
        if self.stage is Stage.RELEASING:
            self.stage = Stage.ENDED

    def _on_release_failed(self, event: ReleaseFailed, now: datetime) -> None:
        self._tell(WARNING, event.reason, event.message)
        self._release.failed(now, self._timing.release_retry, self._timing.prepare_retry_max)

    def _on_doomed(self, event: Doomed, now: datetime) -> None:
        # While it is being admitted nothing may be taken back; whoever admits it asks again afterwards.
        if Stage.ADMITTING < self.stage < Stage.STOPPING and self.verdict is None:
            self.verdict = event.verdict
            self._tell(WARNING, event.verdict.reason, event.verdict.message)
            self._begin_stop(now)

    def _on_help(self, _event: HelpArrived, now: datetime) -> None:
        self._prepare.hasten(now)
        self._release.hasten(now)

    def _on_time(self, _event: TimePassed, _now: datetime) -> None:
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
        for slot in self.slots.sidecars:
            if self._initialized:
                self._keep_running(slot, now)
        if self._initialized:
            for slot in self.slots.regular:
                self._keep_running(slot, now)
        if self._done():
            self._begin_stop(now)

    def _initialize(self, now: datetime) -> bool:
        """Run init containers one after the other; True when all are through."""
        for position, slot in enumerate(self.slots.initial):
            for sidecar in self.slots.initial[:position]:
                if sidecar.kind is Kind.SIDECAR:
                    self._keep_running(sidecar, now)
            self._keep_running(slot, now)
            through = slot.exit_code == 0 if slot.kind is Kind.INIT else slot.running and slot.started
            if not through:
                return False
        return True

    def _keep_running(self, slot: Slot, now: datetime) -> None:
        """Start the container when it should run and its pauses are over."""
        if slot.alive or slot.work is not Work.NONE:
            return
        if slot.current is not None and not slot.restarts(self._policy):
            return
        if slot.retry_at is not None and now < slot.retry_at:
            return
        failed = slot.current.exit.finished_at if slot.current is not None and slot.current.exit is not None else None
        # What waits for an image or a configuration has its own pauses.
        if failed is not None and (slot.waiting is None or slot.waiting.reason == CRASH_LOOP):
            ready = slot.backoff.ready_at(failed)
            if now < ready:
                self._wait_in_backoff(slot, ready, slot.backoff.seconds_for(failed))
                return
            slot.backoff = slot.backoff.after_retry(now)
        slot.work, slot.waiting, slot.retry_at = Work.STARTING, None, None
        self._out.append(StartContainer(slot.name, slot.next_attempt))

    def _wait_in_backoff(self, slot: Slot, ready: datetime, seconds: float) -> None:
        metadata = self.pod.metadata
        pod = f"{metadata.name}_{metadata.namespace}({metadata.uid})"
        text = f"back-off {duration_text(seconds)} restarting failed container={slot.name} pod={pod}"
        if slot.waiting is None:
            told = f"Back-off restarting failed container {slot.name} in pod {pod}"
            self._tell(WARNING, "BackOff", told, slot)
        slot.waiting, slot.retry_at = Waiting(CRASH_LOOP, text), ready

    def _done(self) -> bool:
        """Whether the containers have come to their own end."""
        if not self._initialized:
            # An init container that may not run again fails the Pod.
            return any(
                slot.kind is Kind.INIT and slot.done(self._policy) and slot.exit_code != 0
                for slot in self.slots.initial
            )
        return all(slot.done(self._policy) for slot in self.slots.regular)

    def _decide_stopping(self, now: datetime) -> None:
        others = [slot for slot in self.slots.all if slot.kind is not Kind.SIDECAR]
        for slot in others:
            self._stop_for_end(slot, now)
        if any(slot.alive for slot in others):
            return
        for slot in reversed(self.slots.sidecars):
            self._stop_for_end(slot, now)
            if slot.alive:
                return
        self.stage = Stage.RELEASING
        self._release.at = now

    def _stop_for_end(self, slot: Slot, now: datetime) -> None:
        if slot.work in (Work.STARTING, Work.STOPPING) or not slot.alive:
            return
        if self._grace_ends is None:
            self._grace_ends = now + timedelta(seconds=end_grace(self.pod))
        remaining = (self._grace_ends - now).total_seconds()
        floor = min(self._timing.grace_least, end_grace(self.pod))
        self._stop(slot, max(remaining, floor), f"Stopping container {slot.name}")

    def _decide_releasing(self, now: datetime) -> None:
        if self._release.due(now):
            self._release.at = None
            self._out.append(Release())

    def _decide_ended(self, _now: datetime) -> None:
        if self._removed:
            self.stage = Stage.FORGOTTEN
            self._out.append(Forget())
        elif self.pod.metadata.deletion_timestamp is not None and not self._deletion_sent:
            self._deletion_sent = True
            self._out.append(DeleteObject())

    # --- Small parts. ---

    def _stop(self, slot: Slot, grace_seconds: float, message: str, *, hook: bool = True) -> None:
        assert slot.current is not None
        slot.work = Work.STOPPING
        self._tell(NORMAL, "Killing", message, slot)
        self._out.append(StopContainer(slot.name, slot.current.id, grace_seconds, hook))

    def _tell(self, event_type: str, reason: str, message: str, slot: Slot | None = None) -> None:
        self._out.append(Tell(event_type, reason, message, slot.name if slot is not None else ""))

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
    PostStartDone: PodMachine._on_post_start,  # noqa: SLF001
    ProbeJudged: PodMachine._on_probe,  # noqa: SLF001
    Released: PodMachine._on_released,  # noqa: SLF001
    ReleaseFailed: PodMachine._on_release_failed,  # noqa: SLF001
    Doomed: PodMachine._on_doomed,  # noqa: SLF001
    HelpArrived: PodMachine._on_help,  # noqa: SLF001
    TimePassed: PodMachine._on_time,  # noqa: SLF001
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
