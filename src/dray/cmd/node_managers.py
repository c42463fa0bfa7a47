"""The resource managers of a node with their plugins and sockets, built from the agent's settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dray.client.interface import Client
from dray.cmd.settings import NodeSettings
from dray.lib.clock import Clock
from dray.node.agent.cpuset_reconciler import CpusetLookup
from dray.node.agent.pod_manager import PodManager
from dray.node.classic.claim_manager import ClassicClaimManager
from dray.node.devices.device_manager import DeviceSettings, NodePods
from dray.node.dra.claim_manager import CHECKPOINT_DAMAGED, ClaimManager
from dray.node.dra.dra_manager import DraManager, DraOptions
from dray.node.plugins.handler import PluginHandler
from dray.node.plugins.plugin_manager import PluginManager
from dray.node.pod_resources.server import PodResourcesServer
from dray.node.pod_resources.sources import Sources
from dray.node.pods_api.servicer import PodsServer
from dray.node.resource_manager import NodeResources, ResourceManager
from dray.node.topology.container_manager import ContainerManager, TopologySettings, make_container_manager
from dray.node.topology.hints import Policy, Scope
from dray.rpc.dra_services import DEVICE_PLUGIN, DRA_PLUGIN, RESOURCE_PLUGIN
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What the components of a node agent have in common."""

    settings: NodeSettings
    name: str
    root: Path
    client: Client
    clock: Clock
    metrics: Metrics


class NodeManagers:
    """The managers of claims, devices, CPUs and memory of one node."""

    def __init__(self, context: NodeContext, pods: PodManager) -> None:
        settings, gates, root = context.settings, context.settings.feature_gates, str(context.root)
        client, clock, metrics = context.client, context.clock, context.metrics
        self._pods = pods
        self._warn: Callable[[str, str], None] = lambda _reason, _message: None
        self._serves_plugins = gates.enabled("DevicePlugins")
        self._classic = ClassicClaimManager(client, root, clock, metrics, gates)
        options = DraOptions(gates, self._classic.has_claim)
        self._dra = DraManager(client, context.name, root, clock, metrics, options)
        self.container_manager: ContainerManager = make_container_manager(
            root,
            NodePods(
                pods,
                lambda: pods.synced,
                pods.settled_at_start,
                pods.orphans,
                pods.admitted_before,
                pods.found_at_start,
            ),
            clock,
            metrics,
            devices=_device_settings(settings),
            topology=_topology_settings(settings),
        )
        # A Pod passes through them in this order: classic claims come before others.
        self.all: Sequence[ResourceManager] = (*self._claim_managers, self.container_manager.manager)
        self.plugins = PluginManager(str(context.root / "plugins_registry"), self._plugin_handlers(), clock, metrics)
        container_manager = self.container_manager
        sources = Sources(
            pods,
            devices=container_manager.devices,
            cpus=container_manager.cpus,
            memory=container_manager.memory,
            claims=(self._classic, self._dra),
        )
        self._pod_resources = PodResourcesServer(root, sources, clock, metrics, gates)
        self._pods_api = PodsServer(root, pods, clock, metrics) if gates.enabled("PodsAPI") else None
        pods.on_removed(self.container_manager.devices.rebuild_owners)
        pods.on_removed(self._reconcile_claims)

    @property
    def _claim_managers(self) -> tuple[ClaimManager[Any], ...]:
        return (self._classic, self._dra)

    def _plugin_handlers(self) -> dict[str, PluginHandler]:
        handlers: dict[str, PluginHandler] = {DRA_PLUGIN: self._dra, RESOURCE_PLUGIN: self._classic}
        if self._serves_plugins:
            handlers[DEVICE_PLUGIN] = self.container_manager.devices.plugin_handler
        return handlers

    @property
    def is_new_node(self) -> bool:
        """Whether the node has no usable device checkpoint: its Node object may list resources that are gone."""
        return self.container_manager.devices.is_new

    @property
    def cpusets(self) -> CpusetLookup | None:
        """The CPUs and NUMA nodes of containers; None if no policy pins them."""
        manager = self.container_manager
        return None if manager.cpus is None and manager.memory is None else manager.cpuset_and_nodes

    def node_resources(self) -> list[NodeResources]:
        """Return what the managers add to the Node's capacity and allocatable."""
        return [manager.node_resources() for manager in self.all]

    def subscribe(
        self,
        on_change: Callable[[Sequence[str]], None],
        on_driver: Callable[[], None],
        warn: Callable[[str, str], None],
    ) -> None:
        """Call `on_change` as `ResourceManager.on_change` says, `on_driver` when a driver has registered.

        `warn` is called with the reasons and messages of Warning events about the node.
        """
        self._warn = warn
        self.container_manager.devices.on_warning(warn)
        for manager in self.all:
            manager.on_change(on_change)
        for claim_manager in self._claim_managers:
            claim_manager.on_driver(on_driver)

    def recover(self) -> None:
        """Read from the containers that there were at the start what lost checkpoints do not tell of claims."""
        for manager in self._claim_managers:
            problem = manager.recover(self._pods.found_at_start)
            if problem:
                self._warn(CHECKPOINT_DAMAGED, problem)

    def spawn(self, group: TaskGroup) -> None:
        """Run the managers in the group."""
        for manager in self._claim_managers:
            group.spawn(manager.run(self._pods.known_uids), manager.name)
        group.spawn(self.plugins.run(), "plugins")
        group.spawn(self._pod_resources.run(), "pod resources")
        if self._pods_api is not None:
            group.spawn(self._pods_api.run(), "pods API")
        if self._serves_plugins:
            group.spawn(self.container_manager.devices.run(), "device plugins")

    def _reconcile_claims(self) -> None:
        for manager in self._claim_managers:
            manager.reconcile_soon()


def _device_settings(settings: NodeSettings) -> DeviceSettings:
    return DeviceSettings(
        enabled=settings.feature_gates.enabled("DevicePlugins"),
        grace_seconds=settings.device_plugin_grace_period,
        fail_unhealthy=settings.unhealthy_devices == "fail",
        report_health=settings.feature_gates.enabled("ResourceHealthStatus"),
    )


def _topology_settings(settings: NodeSettings) -> TopologySettings:
    return TopologySettings(
        topology_manager_policy=Policy(settings.topology_manager_policy),
        topology_manager_scope=Scope(settings.topology_manager_scope),
        cpu_manager_policy=settings.cpu_manager_policy,
        reserved_cpus=settings.reserved_cpus,
        memory_manager_policy=settings.memory_manager_policy,
        reserved_memory=settings.reserved_memory,
        topology_file=settings.topology_file,
    )
