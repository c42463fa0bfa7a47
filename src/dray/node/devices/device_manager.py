"""The device manager: allocates devices of device plugins to containers.

The owner runs `run`, registers `plugin_handler` as the handler of `DevicePlugin` plugins, and passes the object to the
`TopologyManager`. Assignments are restored from the checkpoint on construction.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import grpc.aio

from dray.api.codec import to_document
from dray.api.document import Document
from dray.api.extended_resources import is_extended_resource_name
from dray.api.pod_claims import TERMINAL_PHASES
from dray.api.types.core_v1 import Container, Pod
from dray.lib.clock import Clock
from dray.node.checkpoint_file import CheckpointFile
from dray.node.devices import checkpoint
from dray.node.devices.allocator import (
    AllocationRequest,
    AskPreference,
    CallAllocate,
    DeviceAllocator,
    Refused,
)
from dray.node.devices.assignments import NO_NUMA_NODE, Assignment, AssignmentKey, container_request, pod_request
from dray.node.devices.device_selection import PreferenceRequest
from dray.node.devices.endpoint import Endpoint, EndpointError
from dray.node.devices.files import load_checkpoint, make_folder, remove_sockets
from dray.node.devices.inventory import Inventory, in_order
from dray.node.devices.owners import ANNOTATION, configured, note, rebuild, reported
from dray.node.devices.plugin_handler import DEFAULT_LIVENESS, DevicePluginHandler, Liveness
from dray.node.devices.responses import merge_responses, resource_statuses, run_options, unhealthy_device
from dray.node.devices.servicer import DeviceMetrics, Registration
from dray.node.resource_manager import (
    UNEXPECTED_ADMISSION_ERROR,
    NodeResources,
    PodSource,
    Rejection,
    ResourceError,
    RunOptions,
)
from dray.node.runtimes.runtime import ContainerRecord
from dray.node.topology.containers import containers_of, reusable
from dray.node.topology.hint_provider import AllocationError, PodReservations, PreferenceNeededError
from dray.node.topology.hints import NUMA_NODES_MAX, Hint
from dray.rpc.sockets import listen
from dray.runtime.logs import fields
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import CoalescedCall, KeyedLocks, TaskGroup, pause

_log = logging.getLogger(__name__)

SOCKET_NAME: Final = "kubelet.sock"
# kubelet's reason for the event of a container that cannot start.
FAILED_TO_START: Final = "Failed"
# The reasons of the Node's events after a lost checkpoint.
CHECKPOINT_DAMAGED: Final = "DeviceCheckpointDamaged"
NOT_ATTRIBUTED: Final = "DevicesNotAttributed"
_SERVER_STOP_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """Settings of the device manager."""

    # The feature gate DevicePlugins. When disabled, no plugin can register: Pods keep the devices that they have, and
    # the Node reports the resources as zero, so that no others come.
    enabled: bool = True
    # How long a resource keeps its capacity without its plugin; 0 drops it at once, as in KEP-3573.
    grace_seconds: float = 300.0
    # Whether an unhealthy device fails the Pod that uses it, as in KEP-3573; otherwise, as in Kubernetes, its health is
    # only reported.
    fail_unhealthy: bool = True
    # Whether `allocatedResourcesStatus` includes devices (feature gate ResourceHealthStatus).
    report_health: bool = True
    liveness: Liveness = DEFAULT_LIVENESS
    # The set of the machine's NUMA nodes.
    machine: int = (1 << NUMA_NODES_MAX) - 1


DEFAULT_SETTINGS: Final = DeviceSettings()


@dataclass(frozen=True, slots=True)
class NodePods:
    """The node's Pods; until `ready` they are not all known, and nothing is freed."""

    source: PodSource
    ready: Callable[[], bool] = lambda: True
    # Containers that were running or had completed when the agent started, as (Pod UID, name).
    settled: Collection[tuple[str, str]] = ()
    # UIDs of deleted Pods whose containers may still run.
    orphans: Callable[[], Collection[str]] = lambda: ()
    # The UIDs of Pods that an earlier agent has admitted; they are not rejected.
    admitted_before: Collection[str] = ()
    # The runs of containers that there were when the agent started.
    found: Sequence[ContainerRecord] = ()

    def holders(self) -> frozenset[str] | None:
        """Return the UIDs of Pods that may hold resources: all but finished ones; None while not all Pods are known."""
        if not self.ready():
            return None
        live = [pod.metadata.uid or "" for pod in self.source.all() if pod.status.phase not in TERMINAL_PHASES]
        return frozenset(live).union([pod.metadata.uid or "" for pod in self.source.active()], self.orphans())


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """A device for PodResources; a device with several NUMA nodes has an entry for each."""

    resource: str
    id: str
    numa_node: int | None


