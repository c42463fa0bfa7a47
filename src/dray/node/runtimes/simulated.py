"""A runtime that simulates containers: they start after a delay, and exit when stopped or after a set time."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from dray.api.types.core_v1 import Container, Pod
from dray.lib.clock import Clock
from dray.node.agent.pod.container_spec import sandbox_of
from dray.node.agent.pod_setup import ImageCredentials
from dray.node.resource_manager import RunOptions
from dray.node.runtimes.runtime import (
    ContainerRecord,
    ContainerSpec,
    ExecResult,
    Exit,
    ExitListener,
    Image,
    ImageRequest,
    NodeImage,
    RuntimeFailure,
    Sandbox,
    Started,
)
from dray.node.runtimes.streams import ContainerStreams, ForwardedPort
from dray.node.runtimes.usage import Usage
from dray.rpc.remote_command.messages import StreamOptions
from dray.runtime.tasks import ChildTasks, cancel_and_wait

# Pod annotations with the run time and the exit code of its containers, and with the run time of its init containers.
RUN_SECONDS: Final = "simulation.dray.dev/run-seconds"
EXIT_CODE: Final = "simulation.dray.dev/exit-code"
INIT_SECONDS: Final = "simulation.dray.dev/init-seconds"
_TERMINATED: Final = 143


class SimulatedRuntime:
    """Implements `Runtime` in memory."""

    def __init__(self, clock: Clock, start_seconds: float = 0.0) -> None:
        self._clock = clock
        self._start_seconds = start_seconds
        self._records: dict[str, ContainerRecord] = {}
        self._timers: dict[str, asyncio.Task[None]] = {}
        self._on_exit: ExitListener = lambda _record: None
        # Set by `start`.
        self._tasks: ChildTasks | None = None

    @property
    def name(self) -> str:
        """The scheme of container IDs."""
        return "simulated"

    @property
    def version(self) -> str:
        """The runtime's version."""
        return "1.0.0"

    async def start(self, on_exit: ExitListener, tasks: ChildTasks) -> Sequence[ContainerRecord]:
        """Return no containers."""
        self._on_exit, self._tasks = on_exit, tasks
        return ()

    async def stop(self) -> None:
        """Cancel all timers."""
        await cancel_and_wait(self._timers.values())

    async def images(self) -> Sequence[NodeImage]:
        """Return no images: the runtime has none of its own, or does not tell."""
        return ()

    async def collect_images(self, warn: Callable[[str, str], None]) -> None:
        """Do nothing."""

    async def ensure_image(self, request: ImageRequest) -> Image:
        """Return an image without an ID."""
        return Image(request.image, "")

    async def ensure_sandbox(self, sandbox: Sandbox) -> tuple[str, ...]:
        """Return no addresses: Pods use the node's."""
        return ()

    async def run(self, spec: ContainerSpec) -> Started:
        """Start a container after the delay."""
        if self._start_seconds > 0:
            await self._clock.sleep(self._start_seconds)
        sandbox = spec.sandbox
        record = ContainerRecord(
            uuid.uuid4().hex * 2,
            sandbox.uid,
            sandbox.namespace,
            sandbox.name,
            spec.name,
            spec.attempt,
            spec.image,
            "",
            self._clock.now(),
        )
        self._records[record.id] = record
        seconds = spec.annotations.get(RUN_SECONDS)
        if seconds is not None:
            code = int(spec.annotations.get(EXIT_CODE, "0"))
            self._timers[record.id] = self._spawn(self._end_after(record.id, float(seconds), code))
        return Started(record)

    async def stop_container(self, container_id: str, grace_seconds: float) -> None:
        """End the container at once."""
        self._end(container_id, _TERMINATED, signal=15)

    async def set_cpus(self, container_id: str, cpus: str) -> None:
        """Do nothing."""

    async def usages(self, records: Sequence[ContainerRecord]) -> Mapping[str, Usage]:
        """Return nothing: containers are not measured."""
        return {}

    async def execute(self, container_id: str, command: Sequence[str], timeout_seconds: float) -> ExecResult:
        """Return success."""
        return ExecResult(0, "")

    async def exec_stream(self, container_id: str, command: Sequence[str], options: StreamOptions) -> ContainerStreams:
        """Refuse: nothing runs in a simulated container."""
        raise RuntimeFailure("containers of simulated nodes run no commands")

    async def attach(self, container_id: str, options: StreamOptions) -> ContainerStreams:
        """Refuse: a simulated container has no output."""
        raise RuntimeFailure("containers of simulated nodes have no output")

    async def port_forward(self, pod_uid: str, container_ids: Sequence[str], port: int) -> ForwardedPort:
        """Refuse: a simulated container listens nowhere."""
        raise RuntimeFailure("containers of simulated nodes listen on no ports")

    async def remove_container(self, container_id: str) -> None:
        """Remove a container."""
        self._records.pop(container_id, None)
        timer = self._timers.pop(container_id, None)
        if timer is not None:
            timer.cancel()

    async def remove_sandbox(self, pod_uid: str) -> None:
        """Do nothing."""

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert self._tasks is not None, "not started"
        return self._tasks.spawn(work, "simulated container")

    async def _end_after(self, container_id: str, seconds: float, code: int) -> None:
        await self._clock.sleep(seconds)
        self._timers.pop(container_id, None)
        self._end(container_id, code)

    def _end(self, container_id: str, code: int, signal: int = 0) -> None:
        record = self._records.get(container_id)
        if record is None or record.exit is not None:
            return
        ended = replace(record, exit=Exit(code, self._clock.now(), signal))
        self._records[container_id] = ended
        # The listener must not be called before `run` or `stop_container` has returned.
        asyncio.get_running_loop().call_soon(self._on_exit, ended)


class SimulatedPodSetup:
    """Implements `PodSetup` without files."""

    def sandbox(self, pod: Pod) -> Sandbox:
        """Return the Pod's sandbox."""
        return sandbox_of(pod, "")

    async def prepare(self, pod: Pod) -> None:
        """Do nothing."""

    async def container(
        self, pod: Pod, container: Container, attempt: int, options: RunOptions, addresses: tuple[str, ...]
    ) -> ContainerSpec:
        """Return a spec with names, and with annotations that say when the container ends."""
        annotations = _life(pod, container)
        return ContainerSpec(self.sandbox(pod), container.name, attempt, container.image or "", annotations=annotations)

    async def image_credentials(self, pod: Pod) -> ImageCredentials:
        """Return no credentials."""
        return (), ()

    async def termination_message(self, pod: Pod, container: str, attempt: int, *, failed: bool) -> str:
        """Return an empty message."""
        return ""

    async def remove_log(self, pod: Pod, container: str, attempt: int) -> None:
        """Do nothing."""

    async def remove_pod(self, pod: Pod) -> None:
        """Do nothing."""


def _life(pod: Pod, container: Container) -> Mapping[str, str]:
    """Return when a container ends and how: an init container successfully, a sidecar when it is stopped."""
    chosen = pod.metadata.annotations
    if all(item.name != container.name for item in pod.spec.init_containers):
        return {name: chosen[name] for name in (RUN_SECONDS, EXIT_CODE) if name in chosen}
    if container.restart_policy == "Always":
        return {}
    return {RUN_SECONDS: chosen.get(INIT_SECONDS, "0")}
