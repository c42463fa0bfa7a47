"""The containers of a Pod: their runs, restart decisions and operations in progress. Pure.

Only the `PodMachine` changes them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from dray.api.types.core_v1 import Container, ContainerRestartRule, EphemeralContainer, Pod
from dray.node.agent.pod.timing import Backoff, Timing
from dray.node.runtimes.runtime import ContainerRecord


class ContainerKind(enum.Enum):
    """The kinds of containers in a Pod."""

    INIT = enum.auto()
    SIDECAR = enum.auto()
    REGULAR = enum.auto()
    # Added to a running Pod, started once, and without influence on the Pod.
    EPHEMERAL = enum.auto()


class Operation(enum.Enum):
    """The operation in progress for a container."""

    NONE = enum.auto()
    STARTING = enum.auto()
    # The container runs, and its postStart hook has not ended.
    POST_START = enum.auto()
    STOPPING = enum.auto()


@dataclass(frozen=True, slots=True)
class Waiting:
    """The Waiting state of a container."""

    reason: str
    message: str = ""


@dataclass(slots=True)
class ContainerState:
    """The state of one container."""

    spec: Container
    kind: ContainerKind
    backoff: Backoff
    image_backoff: Backoff
    # The latest run, and the one before it.
    current: ContainerRecord | None = None
    previous: ContainerRecord | None = None
    operation: Operation = Operation.NONE
    waiting: Waiting | None = None
    # When to retry after `StartFailed`.
    retry_at: datetime | None = None
    # The startup probe succeeded, or the container runs and has none.
    started: bool = False
    # The result of the readiness probe; without one, `started`.
    ready: bool = False
    # The container was stopped to be restarted, whatever its restart policy.
    must_restart: bool = False

    @property
    def name(self) -> str:
        """The container's name."""
        return self.spec.name

    @property
    def alive(self) -> bool:
        """Whether the container runs or is being started."""
        return self.operation is Operation.STARTING or (self.current is not None and self.current.exit is None)

    @property
    def running(self) -> bool:
        """Whether the container runs and its postStart hook has ended."""
        return (
            self.current is not None
            and self.current.exit is None
            and self.operation not in (Operation.STARTING, Operation.POST_START)
        )

    @property
    def exit_code(self) -> int | None:
        """The exit code of the latest run; None while the container runs or is being started."""
        if self.current is None or self.current.exit is None or self.operation is Operation.STARTING:
            return None
        return self.current.exit.code

    @property
    def next_attempt(self) -> int:
        """The number of the next run."""
        return 0 if self.current is None else self.current.attempt + 1

    def is_current(self, container_id: str) -> bool:
        """Whether the latest run has this ID."""
        return self.current is not None and self.current.id == container_id

    def restarts(self, pod_policy: str) -> bool:
        """Whether the container is to be started again after the exit of its latest run."""
        code = self.exit_code
        if code is None or self.kind is ContainerKind.EPHEMERAL:
            return False
        is_init = self.kind is ContainerKind.INIT
        return self.must_restart or wants_restart(self.spec, pod_policy, code, is_init=is_init)

    def done(self, pod_policy: str) -> bool:
        """Whether the container has exited and is not to be started again."""
        return self.exit_code is not None and not self.restarts(pod_policy)

    def begin_run(self, record: ContainerRecord) -> ContainerRecord | None:
        """Make a run the latest one; return the run that is to be removed, since only two are kept."""
        displaced = None
        if self.current is not None and self.current.id != record.id:
            displaced, self.previous = self.previous, self.current
        self.current = record
        self.operation, self.waiting, self.retry_at = Operation.NONE, None, None
        self.must_restart, self.started, self.ready = False, False, False
        return displaced

    def finish_start(self) -> None:
        """Note that the container runs and its postStart hook has ended."""
        self.operation = Operation.NONE
        self.started = self.spec.startup_probe is None
        self.ready = self.started and self.spec.readiness_probe is None

    def end_run(self, record: ContainerRecord) -> None:
        """Note that the latest run has ended."""
        self.current = record
        self.operation = Operation.NONE
        self.started = self.ready = False


@dataclass(slots=True)
class PodContainers:
    """The containers of a Pod, init containers first."""

    initial: list[ContainerState]
    regular: list[ContainerState]
    ephemeral: list[ContainerState]
    # Makes the state of a container that is added later.
    make: Callable[[Container, ContainerKind], ContainerState]
    by_name: dict[str, ContainerState] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_name = {state.name: state for state in self.all}

    @property
    def all(self) -> list[ContainerState]:
        """All containers, in the order of the spec."""
        return [*self.initial, *self.regular, *self.ephemeral]

    @property
    def sidecars(self) -> list[ContainerState]:
        """The restartable init containers."""
        return [state for state in self.initial if state.kind is ContainerKind.SIDECAR]

    def update(self, pod: Pod) -> None:
        """Take over the container specs of a newer version of the Pod."""
        for container in (*pod.spec.init_containers, *pod.spec.containers):
            state = self.by_name.get(container.name)
            if state is not None:
                state.spec = container
        for added in pod.spec.ephemeral_containers:
            if added.name not in self.by_name:
                state = self.make(plain_container(added), ContainerKind.EPHEMERAL)
                self.ephemeral.append(state)
                self.by_name[state.name] = state


def plain_container(container: EphemeralContainer) -> Container:
    """Return an ephemeral container as one that can be started like others."""
    return Container(**{name: getattr(container, name) for name in Container.__struct_fields__})


def restore_containers(pod: Pod, records: Iterable[ContainerRecord], timing: Timing) -> PodContainers:
    """Return the containers of a Pod with their known runs."""
    runs: dict[str, list[ContainerRecord]] = {}
    for record in sorted(records, key=lambda item: item.attempt):
        runs.setdefault(record.name, []).append(record)

    def restore(container: Container, kind: ContainerKind) -> ContainerState:
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
        restore(container, ContainerKind.SIDECAR if container.restart_policy == "Always" else ContainerKind.INIT)
        for container in pod.spec.init_containers
    ]
    regular = [restore(container, ContainerKind.REGULAR) for container in pod.spec.containers]
    added = [restore(plain_container(item), ContainerKind.EPHEMERAL) for item in pod.spec.ephemeral_containers]
    return PodContainers(initial, regular, added, restore)


def _was_ready(pod: Pod, record: ContainerRecord) -> bool:
    """Whether the same run was reported as ready before the agent restarted; it stays so until a probe fails."""
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    return any(
        status.ready and (status.container_id or "").endswith(f"://{record.id}")
        for status in statuses
        if status.name == record.name
    )


def wants_restart(container: Container, pod_policy: str, code: int, *, is_init: bool = False) -> bool:
    """Whether the container is to be restarted after this exit code."""
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