class DevicePreferenceNeededError(PreferenceNeededError):
    """A plugin must be asked which devices it prefers."""

    def __init__(self, slot: AssignmentKey, question: PreferenceRequest) -> None:
        super().__init__(f"{slot}: {question}")
        self.slot = slot
        self.question = question


class OwnersNeededError(PreferenceNeededError):
    """Nothing can be allocated until it is known who has which devices."""

    def __init__(self, pod_uid: str) -> None:
        super().__init__(pod_uid)
        self.pod_uid = pod_uid


class DeviceManager(PodReservations):
    """See the module."""

    def __init__(
        self,
        folder: str,
        pods: NodePods,
        clock: Clock,
        metrics: Metrics,
        settings: DeviceSettings = DEFAULT_SETTINGS,
    ) -> None:
        self._folder = folder
        super().__init__(pods.holders)
        self._pods = pods
        self._clock = clock
        self._metrics = DeviceMetrics(metrics)
        self._settings = settings
        path = os.path.join(folder, checkpoint.FILE_NAME)
        self._file = CheckpointFile(path)
        loaded = load_checkpoint(path)
        # Without a checkpoint the extended resources of an existing Node object are outdated.
        self.is_new = loaded.state is None
        # Containers from before may have devices of any resource that the checkpoint does not tell.
        self._lost = not loaded.is_newest
        self._damage = loaded.damage
        # Set when it is known who has which devices; until then nothing is allocated, and nothing is saved.
        self._owners_known = asyncio.Event()
        if not self._lost:
            self._owners_known.set()
        saved = checkpoint.Checkpoint() if loaded.state is None else loaded.state
        inventory = Inventory(settings.grace_seconds if settings.enabled else math.inf)
        inventory.restore(saved.registered, clock.monotonic())
        self._allocator = DeviceAllocator(inventory, saved.assigned, settings.machine)
        # Registers plugins of both kinds of registration; the handler of type `DevicePlugin`.
        self.plugin_handler = DevicePluginHandler(
            inventory, clock, self._devices_changed, settings.liveness, self._warn
        )
        # By Pod: allocations at the start of containers.
        self._locks = KeyedLocks()
        # The answers of plugins about devices that are not reserved yet.
        self._preferences: dict[AssignmentKey, Sequence[str]] = {}
        # The call that each Pod waits for.
        self._waits: dict[str, str] = {}
        self._saves = CoalescedCall(self._write)
        self._written = checkpoint.Written()
        # The Pods with assignments that are not saved yet, perhaps because that failed.
        self._unsaved: set[str] = set()
        self._listeners: list[Callable[[Sequence[str]], None]] = []
        self._warning_listeners: list[Callable[[str, str], None]] = []
        self._group: TaskGroup | None = None
        self._started = asyncio.Event()
        self._wake = asyncio.Event()

    # --- Running. ---

    async def run(self) -> None:
        """Serve registration until cancelled; sockets of plugins from before are removed so that they come again."""
        make_folder(self._folder)
        remove_sockets(self._folder)
        server = grpc.aio.server()
        Registration(self._folder, self.plugin_handler.connect, self._metrics).add_to(server)
        async with TaskGroup("device plugins") as group:
            self._group = self.plugin_handler.group = group
            try:
                await listen(server, os.path.join(self._folder, SOCKET_NAME))
                self._started.set()
                await self._expire_forever()
            finally:
                self._group = self.plugin_handler.group = None
                self._started.clear()
                await server.stop(_SERVER_STOP_SECONDS)
                await self.plugin_handler.stop()

    async def wait_started(self) -> None:
        """Return when plugins can register."""
        await self._started.wait()

    async def _expire_forever(self) -> None:
        while True:
            self._wake.clear()
            due = self._allocator.inventory.next_expiry
            await pause(self._clock, self._wake, None if due is None else due - self._clock.monotonic())
            if self._allocator.inventory.expire(self._clock.monotonic()):
                await self._save_or_log()
                self._notify(())

    # --- Owners after a lost checkpoint. ---

    def rebuild_owners(self) -> None:
        """Find out who has which devices, if the checkpoint does not tell and all Pods are known.

        Containers without Pod are waited for if nothing tells what they have.
        """
        if self._owners_known.is_set() or not self._pods.ready():
            return
        orphans = self._pods.orphans()
        if any(item.pod_uid in orphans and ANNOTATION not in item.annotations for item in self._pods.found):
            return
        live = [pod for pod in self._pods.source.all() if pod.status.phase not in TERMINAL_PHASES]
        for slot, assignment in rebuild(self._pods.found, live, self._may_manage):
            # What the checkpoint before the last tells is older.
            if assignment.is_complete or self._allocator.assignments.get(slot) is None:
                self._allocator.assignments.put(slot, assignment)
        self._owners_known.set()
        for resource in self._allocator.assignments.resources():
            self._attribute(resource)
        if self._damage:
            self._warn(CHECKPOINT_DAMAGED, f"{self._damage}; who has which devices was read from the containers")
        for resource in self._allocator.assignments.resources():
            self._warn_of_unknown(resource)
        self._spawn(self._save_or_log(), "checkpoint")
        self._notify(())

    def _attribute(self, resource: str) -> bool:
        """Assign the devices that the configuration of containers names where nothing else tells; return if any are."""
        assignments, found = self._allocator.assignments, False
        unknown = assignments.unknown(resource)
        if not unknown:
            return False
        records = {(item.pod_uid, item.name): item for item in self._pods.found if item.exit is None}
        for slot in unknown:
            pod, record = self._pods.source.get(slot.pod_uid), records.get((slot.pod_uid, slot.container))
            if pod is None or record is None:
                continue
            container = next(item for item in containers_of(pod) if item.name == slot.container)
            wanted = container_request(pod, container, self._may_manage).get(resource)
            listed = self._allocator.inventory.devices(resource).keys()
            ids = configured(record, pod, listed - assignments.in_use(resource))
            if len(ids) == wanted:
                assignments.put(slot, Assignment({NO_NUMA_NODE: tuple(sorted(ids))}, None))
                found = True
        return found

    def _warn_of_unknown(self, resource: str) -> None:
        unknown = self._allocator.assignments.unknown(resource)
        if unknown:
            who = sorted(f"{self._name_of(slot.pod_uid)} (container {slot.container})" for slot in unknown)
            text = (
                f"the devices of {resource} that Pods have are not known: {', '.join(who)}; until their containers "
                "have ended, no other device of the resource is allocated"
            )
            self._warn(NOT_ATTRIBUTED, text)

    def _name_of(self, pod_uid: str) -> str:
        pod = self._pods.source.get(pod_uid)
        return pod_uid if pod is None else f"{pod.metadata.namespace}/{pod.metadata.name}"

    def _check_owners(self, pod: Pod, containers: Iterable[Container]) -> None:
        """Raise `OwnersNeededError` if a container needs devices, and it is not known yet which are free."""
        self.rebuild_owners()
        if not self._owners_known.is_set() and any(self._missing(pod, container) for container in containers):
            raise OwnersNeededError(pod.metadata.uid or "")

    async def _wait_for_owners(self, pod_uid: str) -> None:
        self._waits[pod_uid] = "waiting until it is known which devices the running containers have"
        try:
            await self._owners_known.wait()
        finally:
            del self._waits[pod_uid]

    # --- Devices. ---

    async def _devices_changed(self, resource: str, ids: frozenset[str], *, save: bool) -> None:
        if (self._owners_known.is_set() and self._attribute(resource)) or save:
            await self._save_or_log()
        self._wake.set()
        self._notify(())
        users = self._allocator.assignments.users_of(resource, ids)
        if users:
            self._notify(sorted(users))

    def on_change(self, listener: Callable[[Sequence[str]], None]) -> None:
        """Call the listener with the UIDs of Pods whose devices' health changed; none means the Node's resources."""
        self._listeners.append(listener)

    def on_warning(self, listener: Callable[[str, str], None]) -> None:
        """Call the listener with the reasons and messages of Warning events about the node."""
        self._warning_listeners.append(listener)

    def _warn(self, reason: str, message: str) -> None:
        for listener in self._warning_listeners:
            listener(reason, message)

    def _notify(self, uids: Sequence[str]) -> None:
        for listener in self._listeners:
            listener(uids)

    # --- What the Node has. ---

    def node_resources(self) -> NodeResources:
        """Return capacity and allocatable of every resource that a device plugin has or had."""
        capacity, allocatable = self._allocator.inventory.amounts()
        for resource, amount in allocatable.items():
            allocatable[resource] = min(amount, self._allocatable_max(resource))
        return NodeResources(
            {name: str(amount) for name, amount in capacity.items()},
            {name: str(amount) for name, amount in allocatable.items()},
        )

    def _allocatable_max(self, resource: str) -> int:
        """Return how many devices Pods can have: if it is not known which are free, as many as are in use."""
        unknown = self._allocator.assignments.unknown(resource)
        if not unknown:
            return sys.maxsize
        amounts = [
            container_request(pod, container, self._may_manage).get(resource, 0)
            for slot in unknown
            if (pod := self._pods.source.get(slot.pod_uid)) is not None
            for container in containers_of(pod)
            if container.name == slot.container
        ]
        return len(self._allocator.assignments.in_use(resource)) + sum(amounts)

    def effective_allocatable(self, pod: Pod, allocatable: Mapping[str, int]) -> dict[str, int]:
        """Return the allocatable resources for admission; for a Pod that has devices, at least the devices in use."""
        raised = dict(allocatable)
        if self._allocator.assignments.of_pod(pod.metadata.uid or ""):
            for resource in sorted(self._allocator.assignments.resources()):
                raised[resource] = max(raised.get(resource, 0), len(self._allocator.in_use(resource)))
        return raised

    # --- Handing out: a hint provider. ---

    def _holders(self) -> Sequence[str]:
        return self._allocator.assignments.pod_uids()

    def _free(self, pod_uid: str) -> bool:
        for slot in [slot for slot in self._preferences if slot.pod_uid == pod_uid]:
            del self._preferences[slot]
        self._unsaved.discard(pod_uid)
        return self._allocator.free_pod(pod_uid)

    def hints(self, pod: Pod, container: Container) -> dict[str, Sequence[Hint] | None]:
        """Return hints for the container's devices, by resource."""
        uid = pod.metadata.uid or ""
        self._check_owners(pod, self._unsettled(pod, [container]))
        return {
            resource: self._allocator.hints(
                resource,
                amount,
                self._held(uid, container.name, resource),
                self._reusable(pod, container.name, resource),
            )
            for resource, amount in container_request(pod, container, self._allocator.knows).items()
        }

    def pod_hints(self, pod: Pod) -> dict[str, Sequence[Hint] | None]:
        """Return hints for the devices of all containers, by resource."""
        self._check_owners(pod, self._unsettled(pod, containers_of(pod)))
        held: dict[str, frozenset[str]] = {}
        for slot, assignment in self._allocator.assignments.of_pod(pod.metadata.uid or ""):
            held[slot.resource] = held.get(slot.resource, frozenset()) | assignment.ids
        return {
            resource: self._allocator.hints(resource, amount, held.get(resource, frozenset()), frozenset())
            for resource, amount in pod_request(pod, self._allocator.knows).items()
        }

    def reserve(self, pod: Pod, container: Container, affinity: int | None) -> None:
        """Reserve the container's devices; raises `AllocationError` or `PreferenceNeededError`.

        A Pod that was admitted before an agent restart gets what is missing when its container starts.
        """
        try:
            self._reserve(pod, container, affinity, settled=self._is_settled(pod, container.name))
        except AllocationError as error:
            self._raise_unless_admitted(pod.metadata.uid or "", error)

    def undo_point(self, pod_uid: str) -> Callable[[], None]:
        """Return a function that undoes the Pod's reservations since."""
        return self._allocator.undo_point(pod_uid)

    async def ask(self, needed: PreferenceNeededError) -> None:
        """Call GetPreferredAllocation, or wait until owners are known; raises `AllocationError`."""
        if isinstance(needed, OwnersNeededError):
            await self._wait_for_owners(needed.pod_uid)
            return
        assert isinstance(needed, DevicePreferenceNeededError)
        slot = needed.slot
        try:
            with self._waiting(slot, "GetPreferredAllocation"):
                endpoint = self._endpoint(slot.resource, needed.question.available[0])
                self._preferences[slot] = await endpoint.preferred(needed.question)
        except EndpointError as error:
            self._raise_unless_admitted(slot.pod_uid, AllocationError(str(error)))
            self._preferences[slot] = ()

    async def commit(self, pod: Pod) -> None:
        """Call Allocate for the reserved devices and save the assignments; raises `AllocationError`."""
        try:
            await self._commit(pod.metadata.uid or "")
        except AllocationError as error:
            self._raise_unless_admitted(pod.metadata.uid or "", error)

    def holds(self, pod_uid: str) -> bool:
        """Whether the Pod has devices."""
        return bool(self._allocator.assignments.of_pod(pod_uid))

    def _is_settled(self, pod: Pod, container: str) -> bool:
        return (pod.metadata.uid or "", container) in self._pods.settled

    def _unsettled(self, pod: Pod, containers: Iterable[Container]) -> list[Container]:
        return [item for item in containers if not self._is_settled(pod, item.name)]

    def _raise_unless_admitted(self, pod_uid: str, error: AllocationError) -> None:
        if pod_uid not in self._pods.admitted_before:
            raise error
        _log.warning("devices not allocated yet: %s", error, extra=fields(pod_uid=pod_uid))

    def _reserve(self, pod: Pod, container: Container, affinity: int | None, *, settled: bool = False) -> None:
        uid = pod.metadata.uid or ""
        if not settled:
            self._check_owners(pod, [container])
        for resource, amount in container_request(pod, container, self._allocator.knows).items():
            slot = AssignmentKey(uid, container.name, resource)
            need = AllocationRequest(slot, amount, self._reusable(pod, container.name, resource), settled)
            asks = partial(self._has_preferences, resource)
            step = self._allocator.begin(need, affinity, asks=asks, preference=self._preferences.get(slot))
            if isinstance(step, AskPreference):
                raise DevicePreferenceNeededError(slot, step.question)
            if isinstance(step, Refused):
                raise AllocationError(step.message)

    def _has_preferences(self, resource: str, path: str) -> bool:
        endpoint = self.plugin_handler.at(resource, path)
        return endpoint is not None and bool(endpoint.options.get_preferred_allocation_available)

    async def _commit(self, pod_uid: str) -> None:
        reserved = self._allocator.reservations(pod_uid)
        if reserved:
            self._unsaved.add(pod_uid)
        try:
            for item in reserved:
                await self._call_allocate(item.slot, item.call)
        finally:
            for item in reserved:
                # What Allocate was not called for is free again; the others are assigned by now.
                self._allocator.failed(item.call.ticket)
                self._preferences.pop(item.slot, None)
        if pod_uid in self._unsaved:
            # If this fails, the next call finds the devices allocated already and saves them.
            await self._save()
            self._unsaved.discard(pod_uid)

    async def _allocate(self, pod: Pod, container: Container) -> None:
        """Allocate the devices of one container, without alignment; raises `AllocationError`."""
        uid = pod.metadata.uid or ""
        async with self._locks.held([uid]):
            while True:
                undo = self._allocator.undo_point(uid)
                try:
                    self._reserve(pod, container, None)
                    break
                except PreferenceNeededError as needed:
                    undo()
                    await self.ask(needed)
                except AllocationError:
                    undo()
                    raise
            await self._commit(uid)

    async def _call_allocate(self, slot: AssignmentKey, step: CallAllocate) -> None:
        started = self._clock.monotonic()
        try:
            with self._waiting(slot, "Allocate"):
                parts = [await endpoint.allocate(ids) for endpoint, ids in self._by_plugin(slot.resource, step.ids)]
                response = merge_responses(parts)
        except EndpointError as error:
            raise AllocationError(str(error)) from error
        finally:
            self._metrics.allocated(slot.resource, self._clock.monotonic() - started)
        if not self._allocator.succeeded(step.ticket, response):
            raise AllocationError(f"pod {slot.pod_uid} was removed while its devices were allocated")

    def _endpoint(self, resource: str, device_id: str) -> Endpoint:
        endpoint = self.plugin_handler.owner(resource, device_id)
        if endpoint is None:
            raise EndpointError(f"unknown Device Plugin {resource}")
        return endpoint

    def _by_plugin(self, resource: str, ids: Iterable[str]) -> list[tuple[Endpoint, tuple[str, ...]]]:
        """Return the devices of each plugin; raises `EndpointError`."""
        found: dict[Endpoint, list[str]] = {}
        for device_id in in_order(ids):
            found.setdefault(self._endpoint(resource, device_id), []).append(device_id)
        return [(endpoint, tuple(names)) for endpoint, names in found.items()]

    @contextmanager
    def _waiting(self, slot: AssignmentKey, method: str) -> Iterator[None]:
        """Note that the Pod waits for a plugin."""
        self._waits[slot.pod_uid] = f"waiting for {method} of the device plugin of {slot.resource}"
        try:
            yield
        finally:
            self._waits.pop(slot.pod_uid, None)

    def waits_for(self, pod: Pod) -> str:
        """Return which call of a plugin the Pod waits for; empty if none."""
        return self._waits.get(pod.metadata.uid or "", "")

    def _held(self, pod_uid: str, container: str, resource: str) -> frozenset[str]:
        return self._allocator.held(AssignmentKey(pod_uid, container, resource))

    def _reusable(self, pod: Pod, container: str, resource: str) -> frozenset[str]:
        uid = pod.metadata.uid or ""
        return reusable(pod, container, lambda name: self._held(uid, name, resource))

    # --- Running containers. ---

    async def prepare(self, pod: Pod) -> None:
        """Allocate devices of plugins that registered after the Pod's admission; raises `ResourceError`."""
        for container in containers_of(pod):
            needed = self._missing(pod, container) or pod.metadata.uid in self._unsaved
            if needed and not self._is_settled(pod, container.name):
                try:
                    await self._allocate(pod, container)
                except AllocationError as error:
                    raise ResourceError(UNEXPECTED_ADMISSION_ERROR, str(error)) from error

    def container_options(self, pod: Pod, container: str) -> RunOptions:
        """Return the plugins' responses; if devices are missing, allocate them and raise `ResourceError`."""
        spec = next((item for item in containers_of(pod) if item.name == container), None)
        uid = pod.metadata.uid or ""
        # An ephemeral container has no resources.
        for resource in () if spec is None else self._missing(pod, spec):
            assert spec is not None
            self._spawn(self._allocate_later(pod, spec), f"devices of {uid}/{container}")
            text = (
                f"no devices found allocated in local cache for pod {uid}, container {container}, resource {resource}"
            )
            raise ResourceError(FAILED_TO_START, text)
        assigned = self._allocator.assignments.of_container(uid, container)
        options = run_options(assigned)
        return replace(options, annotations={**options.annotations, **note(assigned)})

    async def pre_start(self, pod: Pod, container: str) -> None:
        """Call PreStartContainer of the plugins that require it; raises `ResourceError`."""
        for slot, assignment in self._allocator.assignments.of_container(pod.metadata.uid or "", container):
            try:
                plugins = self._by_plugin(slot.resource, assignment.ids)
            except EndpointError as error:
                raise ResourceError(FAILED_TO_START, self._without_plugin(slot.resource)) from error
            for endpoint, ids in plugins:
                if endpoint.options.pre_start_required:
                    await self._call_pre_start(slot, endpoint, ids)

    async def _call_pre_start(self, slot: AssignmentKey, endpoint: Endpoint, ids: Sequence[str]) -> None:
        try:
            with self._waiting(slot, "PreStartContainer"):
                await endpoint.pre_start(ids)
        except EndpointError as error:
            raise ResourceError(FAILED_TO_START, str(error)) from error

    def _without_plugin(self, resource: str) -> str:
        """Return why a container cannot start: no plugin has said yet whether it must be called before."""
        if not self._settings.enabled:
            return f"the feature gate DevicePlugins is disabled on this node, and the container has {resource}"
        return f"waiting for the device plugin of {resource} to register"

    async def _allocate_later(self, pod: Pod, container: Container) -> None:
        try:
            await self._allocate(pod, container)
        except AllocationError as error:
            _log.warning("devices not allocated: %s", error, extra=fields(pod_uid=pod.metadata.uid))

    def _missing(self, pod: Pod, container: Container) -> list[str]:
        uid = pod.metadata.uid or ""
        wanted = container_request(pod, container, self._may_manage if self._is_lost(uid) else self._allocator.knows)
        found = ((name, self._allocator.assignments.get(AssignmentKey(uid, container.name, name))) for name in wanted)
        return [name for name, assigned in found if assigned is None or not assigned.is_complete]

    def _is_lost(self, pod_uid: str) -> bool:
        """Whether the Pod may have had devices that the checkpoint no longer tells."""
        return self._lost and (pod_uid in self._pods.admitted_before or not self._owners_known.is_set())

    def _may_manage(self, resource: str) -> bool:
        return self._allocator.knows(resource) or is_extended_resource_name(resource)

    # --- What is known about Pods. ---

    def check_health(self, pod: Pod) -> Rejection | None:
        """Return why the Pod must fail: a device it uses is unhealthy, and the settings require it."""
        if not self._settings.fail_unhealthy:
            return None
        return unhealthy_device(
            pod, self._allocator.assignments.of_pod(pod.metadata.uid or ""), self._allocator.inventory
        )

    def container_resources(self, pod: Pod, container: str) -> Sequence[Document]:
        """Return the container's `allocatedResourcesStatus`."""
        if not self._settings.report_health:
            return ()
        if not self._owners_known.is_set():
            # What the status tells now may be all that tells which devices the container has.
            return [to_document(item) for item in reported(pod, container) if self._may_manage(item.name)]
        return resource_statuses(
            self._allocator.assignments.of_container(pod.metadata.uid or "", container), self._allocator.inventory
        )

    @property
    def revision(self) -> int:
        """A number that changes whenever an assignment does."""
        return self._allocator.assignments.revision

    def container_devices(self, pod_uid: str, container: str) -> tuple[HeldDevice, ...]:
        """Return the container's devices, for PodResources."""
        return tuple(
            HeldDevice(slot.resource, name, None if node == NO_NUMA_NODE else node)
            for slot, assignment in self._allocator.assignments.of_container(pod_uid, container)
            for node, names in assignment.devices.items()
            for name in names
        )

    def allocatable_devices(self) -> tuple[HeldDevice, ...]:
        """Return all healthy devices, in use or not."""
        inventory = self._allocator.inventory
        return tuple(
            HeldDevice(resource, device.id, node)
            for resource in inventory.resources
            for device in inventory.healthy_devices(resource)
            for node in device.numa_nodes or (None,)
        )

    # --- Inside. ---

    async def _save(self) -> None:
        await self._saves()

    async def _write(self) -> None:
        if not self._owners_known.is_set():
            # What is on disk must not look complete. Nothing has been allocated yet.
            return
        inventory = self._allocator.inventory
        registered = {name: inventory.healthy(name) for name in inventory.resources}
        state = checkpoint.sample(self._allocator.assignments.all(), registered)
        try:
            await asyncio.to_thread(self._write_down, state)
        except OSError as error:
            raise AllocationError(f'failed to write checkpoint file "{checkpoint.FILE_NAME}": {error}') from error

    def _write_down(self, state: checkpoint.Checkpoint) -> None:
        self._file.replace(checkpoint.encode(state, self._written))

    def _spawn(self, work: Any, name: str) -> None:
        if self._group is None:
            work.close()
        else:
            self._group.spawn(work, name)
