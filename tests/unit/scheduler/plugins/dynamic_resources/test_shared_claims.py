"""Claims that Pods of a group write in PreBind: one writes the allocation, the others only reserve."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from dray.allocator import Allocations
from dray.api.features import FeatureGates
from dray.api.types.resource_v1 import AllocationResult, ResourceClaim, ResourceClaimConsumerReference
from dray.client.objects import key_of
from dray.framework.snapshot import Snapshot
from dray.framework.status import SUCCESS, Status
from dray.runtime.metrics import Metrics
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.dynamic_resources.pod_state import ClaimsOfPod, GroupShare, PodState
from dray.scheduler.plugins.dynamic_resources.pre_binder import PreBinder
from dray.scheduler.plugins.dynamic_resources.tracker import ClaimTracker
from dray.sim.replica.virtual_time import LoopClock, run_virtually
from tests.unit.scheduler.plugins.dynamic_resources.test_dynamic_resources_parts import claim, pod


class Writer:
    """Takes its time to write."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.writing = 0

    async def take(
        self, claim: ResourceClaim, allocation: AllocationResult, user: ResourceClaimConsumerReference
    ) -> ResourceClaim:
        self.calls.append(f"take {user.uid}")
        self.writing += 1
        assert self.writing == 1
        await asyncio.sleep(1)
        self.writing -= 1
        metadata = msgspec.structs.replace(claim.metadata, resource_version="9")
        status = msgspec.structs.replace(claim.status, allocation=allocation)
        return msgspec.structs.replace(claim, metadata=metadata, status=status)

    async def reserve(self, claim: ResourceClaim, user: ResourceClaimConsumerReference) -> ResourceClaim:
        self.calls.append(f"reserve {user.uid}")
        assert claim.status.allocation is not None
        return claim

    async def conflicting_claims(self, _claim: ResourceClaim, *, is_observed: bool) -> tuple[str, ...]:
        assert not is_observed
        return ()


class Parts:
    def __init__(self) -> None:
        self.claim = claim("shared", version=1)
        self.allocation = cast(AllocationResult, claim("shared", version=1, devices=("gpu-0",)).status.allocation)
        self.tracker = ClaimTracker(Allocations(), {key_of(self.claim): self.claim}.get)
        self.writer = Writer()
        nothing = cast(Any, None)
        handle = Handle(nothing, nothing, LoopClock(), Metrics(), FeatureGates(), Snapshot(()), nothing)
        cluster = SimpleNamespace(tracker=self.tracker, writer=self.writer, extended_claims=nothing)
        self.binder = PreBinder(handle, cast(Any, cluster), 600.0)

    def reserve(self, *names: str) -> None:
        """What Reserve does for Pods that share the claim."""
        first, *others = names
        self.tracker.start_in_flight(self.claim, self.allocation, first)
        for name in others:
            self.tracker.share_in_flight(self.claim, name)

    async def bind(self, name: str) -> Status:
        own = PodState(ClaimsOfPod.of(pod("shared", uid=name), [self.claim]), GroupShare(in_cycle=True))
        return await self.binder._bind_claim(own, self.claim, self.allocation, own.claims.pod)


@pytest.mark.behaviour("GW-58")
@pytest.mark.parametrize("delays", [(0.0, 0.0, 0.0), (0.0, 0.5, 2.0), (2.0, 0.0, 0.0), (4.0, 2.0, 0.0)])
def test_one_pod_writes_the_allocation_whoever_comes_first(delays: tuple[float, ...]) -> None:
    parts = Parts()
    names = ("a", "b", "c")
    parts.reserve(*names)

    async def bind(name: str, delay: float) -> Status:
        await asyncio.sleep(delay)
        return await parts.bind(name)

    async def scenario() -> list[Status]:
        return await asyncio.gather(*(bind(name, delay) for name, delay in zip(names, delays, strict=True)))

    assert run_virtually(scenario()) == [SUCCESS] * 3
    kinds = [call.partition(" ")[0] for call in parts.writer.calls]
    assert kinds == ["take", "reserve", "reserve"]
    assert not parts.tracker.is_in_flight(parts.claim)


def test_a_claim_of_one_pod_needs_no_lock() -> None:
    parts = Parts()
    parts.reserve("a")
    assert not parts.tracker.is_shared_in_flight(parts.claim)
    assert run_virtually(parts.bind("a")) is SUCCESS
    assert parts.writer.calls == ["take a"]
    assert not parts.tracker.is_in_flight(parts.claim)
