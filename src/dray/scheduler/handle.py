"""What the scheduler gives to its plugins when it makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from dray.api.features import FeatureGates
from dray.api.types.core_v1 import Node, Pod
from dray.client.interface import Client
from dray.client.shared_informers import SharedInformerFactory
from dray.framework.events import ClusterEvent
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import Plugin
from dray.framework.snapshot import Snapshot
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics


class WaitingPod(Protocol):
    """A Pod held at Permit; it goes on when every plugin that made it wait has allowed it."""

    @property
    def pod(self) -> Pod:
        """The Pod."""

    @property
    def node_name(self) -> str:
        """Where it is to go."""

    @property
    def pending_plugins(self) -> tuple[str, ...]:
        """Who has not yet allowed it."""

    def allow(self, plugin: str) -> None:
        """The plugin agrees."""

    def reject(self, plugin: str, message: str) -> None:
        """The plugin refuses; the Pod is unreserved and queued again."""


class WaitingPods(Protocol):
    """The Pods held at Permit."""

    def get(self, uid: str) -> WaitingPod | None:
        """One of them."""

    def all(self) -> tuple[WaitingPod, ...]:
        """All of them."""


def _nobody(_pod: Pod, _type: str, _reason: str, _message: str) -> None:
    """Events go nowhere until the scheduler has a recorder."""


@dataclass(slots=True)
class Handle:
    """One for all profiles. Informers asked for here are synced before the first Pod is tried.

    A plugin that adds its own handler to an informer while it is made hears of a change before any queueing hint
    is asked about it.
    """

    client: Client
    informers: SharedInformerFactory
    clock: Clock
    metrics: Metrics
    features: FeatureGates
    # The cluster of the current cycle: one object, brought up to date between cycles.
    snapshot: Snapshot
    waiting_pods: WaitingPods
    # Wakes the Pods that an event may help, told as (event, old, new); for kinds that a plugin follows by itself.
    notify: Callable[[ClusterEvent, Any, Any], None] = lambda _event, _old, _new: None
    # Has a Pod of a uid tried soon.
    activate: Callable[[str], None] = lambda _uid: None
    # Tells (pod, type, reason, message) as an Event.
    record: Callable[[Pod, str, str, str], None] = _nobody
    # Tells (node, type, reason, message) as an Event.
    record_node: Callable[[Node, str, str, str], None] = lambda _node, _type, _reason, _message: None
    # Whether devices can serve a resource on nodes that do not have it themselves; set by DynamicResources.
    serves_resource: Callable[[str], bool] = lambda _name: False
    # How many of a node's devices that can serve a resource are in use, and how many there are; set likewise.
    device_usage: Callable[[NodeInfo, str], tuple[int, int]] = lambda _node, _name: (0, 0)
    # For plugins that must share something with one another; each key has one owner.
    shared: dict[str, Any] = field(default_factory=dict)


# Makes a plugin from its `pluginConfig` args.
PluginFactory: TypeAlias = Callable[[Mapping[str, Any], Handle], Plugin]
