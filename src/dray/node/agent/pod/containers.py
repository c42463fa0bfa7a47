"""One container of a Pod: its runs, and what is being done about it. Changed by the Pod's machine alone."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from dray.api.types.core_v1 import Container, ContainerRestartRule, Pod
from dray.node.agent.pod.events import Timing
from dray.node.runtimes.runtime import ContainerRecord


class ContainerKind(enum.Enum):
    """What part a container plays."""

    INIT = enum.auto()
    SIDECAR = enum.auto()
    REGULAR = enum.auto()


class Operation(enum.Enum):
    """What the hand is doing for a container."""

    NONE = enum.auto()
    STARTING = enum.auto()
    # It runs, and its hook after the start does too.
    POST_START = enum.auto()
    STOPPING = enum.auto()


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a container does not run."""

    reason: str
    message: str = ""


@dataclass(slots=True)
class ContainerState:
    """A container's place in its Pod."""

    spec: Container
    kind: ContainerKind
    backoff: Backoff
    image_backoff: Backoff
    # The latest run, and the one before it.
    current: ContainerRecord | None = None
    previous: ContainerRecord | None = None
    work: Operation = Operation.NONE
    waiting: Waiting | None = None
    # When to try again after `StartFailed`.
    retry_at: datetime | None = None
    # The startup probe succeeded, or there is none and the container runs.
    started: bool = False
    # What the readiness probe said; without one, whether it has started.
    ready: bool = False
    # A stop that is not the Pod's end: run again whatever the policy says.
    must_restart: bool = False

    @property
    def name(self) -> str:
        """The container's name."""
        return self.spec.name

    @property
    def alive(self) -> bool:
        """Whether something runs, or may come to run."""
        return self.work is Operation.STARTING or (self.current is not None and self.current.exit is None)

    @property
    def running(self) -> bool:
        """Whether it runs and its hook is through."""
        return (
            self.current is not None
            and self.current.exit is None
            and self.work not in (Operation.STARTING, Operation.POST_START)
        )

    @property
    def exit_code(self) -> int | None:
        """What the latest run ended with."""
        if self.current is None or self.current.exit is None or self.work is Operation.STARTING:
            return None
        return self.current.exit.code

    @property
    def next_attempt(self) -> int:
        """The number of the next run."""
        return 0 if self.current is None else self.current.attempt + 1

    def restarts(self, pod_policy: str) -> bool:
        """Whether the latest run, which ended, is to be followed by another."""
        code = self.exit_code
        if code is None:
            return False
        return self.must_restart or wants_restart(self.spec, pod_policy, code, is_init=self.kind is ContainerKind.INIT)

    def done(self, pod_policy: str) -> bool:
        """Whether it ended for good."""
        return self.exit_code is not None and not self.restarts(pod_policy)


@dataclass(slots=True)
class PodContainers:
    """All containers of a Pod, init containers first."""

    initial: list[ContainerState]
    regular: list[ContainerState]
    by_name: dict[str, ContainerState] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_name = {state.name: state for state in self.all}

    @property
    def all(self) -> list[ContainerState]:
        """In the order of the spec."""
        return [*self.initial, *self.regular]

    @property
    def sidecars(self) -> list[ContainerState]:
        """The init containers that stay."""
        return [state for state in self.initial if state.kind is ContainerKind.SIDECAR]

    def update(self, pod: Pod) -> None:
        """Take over what may change of a container's spec."""
        for container in (*pod.spec.init_containers, *pod.spec.containers):
            state = self.by_name.get(container.name)
            if state is not None:
                state.spec = container


def restore_containers(pod: Pod, records: Iterable[ContainerRecord], timing: Timing) -> PodContainers:
    """The containers of a Pod, with what is known of their earlier runs."""
    runs: dict[str, list[ContainerRecord]] = {}
    for record in sorted(records, key=lambda item: item.attempt):
        runs.setdefault(record.name, []).append(record)

    def make(container: Container, kind: ContainerKind) -> ContainerState:
        state = ContainerState(
            container,
            kind,
            Backoff(timing.restart_backoff, timing.restart_backoff_max),
            Backoff(timing.start_retry, timing.image_backoff_max),
        )
        known = runs.get(container.name, [])
        state.current = known[-1] if known else None
        state.previous = known[-2] if len(known) > 1 else None
        if state.current is not None and state.current.exit is None:
            state.started = container.startup_probe is None
            state.ready = _was_ready(pod, state.current) or (state.started and container.readiness_probe is None)
        return state

    initial = [
        make(container, ContainerKind.SIDECAR if container.restart_policy == "Always" else ContainerKind.INIT)
        for container in pod.spec.init_containers
    ]
    return PodContainers(initial, [make(container, ContainerKind.REGULAR) for container in pod.spec.containers])


def _was_ready(pod: Pod, record: ContainerRecord) -> bool:
    """What was said of the same run before the agent restarted holds until a probe says otherwise."""
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    return any(
        status.ready and (status.container_id or "").endswith(f"://{record.id}")
        for status in statuses
        if status.name == record.name
    )


def wants_restart(container: Container, pod_policy: str, code: int, *, is_init: bool = False) -> bool:
    """Whether the container is to run again after this exit code."""
    if any(_rule_restarts(rule, code) for rule in container.restart_policy_rules):
        return True
    policy = container.restart_policy or pod_policy
    if policy == "Always" and not is_init:
        return True
    # An ordinary init container that succeeded is done, whatever the policy.
    return policy in ("Always", "OnFailure") and code != 0


def _rule_restarts(rule: ContainerRestartRule, code: int) -> bool:
    if rule.action != "Restart" or rule.exit_codes is None:
        return False
    listed = code in rule.exit_codes.values
    return listed if rule.exit_codes.operator == "In" else not listed


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double, counted from the moment of failure: the first one is none."""

    first_seconds: float
    max_seconds: float
    # The pause that the next failure must keep; zero before the first restart.
    seconds: float = 0.0
    updated: datetime | None = None

    def ready_at(self, failed: datetime) -> datetime:
        """When to try again after a failure at that time."""
        return failed + timedelta(seconds=self._current(failed))

    def seconds_for(self, failed: datetime) -> float:
        """The pause after a failure at that time."""
        return self._current(failed)

    def after_retry(self, now: datetime) -> Backoff:
        """What holds after trying again."""
        current = self._current(now)
        following = min(current * 2, self.max_seconds) if current else self.first_seconds
        return Backoff(self.first_seconds, self.max_seconds, following, now)

    def _current(self, moment: datetime) -> float:
        # Whoever ran well for twice the longest pause begins anew.
        if self.updated is None or (moment - self.updated).total_seconds() > 2 * self.max_seconds:
            return 0.0
        return self.seconds
