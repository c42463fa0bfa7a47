"""`dray up`: the API server, its controllers, the scheduler and, if asked for, nodes in one process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dray.api.document import Document
from dray.api.errors import APIError
from dray.api.persistent_volumes import DEFAULT_CLASS, LOCAL_PROVISIONER, WAIT_FOR_FIRST_CONSUMER
from dray.client.in_process import in_process_client
from dray.client.resources import NODES, SERVICE_ACCOUNTS, STORAGE_CLASSES
from dray.cmd import apiserver
from dray.cmd.apiserver import Running
from dray.cmd.containers import GRACE_SECONDS, end_containers, running_containers
from dray.cmd.local_clusters import (
    LocalCluster,
    LocalClusterError,
    check_name,
    clusters_root,
    context_name,
    read_record,
    start_ticks,
    write_record,
)
from dray.cmd.node_root import node_root, root_notice
from dray.cmd.settings import NodeSettings, UpSettings
from dray.runtime.disk_errors import explained_errors
from dray.runtime.settings import SettingsError
from dray.runtime.tasks import TaskGroup

if TYPE_CHECKING:
    from dray.cmd.node_agent import NodeAgent
    from dray.cmd.usage_recorder import RecordedUsage
    from dray.scheduler.config import SchedulerConfig
    from dray.sim.device_shapes import Wanted


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A running API server with its controllers and scheduler; further tasks may be spawned in the group."""

    server: Running
    group: TaskGroup
    # Of each simulated node.
    devices: tuple[Wanted, ...] = ()


@asynccontextmanager
async def running_control_plane(settings: UpSettings) -> AsyncIterator[ControlPlane]:
    """Run the control plane for the time of a `with` block; a failure of any part cancels the body and is raised."""
    # An invalid file is refused before anything starts.
    scheduler_config, devices = _read_scheduler_config(settings), _read_devices(settings)
    # Imported after the settings were read, so that invalid ones are refused at once.
    from dray.cmd.components import run_components
    from dray.cmd.usage_recorder import RecordedUsage
    from dray.scheduler.config import SchedulerConfig
    from dray.scheduler.decisions import DecisionLog

    decisions, contents = DecisionLog(), _read_start(settings)
    usage = RecordedUsage() if settings.usage_interval > 0 else None
    async with (
        apiserver.running(settings, decisions, contents, usage) as server,
        TaskGroup("control plane") as group,
    ):
        await _create_default_account(server)
        await _create_storage_class(server)
        own = replace(settings, allocate_node_cidrs=_allocates_ranges(settings))
        group.spawn(run_components(own, server, scheduler_config or SchedulerConfig(), decisions), "components")
        if usage is not None:
            _start_recorder(settings, group, server, usage)
        yield ControlPlane(server, group, devices)


async def run(settings: UpSettings, stop: asyncio.Event) -> None:
    """Serve until stopped; with --detach, let another process do so."""
    settings = _of_named_cluster(settings)
    if settings.detach:
        _start_detached(settings)
        return
    async with running_control_plane(settings) as plane:
        agent = await _start_nodes(settings, plane)
        try:
            merged = _merge_kubeconfig(settings, plane.server)
            _write_record(settings, plane.server, merged)
            apiserver.announce(plane.server)
            sys.stdout.write(_use_line(str(plane.server.kubeconfig), merged, context_name(settings.name)))
            sys.stdout.flush()
            await stop.wait()
            await apiserver.delay_shutdown(plane.server, settings)
            await plane.group.cancel()
        finally:
            if agent is not None:
                await agent.stop()
        if agent is not None and not settings.keep_containers:
            root = _node_root(settings, plane.server)
            await _end_containers(root)


async def _end_containers(root: Path) -> None:
    """End the containers of the node, whose agent has stopped, and say so."""
    count = len(running_containers(root))
    if not count:
        return
    name = "container" if count == 1 else "containers"
    sys.stderr.write(f"dray up: stopping {count} {name}, for at most {GRACE_SECONDS:.0f} seconds\n")
    left = await end_containers(root, GRACE_SECONDS)
    sys.stderr.write(f"dray up: {count - left} of {count} {name} stopped\n")


