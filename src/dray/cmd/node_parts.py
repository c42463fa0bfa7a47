"""The resource managers of a node and their sockets, wired to its agent."""

from __future__ import annotations

from collections.abc import Mapping

from dray.api.document import UID
from dray.api.types.core_v1 import Pod
from dray.client.interface import Client
from dray.cmd.settings import NodeSettings
from dray.lib.clock import Clock
from dray.node.agent.claim_managers import ClaimManager, ClassicManager
from dray.node.agent.pod_workers import PodWorkers
from dray.node.classic.claim_manager import ClassicResources
from dray.node.devices.device_manager import DeviceSettings, NodePods
from dray.node.dra.manager import DynamicResources
from dray.node.plugins.handler import DEVICE_PLUGIN, DRA_PLUGIN, RESOURCE_PLUGIN, PluginHandler
from dray.node.plugins.plugin_manager import PluginManager
from dray.node.pod_resources.server import PodResourcesServer
from dray.node.pod_resources.sources import Sources
from dray.node.resource_manager import ResourceManager
from dray.node.topology.container_manager import ContainerManager, TopologySettings, make_container_manager
from dray.node.topology.hints import Policy, Scope
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup


class NodeParts:
    """Claims, device plugins, CPUs and memory of one node."""

    def __init__(  # noqa: PLR0913 - what a node is made of
        self,
        settings: NodeSettings,
        *,
        root: str,
        name: str,
        client: Client,
        clock: Clock,
        metrics: Metrics,
        agent: PodWorkers,
    ) -> None:
        gates = settings.feature_gates
        self._agent = agent
        self._dynamic = DynamicResources(client, name, root, clock, metrics, gates)
        self._serves_claims = gates.enabled("DynamicResourceAllocation")
        self._classic: ClassicResources | None = None
        if gates.enabled("DRAControlPlaneController"):
            self._classic = ClassicResources(client, root, clock, metrics)
        self.claims = ClaimManager(self._dynamic, self._classic)
        agent.on_gone = self._look_again
        self.local: ContainerManager = make_container_manager(
            root,
            NodePods(agent, lambda: agent.all_seen, agent.ran_before, agent.orphans),
            clock,
            metrics,
            devices=_devices(settings),
            topology=_topology(settings),
        )
        handlers: dict[str, PluginHandler] = {DRA_PLUGIN: self._dynamic}
        if self._classic is not None:
            handlers[RESOURCE_PLUGIN] = self._classic
        if self.local.devices is not None:
            handlers[DEVICE_PLUGIN] = self.local.devices.connections
        self.plugins = PluginManager(f"{root}/plugins_registry", handlers, clock, metrics)
        sources = Sources(
            agent, devices=self.local.devices, cpus=self.local.cpus, memory=self.local.memory, claims=self._dynamic
        )
        self._pod_resources = PodResourcesServer(root, sources, clock, metrics, gates)

    @property
    def is_new(self) -> bool:
        """Whether the node was set up anew, so that its Node object may tell of device plugins it does not have."""
        return self.local.devices is not None and self.local.devices.is_new

    @property
    def managers(self) -> list[ResourceManager]:
        """Whom the agent asks, in order: which claims are classic ones is known once their manager has been asked."""
        if not self._serves_claims:
            # Pods start without; what others hold from before is given back when they are gone.
            return [self.local.manager]
        first: list[ResourceManager] = [] if self._classic is None else [ClassicManager(self._classic)]
        return [*first, self.claims, self.local.manager]

    def _look_again(self) -> None:
        self._dynamic.look_again()
        if self._classic is not None:
            self._classic.look_again()

    def spawn(self, group: TaskGroup) -> None:
        """Run everything in the group."""
        group.spawn(self._dynamic.run(self._known), "claims")
        if self._classic is not None:
            group.spawn(self._classic.run(self._known), "classic claims")
        group.spawn(self.plugins.run(), "plugins")
        group.spawn(self._pod_resources.run(), "pod resources")
        if self.local.devices is not None:
            group.spawn(self.local.devices.run(), "device plugins")

    def _known(self) -> frozenset[UID] | None:
        if not self._agent.all_seen:
            return None
        known = (UID(pod.metadata.uid or "") for pod in self._agent.all())
        return frozenset(known).union(map(UID, self._agent.orphans()))


class LateParts:
    """What the agent asks of the node's parts, which are made after it."""

    parts: ContainerManager | None = None

    def pinning(self, pod: Pod, container: str) -> tuple[str, str]:
        """The CPUs and NUMA nodes of a container as the kernel writes them; empty means all."""
        if self.parts is None:
            return "", ""
        return self.parts.cpuset(pod, container), self.parts.memory_nodes(pod, container)

    def raised(self, pod: Pod, allocatable: Mapping[str, int]) -> Mapping[str, int]:
        """What a Pod is measured against."""
        return allocatable if self.parts is None else self.parts.manager.raised_allocatable(pod, allocatable)


def _devices(settings: NodeSettings) -> DeviceSettings | None:
    if not settings.feature_gates.enabled("DevicePlugins"):
        return None
    return DeviceSettings(
        grace_seconds=settings.device_plugin_grace_period,
        fail_unhealthy=settings.unhealthy_devices == "fail",
        report_health=settings.feature_gates.enabled("ResourceHealthStatus"),
    )


def _topology(settings: NodeSettings) -> TopologySettings:
    return TopologySettings(
        topology_manager_policy=Policy(settings.topology_manager_policy),
        topology_manager_scope=Scope(settings.topology_manager_scope),
        cpu_manager_policy=settings.cpu_manager_policy,
        reserved_cpus=settings.reserved_cpus,
        memory_manager_policy=settings.memory_manager_policy,
        reserved_memory=settings.reserved_memory,
        topology_file=settings.topology_file,
    )
