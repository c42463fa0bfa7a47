"""Places Pods with the scheduler's own code on objects in memory: no API server, no controllers, nothing is written.

A plan or a benchmark places thousands of Pods this way. The choices equal those of a scheduler that gets the same Pods
one after the other.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, cast

import msgspec

from dray.api.document import Document, NamespacedName
from dray.api.features import FeatureGates
from dray.api.types.core_v1 import Node, Pod
from dray.api.types.resource_v1 import (
    AllocationResult,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
)
from dray.client.indexer import IndexFunction
from dray.client.informer import Informer, Selection
from dray.client.interface import Client, Deletion, EventType, ListPage, Resource, WatchEvent
from dray.client.objects import key_of
from dray.client.resources import NODES, PODS, RESOURCE_CLAIMS
from dray.client.shared_informers import EVERYTHING, SharedInformer, SharedInformerFactory
from dray.framework.cycle_state import CycleState
from dray.framework.plugins import RESERVE, PreFilterResult
from dray.framework.pod_info import PodInfo
from dray.framework.snapshot import Snapshot
from dray.framework.status import SKIP, SUCCESS, Status
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics
from dray.scheduler.binder import WaitingPodsMap
from dray.scheduler.cache import Cache
from dray.scheduler.config import PluginSet, ProfileConfig
from dray.scheduler.cycle import Cycle, Placement
from dray.scheduler.diagnosis import Diagnosis
from dray.scheduler.handle import Handle, PluginFactory
from dray.scheduler.nominations import Nominations
from dray.scheduler.plugins.dynamic_resources.device_filter import NAME as DYNAMIC_RESOURCES
from dray.scheduler.plugins.dynamic_resources.device_state import device_state_of
from dray.scheduler.plugins.dynamic_resources.extended_resources import status_of
from dray.scheduler.plugins.dynamic_resources.pod_state import PodState
from dray.scheduler.profile import Profile
from dray.scheduler.registry import BUILT_IN, make_profile

T = TypeVar("T")

_START: Final = datetime(2026, 1, 1, tzinfo=UTC)
_FIRST_VERSION: Final = "0"


class _StoppedClock:
    """Implements `dray.lib.clock.Clock`: no time passes while a plan is computed."""

    def now(self) -> datetime:
        """Return a fixed time."""
        return _START

    def monotonic(self) -> float:
        """Return a fixed time."""
        return 0.0

    async def sleep(self, seconds: float) -> None:
        """Fail: nothing waits here."""
        raise NotImplementedError(f"sleep {seconds} without a clock")


class LocalInformers(SharedInformerFactory):
    """Informers whose objects are given by `put` and `remove` instead of listed from a server."""

    def __init__(self, clock: Clock) -> None:
        # Plugins only pass the client on, to writers that are not used.
        super().__init__(cast("Client", None), clock, random.Random(0))  # noqa: S311 - repeatable, guards nothing
        self._clock = clock
        self._fed: dict[Resource[Any], tuple[Informer[Any], SharedInformer[Any]]] = {}
        self._version = 0

    def informer(
        self,
        resource: Resource[T],
        selection: Selection = EVERYTHING,
        *,
        indexes: Mapping[str, IndexFunction] | None = None,
        watch_list: bool = False,
    ) -> SharedInformer[T]:
        """Return the informer of the resource; it has every given object, whatever the selection."""
        if resource not in self._fed:
            informer: Informer[T] = Informer(selection, random.Random(0), watch_list=watch_list)  # noqa: S311
            informer.start()
            informer.page_received(ListPage((), _FIRST_VERSION))
            self._fed[resource] = informer, SharedInformer(cast("Client", None), resource, informer, self._clock)
        shared = self._fed[resource][1]
        for name, function in (indexes or {}).items():
            shared.add_index(name, function)
        return shared

    def put(self, resource: Resource[T], obj: T) -> T:
        """Add or replace an object; return it with its new resource version."""
        self._version += 1
        version = str(self._version)
        given = cast("Any", obj)
        metadata = msgspec.structs.replace(given.metadata, resource_version=version)
        new: T = msgspec.structs.replace(given, metadata=metadata)
        self._apply(resource, new)
        return new

    def put_document(self, resource: Resource[Document], document: Document) -> None:
        """Add or replace an object of an untyped resource."""
        self._version += 1
        metadata = {**document["metadata"], "resourceVersion": str(self._version)}
        self._apply(resource, {**document, "metadata": metadata})

    def remove(self, resource: Resource[T], obj: T) -> None:
        """Remove an object."""
        self._version += 1
        self.informer(resource)
        self._fed[resource][0].batch_received([Deletion(key_of(obj), str(self._version))])

    def _apply(self, resource: Resource[T], obj: T) -> None:
        self.informer(resource)
        event = WatchEvent(EventType.MODIFIED, obj, key_of(obj), str(self._version))
        self._fed[resource][0].batch_received([event])


class OnlyNode:
    """A plugin that keeps a Pod to one node, if it is to be tried there; implements PreFilter."""

    name = "OnlyNode"

    def __init__(self) -> None:
        # Empty for all nodes.
        self.node_name = ""

    def pre_filter(self, _state: CycleState, _pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Return the node."""
        return (PreFilterResult(frozenset((self.node_name,))), SUCCESS) if self.node_name else (None, SKIP)


