"""`dray node`: the node agent, as a client of any Kubernetes API server."""

from __future__ import annotations

import asyncio
import random
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from dray.api.types.core_v1 import Pod
from dray.apiserver.kubelet_client import FINGERPRINT_ANNOTATION
from dray.client.event_recorder import EventRecorder, Source
from dray.client.http import http_client
from dray.client.informer import Selection
from dray.client.interface import Client
from dray.client.resources import PODS
from dray.client.shared_informers import SharedInformerFactory
from dray.cmd.node_identity import NodeIdentity, find_identity, serving_context
from dray.cmd.node_parts import LateParts, NodeParts
from dray.cmd.settings import NodeSettings
from dray.lib.clock import Clock
from dray.node.agent.kubelet_server import KubeletServer
from dray.node.agent.machine_info import read_machine
from dray.node.agent.node_object import NodeSpec, parse_labels, parse_taints
from dray.node.agent.node_registration import NodeRegistration
from dray.node.agent.pod.environment import DownwardContext
from dray.node.agent.pod.timing import Timing
from dray.node.agent.pod_setup import LocalPodSetup
from dray.node.agent.pod_worker import ContainerStartMetrics, Dependencies, NodeInfo
from dray.node.agent.pod_workers import PodWorkers
from dray.node.agent.probes.prober import Prober
from dray.node.agent.status_manager import StatusManager
from dray.node.cdi.cache import CdiCache
from dray.node.resource_manager import Rejection, ResourceManager
from dray.node.runtimes.runtime import Runtime
from dray.runtime.clock import SystemClock
from dray.runtime.metrics import Metrics
from dray.runtime.settings import SettingsError
from dray.runtime.tasks import TaskGroup

COMPONENT: Final = "kubelet"


async def run(settings: NodeSettings, stop: asyncio.Event) -> None:
    """Run the agent until told to stop; its containers run on."""
    async with TaskGroup("node") as group:
        agent, ready = await start_local(settings, group, SystemClock())
        try:
            sys.stdout.write(f"{ready}\n")
            sys.stdout.flush()
            await group.wait(stop)
            await group.cancel()
        finally:
            await agent.stop()


def _ignore(_parts: NodeParts) -> None:
    return


async def start_local(
    settings: NodeSettings, group: TaskGroup, clock: Clock, on_parts: Callable[[NodeParts], None] = _ignore
) -> tuple[PodWorkers, str]:
    """Start the agent of this machine; returns it and the line that says so. `on_parts` gets its managers."""
    name = node_name(settings)
    address = settings.node_ip or read_machine(Path("/")).addresses[0]
    names = tuple(dict.fromkeys([name, socket.gethostname(), address, "127.0.0.1", "localhost"]))
    identity = find_identity(settings, name, names, clock.now())
    client = http_client(identity.access, clock, user_agent="kubelet/dray")
    group.spawn(_close_at_end(client), "connections")
    agent, port = await start(settings, group, client, identity, clock, on_parts)
    return agent, f"ready {identity.access.server} node {name} port {port}"


async def _close_at_end(client: Client) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await client.close()


def node_name(settings: NodeSettings) -> str:
    """The Node's name."""
    return settings.node_name or socket.gethostname().lower()


async def start(
    settings: NodeSettings,
    group: TaskGroup,
    client: Client,
    identity: NodeIdentity,
    clock: Clock,
    on_parts: Callable[[NodeParts], None] = _ignore,
) -> tuple[PodWorkers, int]:
    """Start the agent in the group; returns it and the port of its logs."""
    root = _make_folders(settings.root_dir)
    name, metrics = node_name(settings), Metrics()
    runtime = make_runtime(settings, root, clock, CdiCache(settings.cdi_spec_dirs))
    # Filled below: managers ask the agent for its Pods, and the agent asks the managers.
    managers: list[ResourceManager] = []
    verdicts: list[Callable[[Pod], Rejection | None]] = []
    registration = NodeRegistration(
        client,
        clock,
        _node_spec(settings, name, root, runtime, identity),
        lambda: [part.node_resources() for part in managers],
        lease_seconds=settings.node_lease_duration_seconds,
    )
    addresses = registration.spec.machine.addresses
    recorder = EventRecorder(client, clock, Source(COMPONENT, name))
    services = _services(identity)
    builder = LocalPodSetup(
        client, clock, root, lambda: DownwardContext(name, addresses, (), registration.allocatable, services)
    )
    # Filled below, as the managers are.
    local = LateParts()
    pinned = "static" in (settings.cpu_manager_policy, settings.memory_manager_policy.lower())
    agent = PodWorkers(
        lambda: NodeInfo(name, addresses, registration.labels, registration.allocatable),
        Dependencies(
            clock,
            runtime,
            builder,
            StatusManager(client, clock),
            recorder,
            Prober(runtime),
            managers,
            _timing(settings),
            verdicts,
            local.raised,
            local.pinning if pinned else None,
            ContainerStartMetrics(metrics),
        ),
    )
    await agent.start()
    resources = NodeParts(settings, root=str(root), name=name, client=client, clock=clock, metrics=metrics, agent=agent)
    managers += resources.managers
    verdicts.append(resources.local.manager.verdict)
    local.parts = resources.local
    registration.forget_resources = resources.is_new
    for manager in managers:
        manager.on_change(lambda uids: agent.resources_changed(uids) if uids else registration.resources_changed())
    resources.claims.on_driver(agent.try_again)
    resources.spawn(group)
    on_parts(resources)
    server = KubeletServer(agent, clock, builder.log_root, metrics.exposition)
    port = await server.start(settings.host, settings.port, serving_context(identity))
    version = f"{runtime.name}://{runtime.version}"
    registration.spec = replace(registration.spec, port=port, runtime_version=version)
    await registration.register()
    for work, what in (
        (_serve(server), "logs"),
        (recorder.run(), "events"),
        (agent.report(), "status"),
        (registration.run(), "node status"),
        (registration.renew_lease(), "node lease"),
        (agent.refresh(), "volumes"),
        (agent.keep_pinned(), "pinned containers"),
        (_watch_pods(client, clock, name, agent), "pods"),
    ):
        group.spawn(work, what)
    return agent, port


