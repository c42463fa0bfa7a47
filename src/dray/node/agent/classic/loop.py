"""Lets the agent ask for a Pod's classic claims as it asks for anything else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from dray.api.document import Document
from dray.api.types.core_v1 import Pod
from dray.node.agent.claims.loop import FAILED_UNPREPARE, container_of
from dray.node.classic.loop import ClassicResources, ReleaseError
from dray.node.dra.claims import ClaimError
from dray.node.dra.loop import FAILED_PREPARE
from dray.node.interface import NO_OPTIONS, NodeResources, Rejection, ResourceError, RunOptions

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
