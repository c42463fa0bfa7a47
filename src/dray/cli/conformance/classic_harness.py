"""The test harness of classic drivers: claims of cdi.k8s.io, written as scheduler and users write them."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

from dray.api import classic_claims as classic
from dray.api.codec import from_document
from dray.api.document import Document
from dray.api.errors import ConflictError, NotFoundError
from dray.api.types.cdi_v1alpha1 import ResourceClaim, ResourceClass, SchedulerSchedulingStatus
from dray.api.types.core_v1 import Node
from dray.api.types.meta_v1 import ObjectMeta
from dray.cli.conformance.cluster_objects import ClusterObjects
from dray.cli.conformance.driver_client import CallError
from dray.cli.conformance.findings import CheckFailedError, SkipError, fail_on
from dray.cli.conformance.harness import Harness, Restarter, Target, Timing, wait_until
from dray.cli.conformance.rules.classic import allocated_problems
from dray.client.interface import Client, WriteOptions
from dray.client.resources import CLASSIC_CLAIMS, CLASSIC_CLASSES, NODES
from dray.lib.clock import Clock

DELAYED: Final = "Delayed"
_ATTEMPTS_MAX: Final = 10
# Does not exist; a driver must not look it up.
POD_UID: Final = "00000000-0000-4000-8000-000000000000"


@dataclass(frozen=True, slots=True)
class ClassicParts:
    """What a run needs besides the harness of all drivers."""

    client: Client
    namespace: str
    # The claim given with --claim.
    template: Document | None
    controller: Restarter | None


class ClassicHarness(Harness):
    """The state of a run for a classic driver."""

    def __init__(
        self,
        target: Target,
        objects: ClusterObjects,
        clock: Clock,
        timing: Timing,
        restarter: Restarter | None,
        parts: ClassicParts,
    ) -> None:
        super().__init__(target, objects, clock, timing, restarter)
        self._parts = parts
        self._count = 0

    # --- Claims. ---

    async def driver_name(self) -> str:
        """Return the driver of the claim's class; raises `SkipError` without --claim."""
        found = await self._parts.client.get(CLASSIC_CLASSES, self._template["spec"]["resourceClassName"])
        return found.driver_name

    @property
    def _template(self) -> Document:
        if self._parts.template is None:
            raise SkipError("--claim with a ResourceClaim of cdi.k8s.io and its ResourceClass is required")
        return self._parts.template

    @asynccontextmanager
    async def classic_claim(self, mode: str, class_name: str = "") -> AsyncIterator[ResourceClaim]:
        """Yield a new claim; it is deleted afterwards."""
        self._count += 1
        document = copy.deepcopy(self._template)
        document["metadata"] = {"generateName": f"dray-conformance-{self._count}-"}
        document["spec"]["allocationMode"] = mode
        if class_name:
            document["spec"]["resourceClassName"] = class_name
        claim = await self._parts.client.create(
            CLASSIC_CLAIMS, from_document(ResourceClaim, document), self._parts.namespace
        )
        try:
            yield claim
        finally:
            await self._release(claim)
            await self.delete(claim)
            # The driver may have only one resource, which the next check needs.
            with suppress(CheckFailedError):
                await self.wait_gone(claim, self.timing.first_seconds)

    async def read(self, claim: ResourceClaim) -> ResourceClaim | None:
        """Return the current claim; None if it is gone."""
        try:
            found = await self._parts.client.get(
                CLASSIC_CLAIMS, claim.metadata.name or "", claim.metadata.namespace or ""
            )
        except NotFoundError:
            return None
        return found if found.metadata.uid == claim.metadata.uid else None

    async def delete(self, claim: ResourceClaim) -> None:
        """Delete the claim, as a user does."""
        with suppress(NotFoundError):
            await self._parts.client.delete(CLASSIC_CLAIMS, claim.metadata.name or "", claim.metadata.namespace or "")

    async def write_status(
        self, claim: ResourceClaim, change: Callable[[ResourceClaim], ResourceClaim]
    ) -> ResourceClaim:
        """Change the claim's status, again if the driver changes it at the same time."""
        for _ in range(_ATTEMPTS_MAX):
            current = await self.read(claim)
            if current is None:
                raise CheckFailedError(f"claim {classic.label(claim)} is gone")
            with suppress(ConflictError):
                return await self._parts.client.update(
                    CLASSIC_CLAIMS, change(current), options=WriteOptions(subresource="status")
                )
        raise CheckFailedError(f"the driver changed claim {classic.label(claim)} {_ATTEMPTS_MAX} times in a row")

    async def _release(self, claim: ResourceClaim) -> None:
        with suppress(CheckFailedError):
            current = await self.read(claim)
            if current is not None and classic.status_of(current).reserved_for:
                await self.write_status(claim, lambda item: classic.with_users(item, ()))

    @asynccontextmanager
    async def other_class(self) -> AsyncIterator[str]:
        """Yield the name of a class with a driver that does not exist."""
        found = await self._parts.client.get(CLASSIC_CLASSES, self._template["spec"]["resourceClassName"])
        name = f"dray-conformance-{POD_UID}"
        other = ResourceClass(
            metadata=ObjectMeta(name=name), driver_name="other.example.com", parameters=found.parameters
        )
        await self._parts.client.create(CLASSIC_CLASSES, other)
        try:
            yield name
        finally:
            await self._parts.client.delete(CLASSIC_CLASSES, name)

    # --- The scheduler's part. ---

    async def select(self, claim: ResourceClaim) -> None:
        """Set the node, after the driver had its say about it."""
        await self.propose(claim)
        node = self.target.node_name
        selected = SchedulerSchedulingStatus(selected_node=node, potential_nodes=(node,))
        await self.write_status(claim, lambda item: classic.with_scheduler_status(item, selected))

    async def settled(self, claim: ResourceClaim) -> ResourceClaim:
        """Select the node, and return the claim when the driver has allocated or refused it."""
        await self.select(claim)
        return await self.wait_for(
            claim,
            lambda item: classic.is_allocated(item) or not classic.selected_node(item),
            "neither allocated nor refused the claim",
        )

    async def propose(self, claim: ResourceClaim) -> ResourceClaim:
        """Set `potentialNodes` and return the claim when the driver has reported the unsuitable ones."""
        proposed = SchedulerSchedulingStatus(potential_nodes=(self.target.node_name,))
        await self.write_status(claim, lambda item: classic.with_scheduler_status(item, proposed))
        return await self.wait_for(claim, classic.has_driver_status, "did not report unsuitable nodes")

    # --- Waiting. ---

    async def wait_for(
        self, claim: ResourceClaim, condition: Callable[[ResourceClaim], bool], otherwise: str
    ) -> ResourceClaim:
        """Wait until the claim meets the condition, and return it."""
        found: list[ResourceClaim] = []

        async def met() -> bool:
            current = await self.read(claim)
            if current is None or not condition(current):
                return False
            found.append(current)
            return True

        if not await wait_until(met, self.timing.call_seconds, self.clock):
            raise CheckFailedError(f"the driver {otherwise} within {self.timing.call_seconds:g} s")
        return found[0]

    async def wait_gone(self, claim: ResourceClaim, seconds: float | None = None) -> None:
        """Wait until the claim's object is gone."""
        seconds = self.timing.call_seconds if seconds is None else seconds

        async def gone() -> bool:
            return await self.read(claim) is None

        if not await wait_until(gone, seconds, self.clock):
            raise CheckFailedError(f"the claim still exists {seconds:g} s after its deletion")

    @asynccontextmanager
    async def allocated(self) -> AsyncIterator[ResourceClaim]:
        """Yield a claim that the driver has allocated for the node."""
        async with self.classic_claim(DELAYED) as claim:
            found = await self.settled(claim)
            if not classic.is_allocated(found):
                raise SkipError("the driver cannot allocate the claim for the node")
            fail_on(allocated_problems(found, await self.driver_name()))
            try:
                yield found
            finally:
                with suppress(CallError, SkipError):
                    if self.socket is not None:
                        await self.client.unprepare_classic(found.metadata.uid or "")

    async def node(self) -> Node:
        """Return the driver's Node."""
        return await self._parts.client.get(NODES, self.target.node_name)

    async def restart_controller(self) -> None:
        """Kill the controller and start it again."""
        if self._parts.controller is None:
            raise SkipError("the controller cannot be restarted: use --run-controller")
        await self._parts.controller.restart()