def _timing(settings: NodeSettings) -> Timing:
    return replace(
        Timing(),
        restart_backoff=settings.container_restart_backoff,
        restart_backoff_max=settings.max_container_restart_period,
        start_retry=min(Timing().start_retry, settings.container_restart_backoff),
    )


async def _watch_pods(client: Client, clock: Clock, name: str, agent: PodWorkers) -> None:
    informers = SharedInformerFactory(client, clock, random.Random())  # noqa: S311 - spreads load, guards nothing
    pods = informers.informer(PODS, Selection(field_selector=f"spec.nodeName={name}"))
    pods.add_handler(agent.pod_changed)
    async with TaskGroup("pods") as group:
        group.spawn(informers.run(), "informers")
        await pods.wait_for_sync()
        agent.synced()
        await group.wait()


async def _serve(server: KubeletServer) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await server.stop()


def make_runtime(settings: NodeSettings, root: Path, clock: Clock, cdi: CdiCache) -> Runtime:
    """The runtime that the settings name; the others are not even imported."""
    name, folder = settings.runtime, root / "containers"
    if name == "cri":
        from dray.node.runtimes.cri.runtime import CriRuntime

        return CriRuntime(settings.container_runtime_endpoint, node_name(settings), clock, cdi)
    if name != "process":
        from dray.node.runtimes.images.store import ImageStore
        from dray.node.runtimes.runc.runtime import RuncRuntime, usable

        if usable():
            return RuncRuntime(folder, clock, cdi, ImageStore(root / "images"))
        if name == "runc":
            raise SettingsError("--runtime=runc needs root, and runc on the PATH")
    from dray.node.runtimes.process.runtime import ProcessRuntime

    return ProcessRuntime(folder, clock, cdi)


def _node_spec(settings: NodeSettings, name: str, root: Path, runtime: Runtime, identity: NodeIdentity) -> NodeSpec:
    try:
        labels, taints = parse_labels(settings.node_labels), parse_taints(settings.register_with_taints)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    return NodeSpec(
        name=name,
        machine=read_machine(root, hostname=settings.node_name, address=settings.node_ip),
        runtime_version=f"{runtime.name}://{runtime.version}",
        labels=labels,
        annotations={FINGERPRINT_ANNOTATION: identity.fingerprint},
        taints=taints,
        pods_max=settings.max_pods,
    )


def _services(identity: NodeIdentity) -> dict[str, str]:
    """Where containers find the API server."""
    parts = urlsplit(identity.access.server)
    port = str(parts.port or 443)
    host = parts.hostname or ""
    return {
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": port,
        "KUBERNETES_SERVICE_PORT_HTTPS": port,
        "KUBERNETES_PORT": f"tcp://{host}:{port}",
        f"KUBERNETES_PORT_{port}_TCP": f"tcp://{host}:{port}",
        f"KUBERNETES_PORT_{port}_TCP_PROTO": "tcp",
        f"KUBERNETES_PORT_{port}_TCP_PORT": port,
        f"KUBERNETES_PORT_{port}_TCP_ADDR": host,
    }


def _make_folders(path: str) -> Path:
    """The layout that drivers and plugins expect."""
    root = Path(path).resolve()
    try:
        for name, mode in (
            ("plugins_registry", 0o755),
            ("plugins", 0o750),
            ("device-plugins", 0o750),
            ("pod-resources", 0o750),
            ("pods", 0o750),
            ("logs", 0o750),
        ):
            (root / name).mkdir(parents=True, exist_ok=True, mode=mode)
    except PermissionError as error:
        raise SettingsError(f"--root-dir: cannot write to {root}: run as root or name another folder") from error
    return root