class PlacedPod(msgspec.Struct, frozen=True):
    """A Pod on its node, with its claims as allocated."""

    pod: Pod
    claims: tuple[ResourceClaim, ...]
    feasible_nodes: int
    # Claims that exist without the Pod, and were allocated for it or for another Pod that was placed.
    shared: tuple[ResourceClaim, ...] = ()


class _SharedClaim(msgspec.Struct):
    """A claim that exists without Pods, as allocated for the first of its users that was placed."""

    claim: ResourceClaim
    # Uids of Pods; the last one that is removed takes the allocation with it.
    users: set[str]


class Placer:
    """Nodes, devices and Pods in memory, and the profiles of the scheduler that place further Pods."""

    def __init__(
        self,
        config: ProfileConfig | None = None,
        gates: FeatureGates | None = None,
        factories: Mapping[str, PluginFactory] = BUILT_IN,
        others: Sequence[ProfileConfig] = (),
    ) -> None:
        clock = _StoppedClock()
        self.informers = LocalInformers(clock)
        self.snapshot = Snapshot()
        self._cache = Cache()
        self.nominations = Nominations()
        self._cycle = Cycle(self.snapshot, self.nominations)
        handle = Handle(
            cast("Client", None),
            self.informers,
            clock,
            Metrics(),
            gates or FeatureGates(),
            self.snapshot,
            WaitingPodsMap(),
        )
        self._only = only = OnlyNode()
        factories = {**factories, only.name: lambda _args, _handle: only}
        # Of Pods whose scheduler has no profile of its own.
        self.profile = make_profile(_with_plugin(config or ProfileConfig(), only.name), factories, handle)
        self._profiles = {
            item.scheduler_name: make_profile(_with_plugin(item, only.name), factories, handle) for item in others
        }
        self.devices = device_state_of(handle)
        self.pod_groups = handle.pod_groups
        self.informers.informer(NODES).add_handler(self._node_changed)
        self._placed: dict[str, PlacedPod] = {}
        self._shared: dict[NamespacedName, _SharedClaim] = {}

    def profile_of(self, pod: Pod) -> Profile:
        """Return the profile of the Pod's scheduler."""
        return self._profiles.get(pod.spec.scheduler_name or "", self.profile)

    # --- The cluster. ---

    def put(self, resource: Resource[T], obj: T) -> T:
        """Add or replace a node, slice, class, claim or other object."""
        return self.informers.put(resource, obj)

    def add(self, pod: Pod, claims: Iterable[ResourceClaim] = (), shared: Iterable[ResourceClaim] = ()) -> None:
        """Add a Pod that has a node, with its allocated claims."""
        known = tuple(self.put(RESOURCE_CLAIMS, claim) for claim in claims)
        for claim in shared:
            if key_of(claim) not in self._shared:
                self._shared[key_of(claim)] = _SharedClaim(self.put(RESOURCE_CLAIMS, claim), set())
        self._cache.set_pod(pod)
        self.informers.put(PODS, pod)
        self._placed[pod.metadata.uid or ""] = PlacedPod(pod, known, 0, self._use_shared(pod))

    def remove_node(self, node: Node) -> None:
        """Remove a node; its Pods and slices stay until they are removed."""
        self.informers.remove(NODES, node)

    def update_snapshot(self) -> None:
        """Bring the snapshot of nodes up to date."""
        self._cache.update_snapshot(self.snapshot)

    def remove(self, uid: str) -> PlacedPod:
        """Remove a Pod and its claims."""
        placed = self._placed.pop(uid)
        self._cache.remove_pod(uid)
        self.informers.remove(PODS, placed.pod)
        for claim in placed.claims:
            self.informers.remove(RESOURCE_CLAIMS, claim)
        for claim in placed.shared:
            shared = self._shared[key_of(claim)]
            shared.users.discard(uid)
            if not shared.users:
                del self._shared[key_of(claim)]
                self.put(RESOURCE_CLAIMS, msgspec.structs.replace(claim, status=ResourceClaimStatus()))
        return placed

    def _use_shared(self, pod: Pod) -> tuple[ResourceClaim, ...]:
        """Record the Pod as a user of the claims that were allocated for Pods placed here; return those."""
        found = [self._shared[key] for key in _named_claims(pod) if key in self._shared]
        for shared in found:
            shared.users.add(pod.metadata.uid or "")
        return tuple(shared.claim for shared in found)

    @property
    def placed(self) -> Mapping[str, PlacedPod]:
        """Return the Pods on nodes, by uid."""
        return self._placed

    # --- Placing. ---

    def place(self, pod: Pod, claims: Sequence[ResourceClaim] = (), *, on: str = "") -> PlacedPod | Diagnosis:
        """Place a Pod with its new claims, or say why no node is feasible; then nothing of it stays.

        With `on`, only that node is tried. Raises `AttemptError` if the scheduler's attempt ends with an error, for
        instance of a selector.
        """
        pending = [self.put(RESOURCE_CLAIMS, claim) for claim in claims]
        self.informers.put(PODS, pod)
        state = CycleState(PodInfo(pod))
        self.update_snapshot()
        self._only.node_name = on
        found: Placement | Diagnosis | None = None
        try:
            found = self._cycle.place(self.profile_of(pod), state)
        finally:
            self._only.node_name = ""
            if not isinstance(found, Placement):
                self.informers.remove(PODS, pod)
                for claim in pending:
                    self.informers.remove(RESOURCE_CLAIMS, claim)
        if isinstance(found, Placement):
            return self._commit(state, found, pending)
        # The other nodes were not tried.
        return replace(found, node_count=1, absent=None if found.statuses else found.absent) if on else found

    @contextmanager
    def waiting(self, pod: Pod, claims: Sequence[ResourceClaim]) -> Iterator[None]:
        """Let a Pod without a node, and its new claims, exist for the time of the block."""
        pending = [self.put(RESOURCE_CLAIMS, claim) for claim in claims]
        self.informers.put(PODS, pod)
        try:
            yield
        finally:
            self.informers.remove(PODS, pod)
            for claim in pending:
                self.informers.remove(RESOURCE_CLAIMS, claim)

    def _commit(self, state: CycleState, placement: Placement, own_claims: Iterable[ResourceClaim]) -> PlacedPod:
        node_name, info = placement.node_name, state.pod_info
        assumed = state.pod_on(node_name)
        self._cache.assume(assumed, node_name)
        for plugin in self.profile_of(info.pod).at(RESERVE):
            status = plugin.reserve(state, assumed.pod, node_name)
            assert status.is_success, f"{plugin.name} accepted node {node_name} and then not: {status.message}"
        own: PodState | None = state.get(DYNAMIC_RESOURCES)
        written = {key_of(claim): claim for claim in self._allocated(own, assumed.pod, node_name)}
        given = {key_of(claim) for claim in own_claims}
        for key in _named_claims(assumed.pod):
            if key in written and key not in given:
                self._shared[key] = _SharedClaim(written.pop(key), set())
        pod = _with_extended_claim(assumed.pod, own)
        self._cache.set_pod(pod)
        self.informers.put(PODS, pod)
        shared = self._use_shared(pod)
        placed = self._placed[info.uid] = PlacedPod(pod, tuple(written.values()), placement.feasible, shared)
        return placed

    def _allocated(self, own: PodState | None, pod: Pod, node_name: str) -> Iterable[ResourceClaim]:
        """Observe the claims as the scheduler would have written them."""
        if own is None:
            return
        chosen = own.binding.chosen
        allocations = own.results.allocations.get(node_name, ())
        for claim, allocation in zip(chosen.claims[: chosen.count], allocations, strict=False):
            written = self.put(RESOURCE_CLAIMS, _reserved(claim, allocation, pod))
            self.devices.tracker.end_in_flight(claim, pod.metadata.uid or "")
            yield written

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is not None:
            self._cache.set_node(new)
        elif old is not None:
            self._cache.remove_node(old.metadata.name or "")


