"""Admits Pods to what the node itself hands out, aligned by NUMA node: devices of plugins, CPUs, memory.

The one `ResourceManager` of the node agent for all three. What a Pod was admitted with stays on disk with those who
hand it out; the affinities chosen here are needed for the admission only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
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
from dray.node.topology.hint_provider import AllocationError, HintProvider
from dray.node.topology.hints import Hint, Policy, Scope, decide

AFFINITY_ERROR: Final = Rejection("TopologyAffinityError", "Resources cannot be allocated with Topology locality")


class Devices(HintProvider, Protocol):
    """What device plugins do beyond hints."""

    async def prepare(self, pod: Pod) -> None:
        """See `ResourceManager`."""

    def container_options(self, pod: Pod, container: str) -> RunOptions:
        """See `ResourceManager`."""

    async def pre_start(self, pod: Pod, container: str) -> None:
        """See `ResourceManager`."""

    def node_resources(self) -> NodeResources:
        """See `ResourceManager`."""

    def container_resources(self, pod: Pod, container: str) -> Sequence[Document]:
        """See `ResourceManager`."""

    def on_change(self, listener: Callable[[Sequence[str]], None]) -> None:
        """See `ResourceManager`."""

    def check_health(self, pod: Pod) -> Rejection | None:
        """Why a running Pod has to be failed."""

    def effective_allocatable(self, pod: Pod, allocatable: Mapping[str, int]) -> Mapping[str, int]:
        """What the node has, and at least what is in use when the Pod has devices."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """The node's policy and scope, and the set of its NUMA nodes."""

    policy: Policy = Policy.NONE
    scope: Scope = Scope.CONTAINER
    machine: int = 1


class TopologyManager:
    """See the module; a `ResourceManager`. Without device plugins `devices` is None."""

    name = "aligned resources"

    def __init__(
        self,
        devices: Devices | None,
        others: Sequence[HintProvider] = (),
        alignment: Alignment = Alignment(),  # noqa: B008 - immutable
    ) -> None:
        self._devices = devices
        self._providers: tuple[HintProvider, ...] = (*([] if devices is None else [devices]), *others)
        self._alignment = alignment
        # Hints are only good until somebody else takes what they speak of.
        self._admitting = asyncio.Lock()

    async def admit(self, pod: Pod) -> Rejection | None:
        """Give every container its share, init containers first; a rejected Pod holds nothing new.

        What it had before, when the agent restarted, stays with it until `release`: its containers may still run.
        """
        uid = pod.metadata.uid or ""
        async with self._admitting:
            for provider in self._providers:
                await provider.refresh(uid)
            had_nothing = [provider for provider in self._providers if not provider.holds(uid)]
            rejection = await self._admit(pod)
            if rejection is not None:
                for provider in had_nothing:
                    await provider.free(uid)
            return rejection

    async def _admit(self, pod: Pod) -> Rejection | None:
        by_pod = self._alignment.scope is Scope.POD
        hint, admitted = self._decide(pod, None) if by_pod else (None, True)
        for container in containers_of(pod):
            if not by_pod:
                hint, admitted = self._decide(pod, container)
            if not admitted:
                return AFFINITY_ERROR
            assert hint is not None
            try:
                for provider in self._providers:
                    await provider.allocate(pod, container, hint.affinity)
            except AllocationError as error:
                return Rejection(UNEXPECTED_ADMISSION_ERROR, f"Allocate failed due to {error}, which is unexpected")
        return None

    def _decide(self, pod: Pod, container: Container | None) -> tuple[Hint, bool]:
        policy = self._alignment.policy
        if policy is Policy.NONE:
            return decide(policy, self._alignment.machine, ())
        hints = [
            provider.pod_hints(pod) if container is None else provider.hints(pod, container)
            for provider in self._providers
        ]
        return decide(policy, self._alignment.machine, hints)

    async def prepare(self, pod: Pod) -> None:
        """Allocate devices of plugins that came after the Pod's admission."""
        if self._devices is not None:
            await self._devices.prepare(pod)

    def container_options(self, pod: Pod, container: str) -> RunOptions:
        """What device plugins give to the container."""
        return NO_OPTIONS if self._devices is None else self._devices.container_options(pod, container)

    async def pre_start(self, pod: Pod, container: str) -> None:
        """Tell device plugins that want to know."""
        if self._devices is not None:
            await self._devices.pre_start(pod, container)

    async def release(self, pod: Pod) -> None:
        """Take back everything the Pod has."""
        for provider in self._providers:
            await provider.free(pod.metadata.uid or "")

    def node_resources(self) -> NodeResources:
        """What the Node has of device plugins' resources."""
        return NodeResources() if self._devices is None else self._devices.node_resources()

    def container_resources(self, pod: Pod, container: str) -> Sequence[Document]:
        """Return the container's `allocatedResourcesStatus`."""
        return () if self._devices is None else self._devices.container_resources(pod, container)

    def on_change(self, listener: Callable[[Sequence[str]], None]) -> None:
        """Hear of devices' health and of the Node's resources."""
        if self._devices is not None:
            self._devices.on_change(listener)

    def check_health(self, pod: Pod) -> Rejection | None:
        """Why a running Pod has to be failed now: a device it uses is unhealthy and the node is set to fail it."""
        return None if self._devices is None else self._devices.check_health(pod)

    def effective_allocatable(self, pod: Pod, allocatable: Mapping[str, int]) -> Mapping[str, int]:
        """What to measure the Pod against: devices it has already are not lacking because their plugin is away."""
        return allocatable if self._devices is None else self._devices.effective_allocatable(pod, allocatable)
