"""The topology manager: admits Pods with devices, CPUs and memory aligned by NUMA node.

It is the `ResourceManager` for all three. Each hint provider saves its own assignments; the affinities chosen here are
needed during admission only. Pods are admitted concurrently: what a Pod gets is reserved in one step, and a Pod that
waits for a device plugin does not hold up others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from dray.api.document import Document
from dray.api.types.core_v1 import Container, Pod
from dray.node.resource_manager import (
    NO_OPTIONS,
    UNEXPECTED_ADMISSION_ERROR,
    NodeResources,
    Rejection,
    RunOptions,
)
from dray.node.topology.containers import containers_of
from dray.node.topology.hint_provider import AllocationError, HintProvider, PreferenceNeededError
from dray.node.topology.hints import Hint, Policy, Scope, decide

AFFINITY_ERROR: Final = Rejection("TopologyAffinityError", "Resources cannot be allocated with Topology locality")


class Devices(HintProvider, Protocol):
    """The device manager."""

    async def prepare(self, pod: Pod) -> None:
        """See `ResourceManager`."""

    def container_options(self, pod: Pod, container: str) -> RunOptions:
        """See `ResourceManager`."""

    async def pre_start(self, pod: Pod, container: str) -> None:
        """See `ResourceManager`."""

    def waits_for(self, pod: Pod) -> str:
        """See `ResourceManager`."""

    def node_resources(self) -> NodeResources:
        """See `ResourceManager`."""

    def container_resources(self, pod: Pod, container: str) -> Sequence[Document]:
        """See `ResourceManager`."""

    def on_change(self, listener: Callable[[Sequence[str]], None]) -> None:
        """See `ResourceManager`."""

    def check_health(self, pod: Pod) -> Rejection | None:
        """Return why a running Pod must fail."""

    def effective_allocatable(self, pod: Pod, allocatable: Mapping[str, int]) -> Mapping[str, int]:
        """Return the allocatable resources for the Pod's admission."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """The policy and scope, and the set of the machine's NUMA nodes."""

    policy: Policy = Policy.NONE
    scope: Scope = Scope.CONTAINER
    machine: int = 1


NO_ALIGNMENT: Final = Alignment()


class TopologyManager:
    """Implements `ResourceManager`; `devices` is None without device plugins."""

    name = "aligned resources"

    def __init__(
        self,
        devices: Devices | None,
        others: Sequence[HintProvider] = (),
        alignment: Alignment = NO_ALIGNMENT,
        admitted_before: Collection[str] = (),
    ) -> None:
        """`admitted_before` are the UIDs of Pods that an earlier agent has admitted: they need not be aligned."""
        self._devices = devices
        self._providers: tuple[HintProvider, ...] = (*([] if devices is None else [devices]), *others)
        self._alignment = alignment
        self._admitted_before = admitted_before
        # The UIDs of Pods that are being admitted.
        self._admitting: set[str] = set()

    async def admit(self, pod: Pod) -> Rejection | None:
        """Allocate the resources of every container, init containers first; a rejected Pod gets nothing.

        What it had before an agent restart it keeps until `release`: its containers may still run.
        """
        uid = pod.metadata.uid or ""
        self._admitting.add(uid)
        try:
            for provider in self._providers:
                await provider.refresh(self._admitting)
            had_nothing = [provider for provider in self._providers if not provider.holds(uid)]
            rejection = await self._admit(pod)
            if rejection is not None:
                for provider in had_nothing:
                    await provider.free(uid)
            return rejection
        finally:
            self._admitting.discard(uid)

    async def _admit(self, pod: Pod) -> Rejection | None:
        try:
            if not await self._reserve(pod):
                return AFFINITY_ERROR
            for provider in self._providers:
                await provider.commit(pod)
        except AllocationError as error:
            return Rejection(UNEXPECTED_ADMISSION_ERROR, f"Allocate failed due to {error}, which is unexpected")
        return None

    async def _reserve(self, pod: Pod) -> bool:
        """Reserve everything in one step, again whenever a plugin had to be asked; return False if it is not aligned.

        Each question is about another container and resource, so that there is an end.
        """
        while True:
            undo = [provider.undo_point(pod.metadata.uid or "") for provider in self._providers]
            reserved, needed = False, None
            try:
                reserved = self._reserve_now(pod)
            except PreferenceNeededError as error:
                needed = error
            finally:
                if not reserved:
                    for undo_one in undo:
                        undo_one()
            if needed is None:
                return reserved
            assert self._devices is not None, "only device plugins have preferences"
            await self._devices.ask(needed)

    def _reserve_now(self, pod: Pod) -> bool:
        by_pod = self._alignment.scope is Scope.POD
        hint, admitted = self._decide(pod, None) if by_pod else (None, True)
        for container in containers_of(pod):
            if not by_pod:
                hint, admitted = self._decide(pod, container)
            if not admitted and pod.metadata.uid not in self._admitted_before:
                return False
            assert hint is not None
            for provider in self._providers:
                provider.reserve(pod, container, hint.affinity)
        return True

    def _decide(self, pod: Pod, container: Container | None) -> tuple[Hint, bool]:
        policy = self._alignment.policy
        if policy is Policy.NONE:
            return decide(policy, self._alignment.machine, ())
        hints = [
            provider.pod_hints(pod) if container is None else provider.hints(pod, container)
            for provider in self._providers
        ]
        return decide(policy, self._alignment.machine, hints)

    def waits_for(self, pod: Pod) -> str:
        """Return which device plugin the Pod waits for."""
        return "" if self._devices is None else self._devices.waits_for(pod)

    async def prepare(self, pod: Pod) -> None:
        """Allocate devices of plugins that registered after the Pod's admission."""
        if self._devices is not None:
            await self._devices.prepare(pod)

    def container_options(self, pod: Pod, container: str) -> RunOptions:
        """Return what device plugins add to the container."""
        return NO_OPTIONS if self._devices is None else self._devices.container_options(pod, container)

    async def pre_start(self, pod: Pod, container: str) -> None:
        """Call the device plugins that require it."""
        if self._devices is not None:
            await self._devices.pre_start(pod, container)

    async def release(self, pod: Pod) -> None:
        """Free everything the Pod has."""
        for provider in self._providers:
            await provider.free(pod.metadata.uid or "")

    def node_resources(self) -> NodeResources:
        """Return the resources of device plugins."""
        return NodeResources() if self._devices is None else self._devices.node_resources()

    def container_resources(self, pod: Pod, container: str) -> Sequence[Document]:
        """Return the container's `allocatedResourcesStatus`."""
        return () if self._devices is None else self._devices.container_resources(pod, container)

    def on_change(self, listener: Callable[[Sequence[str]], None]) -> None:
        """Call the listener when the health of devices or the Node's resources change."""
        if self._devices is not None:
            self._devices.on_change(listener)

    def check_health(self, pod: Pod) -> Rejection | None:
        """Return why a running Pod must fail: a device it uses is unhealthy and the settings require it."""
        return None if self._devices is None else self._devices.check_health(pod)

    def effective_allocatable(self, pod: Pod, allocatable: Mapping[str, int]) -> Mapping[str, int]:
        """Return the allocatable resources for admission, including devices that the Pod already has."""
        return allocatable if self._devices is None else self._devices.effective_allocatable(pod, allocatable)
