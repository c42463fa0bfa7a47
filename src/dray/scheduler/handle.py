"""The handle that plugins get from the scheduler when they are constructed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from dray.api.document import NamespacedName
from dray.api.features import FeatureGates
from dray.api.pod_groups import group_key_of
from dray.api.types.core_v1 import Node, Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.client.interface import Client
from dray.client.shared_informers import SharedInformerFactory
from dray.framework.events import ClusterEvent
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import Plugin
from dray.framework.pod_info import PodInfo
from dray.framework.snapshot import Snapshot
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics
from dray.scheduler.group_dry_run import GroupDryRun
from dray.scheduler.nominations import Nominations
from dray.scheduler.pod_groups import PodGroups
from dray.scheduler.profile import Profile


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

    def preempt(self, message: str) -> None:
        """End the attempt with an error, so that the Pod backs off and is tried again."""


class WaitingPods(Protocol):
    """The Pods waiting at Permit."""

    def get(self, uid: str) -> WaitingPod | None:
        """Return the Pod with the uid."""

    def all(self) -> tuple[WaitingPod, ...]:
        """Return all of them."""

    def __len__(self) -> int:
        """Return how many there are."""


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


def _none(*_arguments: object) -> None:
    return None


def _drop(work: Coroutine[Any, Any, Any], _name: str) -> object:
    work.close()
    return None


def _no_groups(*_arguments: object) -> Any:
    raise AssertionError("there are no groups")


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
    # Record that a Pod (victim, preemptor, the preemptor's schedulerName, message) was preempted.
    record_preempted: Callable[[Pod, Pod | PodGroup, str, str], None] = _ignore
    # Start a supervised task (coroutine, name) that runs beside the scheduling cycle.
    spawn: Callable[[Coroutine[Any, Any, Any], str], object] = _drop
    # Run PreEnqueue again for a gated Pod, by uid.
    recheck_gate: Callable[[str], None] = _ignore
    # Remove the nomination of a Pod, by uid, in memory and in its status, and try the Pod again.
    clear_nomination: Callable[[str], None] = _ignore
    # The same after a failed eviction: the Pod is tried again after a backoff.
    preemption_failed: Callable[[str], None] = _ignore
    # End the attempt of a Pod (uid, message) at Permit or in PreBind with an error; returns the event of its end, or
    # None if the Pod is being bound, or not at all.
    cancel_binding: Callable[[str, str], asyncio.Event | None] = _none
    # Returns the event that is set when the attempt of a Pod (uid) is ended that way; None without a binding cycle.
    binding_cancellation: Callable[[str], asyncio.Event | None] = _none
    extended_resources: ExtendedResources = field(default_factory=ExtendedResources)
    nominations: Nominations = field(default_factory=Nominations)
    pod_groups: PodGroups = field(default_factory=PodGroups)
    # Moves the waiting Pods of a group to the active queue.
    activate_group: Callable[[NamespacedName], None] = _ignore
    # Begins the dry run of a group (PodGroup, waiting Pods), in which Pods can be hidden; its nominations end.
    dry_run_group: Callable[[PodGroup, Sequence[PodInfo]], AbstractContextManager[GroupDryRun]] = _no_groups
    # By schedulerName; complete when all plugins are constructed.
    profiles: dict[str, Profile] = field(default_factory=dict)
    # State that plugins of several profiles share; each key has one owner.
    shared: dict[str, Any] = field(default_factory=dict)

    def waits_for_group(self, pod: Pod) -> bool:
        """Return whether the Pod's PodGroup does not exist; nobody creates claims for the Pod until it does."""
        key = group_key_of(pod)
        return key is not None and self.pod_groups.get(key) is None and self.features.enabled("GenericWorkload")


# Constructs a plugin from its `pluginConfig` args.
PluginFactory: TypeAlias = Callable[[Mapping[str, Any], Handle], Plugin]