def _with_plugin(config: ProfileConfig, name: str) -> ProfileConfig:
    """Return the profile with one more plugin."""
    enabled = PluginSet((*config.multi_point.enabled, (name, 0)), config.multi_point.disabled)
    return replace(config, multi_point=enabled)


def _named_claims(pod: Pod) -> dict[NamespacedName, None]:
    """Return the claims that the Pod names in its spec, in order."""
    namespace = pod.metadata.namespace or ""
    names = [entry.resource_claim_name for entry in pod.spec.resource_claims if entry.resource_claim_name]
    return {NamespacedName(namespace, name): None for name in names}


def _with_extended_claim(pod: Pod, own: PodState | None) -> Pod:
    """Return the Pod with the claim for its extended resources in its status, as the scheduler writes it."""
    if own is None or own.binding.chosen.extended_claim is None:
        return pod
    extended = status_of(own.binding.chosen.extended_claim.metadata.name or "", own.binding.chosen.wanted)
    status = msgspec.structs.replace(pod.status, extended_resource_claim_status=extended)
    return msgspec.structs.replace(pod, status=status)


def _reserved(claim: ResourceClaim, allocation: AllocationResult, pod: Pod) -> ResourceClaim:
    user = ResourceClaimConsumerReference(resource="pods", name=pod.metadata.name or "", uid=pod.metadata.uid or "")
    status = msgspec.structs.replace(claim.status, allocation=allocation, reserved_for=(user,))
    return msgspec.structs.replace(claim, status=status)