def _of_named_cluster(settings: UpSettings) -> UpSettings:
    """Return the settings with the data directory and the port of a named cluster, unless they are given."""
    if not settings.name:
        return settings
    try:
        check_name(settings.name)
    except LocalClusterError as error:
        raise SettingsError(f"--name: {error}") from error
    defaults = UpSettings()
    own: dict[str, Any] = {}
    if settings.data_dir == defaults.data_dir:
        own["data_dir"] = str(clusters_root() / settings.name)
    if settings.port == defaults.port:
        own["port"] = 0
    return replace(settings, **own)


def _start_detached(settings: UpSettings) -> None:
    # Imported only if needed.
    from dray.cmd.detached import DetachError, start_detached

    running = read_record(Path(settings.data_dir))
    if running is not None and running.is_running:
        raise SettingsError(f"the cluster in {settings.data_dir} runs already, as process {running.pid}")
    arguments = [word for word in sys.argv[1:] if word.partition("=")[0] != "--detach"]
    try:
        ready, log = start_detached(arguments, Path(settings.data_dir))
    except DetachError as error:
        raise SettingsError(str(error)) from error
    started = read_record(Path(settings.data_dir))
    sys.stdout.write(f"{ready}\n")
    if started is not None:
        sys.stdout.write(_use_line(started.kubeconfig, started.merged, started.context))
    name = f"--name={settings.name}" if settings.name else f"--data-dir={settings.data_dir}"
    sys.stdout.write(f"log {log}; stop it with: dray down {name}\n")


def _merge_kubeconfig(settings: UpSettings, server: Running) -> str:
    """Add a context for the cluster; return the file that has it, empty if none is wanted."""
    if not settings.name and not settings.kubeconfig:
        return ""
    # Imported only if needed.
    from dray.cmd.kubeconfig_merge import MergeError, add_context, default_path

    path = Path(settings.kubeconfig) if settings.kubeconfig else default_path()
    try:
        add_context(path, context_name(settings.name), server.kubeconfig)
    except MergeError as error:
        raise SettingsError(f"--kubeconfig: {error}") from error
    return str(path.resolve())


def _write_record(settings: UpSettings, server: Running, merged: str) -> None:
    """Note which process runs the cluster, for `dray down` and `dray status`."""
    pid, data_dir = os.getpid(), server.kubeconfig.parent
    root = str(_node_root(settings, server)) if settings.node else ""
    nodes = settings.nodes + settings.node
    cluster = LocalCluster(
        name=settings.name,
        data_dir=str(data_dir),
        pid=pid,
        start_ticks=start_ticks(pid),
        server=server.url,
        kubeconfig=str(server.kubeconfig),
        merged=merged,
        nodes=nodes,
        node_root=root,
    )
    with explained_errors(data_dir):
        write_record(cluster)


def _use_line(kubeconfig: str, merged: str, context: str) -> str:
    """Return how to use the cluster with kubectl."""
    return f'context "{context}" is the current one of {merged}\n' if merged else f"export KUBECONFIG={kubeconfig}\n"


def _read_scheduler_config(settings: UpSettings) -> SchedulerConfig | None:
    if not settings.scheduler_config and settings.scheduler_profile == "spread":
        return None
    # Imported only if needed: the scheduler's modules take time to load.
    from dray.scheduler.config_loader import read_config

    return read_config(settings.scheduler_config, settings.scheduler_profile)


def _read_devices(settings: UpSettings) -> tuple[Wanted, ...]:
    if not settings.devices:
        return ()
    if not settings.nodes:
        raise SettingsError("--devices are those of simulated nodes: specify their number, as in --nodes=4")
    # Imported only if needed.
    from dray.cmd.simulated_devices import read_devices

    return read_devices(settings.devices)


def _read_start(settings: UpSettings) -> list[Document]:
    if not settings.snapshot:
        return []
    # Imported only if needed.
    from dray.cmd.simulated_devices import read_start

    return read_start(settings.snapshot, Path(settings.data_dir))


