"""Lets the agent ask for a Pod's claims as it asks for anything else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from dray.api.codec import to_document
from dray.api.document import UID, Document
from dray.api.types.core_v1 import Container, Pod
from dray.node.classic.claim_manager import ClassicResources, ReleaseError
from dray.node.classic.claims import variables
from dray.node.dra.claims import ClaimError
from dray.node.dra.manager import FAILED_PREPARE, DynamicResources, PrepareError
from dray.node.resource_manager import NO_OPTIONS, NodeResources, Rejection, ResourceError, RunOptions

FAILED_UNPREPARE: Final = "FailedUnprepareDynamicResources"


class ClaimManager:
    """Implements `ResourceManager` on the node's `DynamicResources`."""

    name = "claims"

    def __init__(self, claims: DynamicResources, classic: ClassicResources | None = None) -> None:
        self._claims = claims
        # Whose claims are not ours.
        self._classic = classic
        if classic is not None:
            claims.is_classic = classic.has_claim
        self._listeners: list[Callable[[Sequence[str]], None]] = []
        claims.on_health = self._health_changed

    def on_driver(self, listener: Callable[[], None]) -> None:
        """Call the listener when a driver has come."""
        self._claims.on_driver = listener
        if self._classic is not None:
            self._classic.on_driver = listener

    async def admit(self, pod: Pod) -> Rejection | None:
        """The scheduler has reserved the claims; whether that still holds is seen when they are prepared."""
        return None

    async def prepare(self, pod: Pod) -> None:
        """Have the drivers prepare the claims."""
        outcome = await self._claims.prepare(pod)
        if isinstance(outcome, PrepareError):
            raise ResourceError(FAILED_PREPARE, f"Failed to prepare dynamic resources: {outcome.message}")

    def container_options(self, pod: Pod, container: str) -> RunOptions:
        """The CDI devices of the container's claims, and what it is told of those that its Pod can do without."""
        found = container_of(pod, container)
        if found is None:
            return NO_OPTIONS
        try:
            devices = self._claims.container_devices(pod, found)
            return RunOptions(envs=variables(pod, found, lambda name: self._has(pod, name)), cdi_devices=devices)
        except ClaimError as error:
            raise ResourceError(FAILED_PREPARE, str(error)) from error

    def _has(self, pod: Pod, claim: str) -> bool:
        return self._claims.has_claim(pod, claim) or (self._classic is not None and self._classic.has_claim(pod, claim))

    async def pre_start(self, pod: Pod, container: str) -> None:
        """Nothing is left to do."""

    async def release(self, pod: Pod) -> None:
        """Give the claims up; drivers are asked for those that no other Pod uses."""
        failure = await self._claims.unprepare(UID(pod.metadata.uid or ""))
        if failure is not None:
            raise ResourceError(FAILED_UNPREPARE, f"Failed to unprepare dynamic resources: {failure.message}")

    def node_resources(self) -> NodeResources:
        """Devices of claims are in ResourceSlices, not in the Node."""
        return NodeResources()

    def container_resources(self, pod: Pod, container: str) -> Sequence[Document]:
        """The health of the container's devices."""
        found = container_of(pod, container)
        return [] if found is None else [to_document(item) for item in self._claims.resource_statuses(pod, found)]

    def on_change(self, listener: Callable[[Sequence[str]], None]) -> None:
        """Call the listener with the UIDs of Pods whose devices' health changed."""
        self._listeners.append(listener)

    def _health_changed(self, uids: frozenset[UID]) -> None:
        for listener in self._listeners:
            listener(sorted(uids))


def container_of(pod: Pod, name: str) -> Container | None:
    """None for an ephemeral container, which has no resources."""
    return next((item for item in (*pod.spec.init_containers, *pod.spec.containers) if item.name == name), None)


NOTHING: Final = NodeResources()


class ClassicManager:
    """Implements `ResourceManager` on the node's `ClassicResources`; comes before `ClaimManager`, which asks it."""

    name = "classic claims"

    def __init__(self, claims: ClassicResources) -> None:
        self._claims = claims

    async def admit(self, pod: Pod) -> Rejection | None:
        """Whether the Pod may use its claims is seen when they are prepared; until then it waits."""
        return None

    async def prepare(self, pod: Pod) -> None:
        """Have the plugins prepare the claims."""
        if not pod.spec.resource_claims:
            return
        try:
            await self._claims.prepare(pod)
        except ClaimError as error:
            raise ResourceError(FAILED_PREPARE, f"Failed to prepare dynamic resources: {error}") from error

    def container_options(self, pod: Pod, container: str) -> RunOptions:
        """The CDI devices of the container's claims."""
        found = container_of(pod, container)
        return NO_OPTIONS if found is None else RunOptions(cdi_devices=self._claims.container_devices(pod, found))

    async def pre_start(self, pod: Pod, container: str) -> None:
        """Nothing is left to do."""

    async def release(self, pod: Pod) -> None:
        """Give the claims up."""
        if not pod.spec.resource_claims:
            return
        try:
            await self._claims.release(pod)
        except ReleaseError as error:
            raise ResourceError(FAILED_UNPREPARE, f"Failed to unprepare dynamic resources: {error}") from error

    def node_resources(self) -> NodeResources:
        """How drivers tell what they have is their own affair."""
        return NOTHING

    def container_resources(self, pod: Pod, container: str) -> Sequence[Document]:
        """Classic drivers tell nothing of health."""
        return []

    def on_change(self, listener: Callable[[Sequence[str]], None]) -> None:
        """Nothing changes by itself."""
