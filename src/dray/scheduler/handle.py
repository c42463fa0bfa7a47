"""The handle that plugins get from the scheduler when they are constructed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from dray.api.features import FeatureGates
from dray.api.types.core_v1 import Node, Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.client.interface import Client
from dray.client.shared_informers import SharedInformerFactory
from dray.framework.events import ClusterEvent
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import Plugin
from dray.framework.snapshot import Snapshot
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics


class WaitingPod(Protocol):
    """A Pod waiting at Permit until every plugin that made it wait has allowed it."""

    @property
    def pod(self) -> Pod:
        """Return the Pod."""

    @property
    def node_name(self) -> str:
        """Return the name of the node it will be bound to."""

    @property
    def pending_plugins(self) -> tuple[str, ...]:
        """Return the names of the plugins that have not allowed it yet."""

    def allow(self, plugin: str) -> None:
        """Allow the Pod on behalf of the plugin."""

    def reject(self, plugin: str, message: str) -> None:
        """Reject the Pod on behalf of the plugin; it is unreserved and requeued."""


class WaitingPods(Protocol):
    """The Pods waiting at Permit."""

    def get(self, uid: str) -> WaitingPod | None:
        """Return the Pod with the uid."""

    def all(self) -> tuple[WaitingPod, ...]:
        """Return all of them."""


class ExtendedResourceProvider(Protocol):
    """Serves extended resources by devices."""

    def serves_resource(self, name: str) -> bool:
        """Return whether devices serve the resource on nodes that do not have it themselves."""

    def device_usage(self, node: NodeInfo, name: str) -> tuple[int, int]:
        """Return how many of a node's devices that can serve the resource are in use, and how many there are."""


class ExtendedResources:
    """The extended resources that are served by devices: none without a provider."""

    def __init__(self) -> None:
        self._provider: ExtendedResourceProvider | None = None

    def register(self, provider: ExtendedResourceProvider) -> None:
        """Set the provider; called by DynamicResources, which may be created after the plugins that read."""
        self._provider = provider

    def serves_resource(self, name: str) -> bool:
        """Return whether devices serve the resource on nodes that do not have it themselves."""
        return self._provider is not None and self._provider.serves_resource(name)

    def device_usage(self, node: NodeInfo, name: str) -> tuple[int, int]:
        """Return how many of a node's devices that can serve the resource are in use, and how many there are."""
        return (0, 0) if self._provider is None else self._provider.device_usage(node, name)


def _ignore(*_arguments: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Handle:
    """What plugins get from the scheduler; one for all profiles, and immutable.

    Informers requested here are synced before the first attempt. A plugin that adds a handler to an informer while it
    is constructed receives each change before any queueing hint is called for it.
    """

    client: Client
    informers: SharedInformerFactory
    clock: Clock
    metrics: Metrics
    features: FeatureGates
    # The cluster as the current cycle sees it; updated in place between cycles.
    snapshot: Snapshot
    waiting_pods: WaitingPods
    # Requeues the Pods that an event (event, old, new) may help; for kinds that a plugin watches by itself.
    notify: Callable[[ClusterEvent, Any, Any], None] = _ignore
    # Moves a Pod, by uid, to the active queue.
    activate: Callable[[str], None] = _ignore
    # Record an Event (object, type, reason, message) of a Pod, a node or a claim.
    record: Callable[[Pod, str, str, str], None] = _ignore
    record_node: Callable[[Node, str, str, str], None] = _ignore
    record_claim: Callable[[ResourceClaim, str, str, str], None] = _ignore
    extended_resources: ExtendedResources = field(default_factory=ExtendedResources)
    # State that plugins of several profiles share; each key has one owner.
    shared: dict[str, Any] = field(default_factory=dict)


# Constructs a plugin from its `pluginConfig` args.
PluginFactory: TypeAlias = Callable[[Mapping[str, Any], Handle], Plugin]