async def _create_default_account(server: Running) -> None:
    """Create the service account that Pods of the default namespace need, so that they can be created at once."""
    client = in_process_client(
        server.local, user="system:kube-controller-manager", user_agent="kube-controller-manager"
    )
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "default"}}
    # It may exist already. After any other failure the controller tries again and reports it.
    with contextlib.suppress(APIError):
        await client.create(SERVICE_ACCOUNTS, account)


async def _create_storage_class(server: Running) -> None:
    """Create the default storage class, whose volumes are folders on the nodes."""
    storage_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "standard", "annotations": {DEFAULT_CLASS: "true"}},
        "provisioner": LOCAL_PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": WAIT_FOR_FIRST_CONSUMER,
    }
    # It may exist already, changed by its users.
    with contextlib.suppress(APIError):
        client = in_process_client(server.local, user="system:admin", groups=("system:masters",), user_agent="dray")
        await client.create(STORAGE_CLASSES, storage_class)


def _start_recorder(settings: UpSettings, group: TaskGroup, server: Running, usage: RecordedUsage) -> None:
    """Record what is in use, in the data directory."""
    from dray.cmd.usage_recorder import UsageRecorder

    client = in_process_client(server.local, user="system:admin", groups=("system:masters",), user_agent="dray")
    usage.recorder = UsageRecorder(
        client, server.clock, server.metrics, server.kubeconfig.parent, settings.usage_interval
    )
    group.spawn(usage.recorder.run(), "usage recorder")


def _allocates_ranges(settings: UpSettings) -> bool:
    return settings.allocate_node_cidrs or (settings.node and settings.node_pod_network == "routed")


async def _start_nodes(settings: UpSettings, plane: ControlPlane) -> NodeAgent | None:
    """Start the nodes of the settings; return when they are registered."""
    # Imported only if needed: the node agent loads gRPC.
    if settings.nodes or settings.snapshot:
        from dray.cmd.simulated_nodes import SimulatedNodes, Simulation

        client = in_process_client(
            plane.server.local, user="system:admin", groups=("system:masters",), user_agent="kubelet"
        )
        existing = tuple((await client.list(NODES.unstructured)).items) if settings.snapshot else ()
        simulation = Simulation(
            settings.nodes, start_seconds=settings.simulated_start, existing=existing, devices=plane.devices
        )
        registered = asyncio.Event()
        plane.group.spawn(SimulatedNodes(client, plane.server.clock, simulation).run(registered), "simulated nodes")
        await registered.wait()
    if not settings.node:
        return None
    if _allocates_ranges(settings):
        from dray.cmd.cluster_network import create_network_objects

        admin = in_process_client(
            plane.server.local, user="system:admin", groups=("system:masters",), user_agent="dray"
        )
        await create_network_objects(admin, settings.service_cluster_ip_range)
    return await _start_node(settings, plane)


def _node_root(settings: UpSettings, server: Running) -> Path:
    """Return the root directory of the node agent."""
    return node_root(settings.node_root_dir, server.pki.directory.parent, is_root=os.geteuid() == 0)


async def _start_node(settings: UpSettings, plane: ControlPlane) -> NodeAgent:
    from dray.cmd import node

    data_dir = plane.server.pki.directory.parent
    root = _node_root(settings, plane.server)
    if notice := root_notice(root, given=settings.node_root_dir, is_root=os.geteuid() == 0):
        sys.stderr.write(f"dray up: {notice}\n")
    own = NodeSettings(
        feature_gates=settings.feature_gates,
        data_dir=str(data_dir),
        root_dir=str(root),
        runtime=settings.node_runtime,
        container_runtime_endpoint=settings.node_container_runtime_endpoint,
        pod_network=settings.node_pod_network,
        cni_conf_dir=settings.node_cni_conf_dir,
        registry_config=settings.node_registry_config,
        cdi_spec_dirs=settings.node_cdi_spec_dirs,
        port=0,
        healthz_port=0,
    )
    agent, _ = await node.start_local(own, plane.group, plane.server.clock)
    return agent
