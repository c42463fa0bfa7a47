"""Runs containers with a CRI runtime."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from dray.lib.clock import Clock
from dray.node.cdi.cache import CdiCache
from dray.node.runtimes.cri.images import CriImages, PullRecords, sandbox_images
from dray.node.runtimes.cri.log_rotation import put_back, remove_oldest, set_aside
from dray.node.runtimes.cri.streams import open_command, open_port
from dray.node.runtimes.cri.subpaths import bind_subpaths, remove_subpaths
from dray.node.runtimes.cri.translate import (
    NODE_LABEL,
    POD_UID,
    SUPPORTED_FIELDS,
    container_config,
    has_systemd_cgroups,
    knows_cdi,
    record_of,
    sandbox_config,
    usage_of,
    with_configuration,
    with_image_user,
)
from dray.node.runtimes.image_references import NO_CREDENTIALS, Keyring
from dray.node.runtimes.pod_cgroup import pod_group, remove_group, write_group
from dray.node.runtimes.runtime import (
    START_ERROR,
    START_ERROR_CODE,
    UNKNOWN_EXIT_CODE,
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
    ignored_fields,
)
from dray.node.runtimes.streams import ContainerStreams, ForwardedPort
from dray.node.runtimes.usage import Usage
from dray.rpc.pb.cri.v1 import api_pb2 as pb
from dray.rpc.pb.cri.v1.api_pb2_grpc import ImageServiceStub, RuntimeServiceStub
from dray.rpc.remote_command.messages import StreamOptions
from dray.rpc.sockets import connect
from dray.runtime.logs import fields
from dray.runtime.tasks import ChildTasks, cancel_and_wait

_log = logging.getLogger(__name__)

# CRI reports exits only on request; kubelet relists once a second.
RELIST_SECONDS: Final = 0.5
# kubelet's period of log rotation.
ROTATE_SECONDS: Final = 10.0
# A busy runtime may temporarily not find a container.
MISSED_MAX: Final = 5
CALL_SECONDS_MAX: Final = 120.0
# Between looks at a container that a call of an earlier agent is starting.
START_POLL_SECONDS: Final = 0.1


@dataclass(slots=True)
class _TrackedContainer:
    """A container that is assumed to run."""

    record: ContainerRecord
    log: Path
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    # The number of consecutive relists in which the runtime did not know it.
    missed: int = 0


@dataclass(frozen=True, slots=True)
class CriSettings:
    """How an agent uses a runtime."""

    endpoint: str
    node_name: str
    # The agent's root directory.
    root: Path
    # Whether Pods share the node's network, also those that do not ask for it.
    shares_network: bool = False
    # Whether Pods have a network, whatever the runtime says at the start.
    has_network: bool = False
    # Credentials of the node for registries.
    keyring: Keyring = NO_CREDENTIALS
    pulls_max: int = 1


class CriRuntime:
    """Implements `Runtime` with a CRI socket, which several agents may share."""

    def __init__(self, settings: CriSettings, clock: Clock, cdi: CdiCache) -> None:
        self._settings = settings
        self._node_name = settings.node_name
        self._clock = clock
        self._cdi = cdi
        self._channel = connect(settings.endpoint.removeprefix("unix://"))
        self._runtime: Any = RuntimeServiceStub(self._channel)
        self._images = CriImages(
            ImageServiceStub(self._channel),
            clock,
            PullRecords(settings.root / "pulled-images.json"),
            keyring=settings.keyring,
            pulls_max=settings.pulls_max,
        )
        # As kubelet's.
        self._seccomp_folder = settings.root / "seccomp"
        self._subpaths = settings.root / "subpaths"
        self._name = "cri"
        self._version = "unknown"
        self._knows_cdi = False
        self._has_own_cgroups = False
        self._sandbox_images: tuple[str, ...] = ()
        # By Pod UID.
        self._sandboxes: dict[str, str] = {}
        self._configs: dict[str, pb.PodSandboxConfig] = {}
        self._running: dict[str, _TrackedContainer] = {}
        self._on_exit: ExitListener = lambda _record: None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def name(self) -> str:
        """The name that the runtime reports."""
        return self._name

    @property
    def version(self) -> str:
        """The version that the runtime reports."""
        return self._version

    async def start(self, on_exit: ExitListener, tasks: ChildTasks) -> Sequence[ContainerRecord]:
        """Connect, and return the containers of this node."""
        self._on_exit = on_exit
        version = await self._call(self._runtime.Version, pb.VersionRequest(version="v1"))
        self._name, self._version = version.runtime_name, version.runtime_version
        status = await self._call(self._runtime.Status, pb.StatusRequest(verbose=True))
        self._check_network(status.status)
        info = dict(status.info)
        self._knows_cdi, self._sandbox_images = knows_cdi(self._name, info), sandbox_images(info)
        # systemd would have to make them.
        self._has_own_cgroups = os.geteuid() == 0 and not has_systemd_cgroups(self._name, info)
        own = pb.PodSandboxFilter(label_selector={NODE_LABEL: self._node_name})
        sandboxes = await self._call(self._runtime.ListPodSandbox, pb.ListPodSandboxRequest(filter=own))
        for item in sorted(sandboxes.items, key=lambda item: item.created_at):
            self._sandboxes[item.labels[POD_UID]] = item.id
        records = [found for item in await self._list() if (found := await self._adopt(item)) is not None]
        self._tasks = [
            tasks.spawn(self._relist(), "CRI relist"),
            tasks.spawn(self._rotate_forever(), "CRI log rotation"),
        ]
        return records

    def _check_network(self, status: pb.RuntimeStatus) -> None:
        """Say what to do if only Pods on the node's network can run: a runtime is installed without a network."""
        reason = next(
            (item.message for item in status.conditions if item.type == "NetworkReady" and not item.status), ""
        )
        if reason and not self._settings.has_network:
            text = "Pods will not start: configure a CNI network, or use --pod-network=host or --pod-network=routed"
            _log.warning(text, extra=fields(reason=reason))

    async def _adopt(self, item: pb.Container) -> ContainerRecord | None:
        if item.state == pb.CONTAINER_CREATED and await self._remove_unstarted(item.id):
            return None
        request = pb.ContainerStatusRequest(container_id=item.id, verbose=item.state != pb.CONTAINER_EXITED)
        answer = await self._call(self._runtime.ContainerStatus, request)
        record = record_of(answer.status)
        if record.exit is not None:
            return record
        self._running[record.id] = _TrackedContainer(record, Path(answer.status.log_path))
        return with_configuration(record, answer.info)

    async def _remove_unstarted(self, container_id: str) -> bool:
        """Remove a container that was not started when the agent stopped: it is not a run; return whether it is gone.

        It cannot be removed while it is being started, by a call of the agent before.
        """
        deadline = self._clock.monotonic() + CALL_SECONDS_MAX
        request = pb.ContainerStatusRequest(container_id=container_id)
        while True:
            try:
                await self._call(self._runtime.RemoveContainer, pb.RemoveContainerRequest(container_id=container_id))
            except RuntimeFailure:
                if self._clock.monotonic() >= deadline:
                    raise
            else:
                return True
            await self._clock.sleep(START_POLL_SECONDS)
            answer = await self._call(self._runtime.ContainerStatus, request)
            if answer.status.state != pb.CONTAINER_CREATED:
                return False

    async def stop(self) -> None:
        """Stop watching, and close the channel."""
        await cancel_and_wait(self._tasks)
        await self._channel.close(None)

    async def images(self) -> Sequence[NodeImage]:
        """Return the images of the runtime, whoever has pulled them."""
        try:
            return await self._images.all()
        except RuntimeFailure as error:
            _log.warning("images cannot be listed", extra=fields(error=str(error)))
            return ()

    async def collect_images(self, warn: Callable[[str, str], None]) -> None:
        """Remove unused images while the runtime's disk is nearly full, until cancelled."""
        await self._images.collect_forever(self._images_in_use, warn)

    async def _images_in_use(self) -> set[str]:
        # Also those of other agents and programs.
        found = await self._call(self._runtime.ListContainers, pb.ListContainersRequest())
        used = {name for item in found.containers for name in (item.image_ref, item.image.image)}
        return {*used, *self._sandbox_images}

    async def ensure_image(self, request: ImageRequest) -> Image:
        """Pull the image as the policy requires, with the credentials of the Pod; raises `ImageFailure`."""
        return await self._images.ensure(request)

    async def ensure_sandbox(self, sandbox: Sandbox) -> tuple[str, ...]:
        """Create a sandbox unless a ready one exists; return the Pod's addresses."""
        sandbox = self._placed(sandbox)
        known = self._sandboxes.get(sandbox.uid)
        attempt = 0
        if known is not None:
            answer = await self._call(self._runtime.PodSandboxStatus, pb.PodSandboxStatusRequest(pod_sandbox_id=known))
            if answer.status.state == pb.SANDBOX_READY:
                self._configs[sandbox.uid] = self._config(sandbox, answer.status.metadata.attempt)
                return _addresses(answer.status)
            attempt = answer.status.metadata.attempt + 1
        await asyncio.to_thread(Path(sandbox.log_directory).mkdir, parents=True, exist_ok=True)
        if self._has_own_cgroups:
            await asyncio.to_thread(write_group, sandbox.uid, sandbox.limits)
        config = self._config(sandbox, attempt)
        made = await self._call(self._runtime.RunPodSandbox, pb.RunPodSandboxRequest(config=config))
        self._sandboxes[sandbox.uid], self._configs[sandbox.uid] = made.pod_sandbox_id, config
        answer = await self._call(
            self._runtime.PodSandboxStatus, pb.PodSandboxStatusRequest(pod_sandbox_id=made.pod_sandbox_id)
        )
        return _addresses(answer.status)

    def _placed(self, sandbox: Sandbox) -> Sandbox:
        return replace(sandbox, host_network=True) if self._settings.shares_network else sandbox

    def _config(self, sandbox: Sandbox, attempt: int) -> pb.PodSandboxConfig:
        parent = f"/{pod_group(sandbox.uid)}" if self._has_own_cgroups else ""
        return sandbox_config(replace(sandbox, attempt=attempt), self._node_name, parent)

    async def run(self, spec: ContainerSpec) -> Started:
        """Create and start a container."""
        spec = replace(spec, sandbox=self._placed(spec.sandbox))
        uid = spec.sandbox.uid
        if uid not in self._configs:
            await self.ensure_sandbox(spec.sandbox)
        edits = None if self._knows_cdi or not spec.cdi_devices else self._cdi.edits(spec.cdi_devices)
        image = await self._images.status(spec.image)
        security = with_image_user(spec.security, image, self._seccomp_folder)
        mounts = await asyncio.to_thread(bind_subpaths, self._subpaths, spec)
        wanted = replace(spec, security=security, mounts=mounts)
        config = container_config(wanted, self._node_name, image.id or spec.image, edits)
        await asyncio.to_thread(Path(spec.log_path).parent.mkdir, parents=True, exist_ok=True)
        made = await self._call(
            self._runtime.CreateContainer,
            pb.CreateContainerRequest(
                pod_sandbox_id=self._sandboxes[uid], config=config, sandbox_config=self._configs[uid]
            ),
        )
        try:
            await self._call(self._runtime.StartContainer, pb.StartContainerRequest(container_id=made.container_id))
        except RuntimeFailure as error:
            record = await self._record(made.container_id)
            ended = Exit(START_ERROR_CODE, self._clock.now(), reason=START_ERROR, message=str(error))
            return Started(replace(record, exit=ended))
        # An exit in the meantime is reported by the next relist.
        record = replace(await self._record_of_start(made.container_id, spec, image.id), exit=None)
        self._running[record.id] = _TrackedContainer(record, Path(spec.log_path))
        return Started(record, ignored_fields(spec, "cri", SUPPORTED_FIELDS))

    async def stop_container(self, container_id: str, grace_seconds: float) -> None:
        """Stop a container; CRI sends the signals."""
        followed = self._running.get(container_id)
        if followed is None:
            return
        request = pb.StopContainerRequest(container_id=container_id, timeout=max(math.ceil(grace_seconds), 0))
        await self._call(self._runtime.StopContainer, request, grace_seconds + CALL_SECONDS_MAX)
        async with asyncio.timeout(CALL_SECONDS_MAX):
            await followed.ended.wait()

    async def set_cpus(self, container_id: str, cpus: str) -> None:
        """Update the container's cpuset."""
        resources = pb.LinuxContainerResources(cpuset_cpus=cpus)
        request = pb.UpdateContainerResourcesRequest(container_id=container_id, linux=resources)
        await self._call(self._runtime.UpdateContainerResources, request)

    async def usages(self, records: Sequence[ContainerRecord]) -> Mapping[str, Usage]:
        """Return what the runtime has measured."""
        own = pb.ContainerStatsFilter(label_selector={NODE_LABEL: self._node_name})
        try:
            answer = await self._call(self._runtime.ListContainerStats, pb.ListContainerStatsRequest(filter=own))
        except RuntimeFailure as error:
            _log.warning("containers are not measured", extra=fields(error=str(error)))
            return {}
        found = {item.attributes.id: usage_of(item) for item in answer.stats}
        return {record.id: found[record.id] for record in records if record.id in found}

    async def execute(self, container_id: str, command: Sequence[str], timeout_seconds: float) -> ExecResult:
        """Run a command in the container; CRI's timeout has whole seconds."""
        request = pb.ExecSyncRequest(container_id=container_id, cmd=command, timeout=math.ceil(timeout_seconds))
        try:
            answer = await self._runtime.ExecSync(request, timeout=timeout_seconds + 2)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return ExecResult(None, "")
            raise RuntimeFailure(error.details() or str(error.code())) from error
        return ExecResult(answer.exit_code, (answer.stdout + answer.stderr).decode(errors="replace"))

    async def exec_stream(self, container_id: str, command: Sequence[str], options: StreamOptions) -> ContainerStreams:
        """Start a command; the runtime serves its streams."""
        request = pb.ExecRequest(
            container_id=container_id,
            cmd=command,
            tty=options.tty,
            stdin=options.stdin,
            stdout=options.stdout,
            stderr=options.stderr,
        )
        return await open_command((await self._call(self._runtime.Exec, request)).url, options)

    async def attach(self, container_id: str, options: StreamOptions) -> ContainerStreams:
        """Attach to a container; the runtime serves its streams."""
        request = pb.AttachRequest(
            container_id=container_id,
            tty=options.tty,
            stdin=options.stdin,
            stdout=options.stdout,
            stderr=options.stderr,
        )
        return await open_command((await self._call(self._runtime.Attach, request)).url, options)

    async def port_forward(self, pod_uid: str, container_ids: Sequence[str], port: int) -> ForwardedPort:
        """Connect to a port in the network of the Pod's sandbox."""
        sandbox = self._sandboxes.get(pod_uid)
        if sandbox is None:
            raise RuntimeFailure("the Pod has no sandbox")
        request = pb.PortForwardRequest(pod_sandbox_id=sandbox, port=[port])
        return await open_port((await self._call(self._runtime.PortForward, request)).url, port)

    async def remove_container(self, container_id: str) -> None:
        """Remove a container."""
        self._running.pop(container_id, None)
        await self._call(self._runtime.RemoveContainer, pb.RemoveContainerRequest(container_id=container_id))

    async def remove_sandbox(self, pod_uid: str) -> None:
        """Stop and remove the Pod's sandboxes."""
        self._sandboxes.pop(pod_uid, None)
        self._configs.pop(pod_uid, None)
        own = pb.PodSandboxFilter(label_selector={NODE_LABEL: self._node_name, POD_UID: pod_uid})
        found = await self._call(self._runtime.ListPodSandbox, pb.ListPodSandboxRequest(filter=own))
        for item in found.items:
            await self._call(self._runtime.StopPodSandbox, pb.StopPodSandboxRequest(pod_sandbox_id=item.id))
            await self._call(self._runtime.RemovePodSandbox, pb.RemovePodSandboxRequest(pod_sandbox_id=item.id))
        await asyncio.to_thread(remove_subpaths, self._subpaths, pod_uid)
        if self._has_own_cgroups:
            await asyncio.to_thread(remove_group, pod_uid)

    # --- Watching. ---

    async def _relist(self) -> None:
        while True:
            await self._clock.sleep(RELIST_SECONDS)
            if not self._running:
                continue
            try:
                await self._look()
            except RuntimeFailure as error:
                _log.warning("container runtime does not respond", extra=fields(error=str(error)))

    async def _look(self) -> None:
        running = {item.id for item in await self._list() if item.state == pb.CONTAINER_RUNNING}
        for container_id in sorted(self._running.keys() - running):
            followed = self._running[container_id]
            record = await self._look_at(followed)
            if record.exit is not None and self._running.pop(container_id, None) is not None:
                self._on_exit(record)
                followed.ended.set()

    async def _look_at(self, followed: _TrackedContainer) -> ContainerRecord:
        try:
            record = await self._record(followed.record.id)
        except RuntimeFailure:
            followed.missed += 1
            if followed.missed < MISSED_MAX:
                return followed.record
            # It was removed by another client: its exit code is unknown.
            ended = Exit(UNKNOWN_EXIT_CODE, self._clock.now(), reason="Unknown", message="the container is gone")
            return replace(followed.record, exit=ended)
        followed.missed = 0
        return record

    async def _rotate_forever(self) -> None:
        while True:
            await self._clock.sleep(ROTATE_SECONDS)
            for container_id, followed in tuple(self._running.items()):
                await self._rotate(container_id, followed.log)

    async def _rotate(self, container_id: str, path: Path) -> None:
        aside = await asyncio.to_thread(set_aside, path)
        if aside is None:
            return
        try:
            request = pb.ReopenContainerLogRequest(container_id=container_id)
            await self._call(self._runtime.ReopenContainerLog, request)
        except RuntimeFailure as error:
            await asyncio.to_thread(put_back, aside, path)
            _log.warning("log not rotated", extra=fields(container_id=container_id, error=str(error)))
        else:
            await asyncio.to_thread(remove_oldest, path)

    async def _list(self) -> list[pb.Container]:
        own = pb.ContainerFilter(label_selector={NODE_LABEL: self._node_name})
        found = await self._call(self._runtime.ListContainers, pb.ListContainersRequest(filter=own))
        return list(found.containers)

    async def _record_of_start(self, container_id: str, spec: ContainerSpec, image_id: str) -> ContainerRecord:
        """Return the record of a started container, even if the runtime does not respond."""
        try:
            return await self._record(container_id)
        except RuntimeFailure:
            sandbox, now = spec.sandbox, self._clock.now()
            names = (sandbox.uid, sandbox.namespace, sandbox.name, spec.name)
            return ContainerRecord(container_id, *names, spec.attempt, spec.image, image_id, now)

    async def _record(self, container_id: str) -> ContainerRecord:
        request = pb.ContainerStatusRequest(container_id=container_id)
        answer = await self._call(self._runtime.ContainerStatus, request)
        return record_of(answer.status)

    async def _call(self, method: Any, request: Any, timeout_seconds: float = CALL_SECONDS_MAX) -> Any:
        try:
            return await method(request, timeout=timeout_seconds)
        except grpc.aio.AioRpcError as error:
            raise RuntimeFailure(error.details() or str(error.code())) from error


def _addresses(status: pb.PodSandboxStatus) -> tuple[str, ...]:
    if not status.network.ip:
        return ()
    return (status.network.ip, *(item.ip for item in status.network.additional_ips))
