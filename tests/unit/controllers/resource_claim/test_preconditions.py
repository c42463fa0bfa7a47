"""Preconditions of the claim controller's writes: what changes between its read and its write is not overwritten."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from dray.api.document import Document
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.client.interface import DeleteOptions, Resource
from dray.client.resources import PODS, RESOURCE_CLAIMS
from dray.client.rest import Call
from tests.unit.controllers.resource_claim.test_resource_claim_reconciler import (
    FROM_TEMPLATE,
    TEAM,
    ClusterHarness,
    running,
    until,
)

FORCE = DeleteOptions(grace_period_seconds=0)


def before(
    world: ClusterHarness,
    resource: Resource[Pod] | Resource[ResourceClaim],
    verb: str,
    act: Callable[[], Awaitable[object]],
) -> None:
    """Act once, before the server receives the controller's first such request."""
    send = world.transport.inner.send
    pending = [act]

    async def delayed(call: Call) -> Document:
        if call.resource == resource and call.verb == verb and pending:
            await pending.pop()()
        return await send(call)

    world.transport.inner.send = delayed  # type: ignore[method-assign]


async def idle(world: ClusterHarness) -> None:
    async def is_idle() -> bool:
        return world.controller.controller.queue.idle

    await until(is_idle)


async def generated(world: ClusterHarness) -> tuple[Pod, ResourceClaim]:
    await world.template("template")
    pod = await world.pod("pod", [FROM_TEMPLATE])
    await until(lambda: world.named("pod"))
    [claim] = await world.claims()
    return pod, claim


@pytest.mark.behaviour("SP-86")
async def test_deletion_spares_a_claim_that_was_recreated_under_the_same_name() -> None:
    async with running() as world:
        pod, claim = await generated(world)
        name = claim.metadata.name or ""
        deleted: list[Call] = []

        async def recreate() -> None:
            deleted.extend(call for call in world.transport.calls if call.verb == "delete")
            await world.user.delete(RESOURCE_CLAIMS, name, TEAM)
            body = {"metadata": {"name": name, "namespace": TEAM}, "spec": msgspec.to_builtins(claim.spec)}
            await world.user.create(RESOURCE_CLAIMS, msgspec.convert(body, ResourceClaim))

        before(world, RESOURCE_CLAIMS, "delete", recreate)
        await world.finish(pod)

        async def was_deleted() -> bool:
            return bool(deleted)

        await until(was_deleted)
        await idle(world)
        current = await world.get(name)
        assert current is not None
        assert current.metadata.uid != claim.metadata.uid
        assert current.metadata.deletion_timestamp is None


@pytest.mark.behaviour("SP-82", "SP-84")
async def test_a_consumer_that_is_reserved_meanwhile_keeps_the_allocation() -> None:
    async with running() as world:
        entry = {"name": "gpu", "resourceClaimName": "shared"}
        first, second = [await world.pod(name, [entry]) for name in ("first", "second")]
        allocated = await world.allocate(await world.claim("shared"), first)

        async def reserve() -> None:
            await world.allocate(allocated, first, second)

        before(world, RESOURCE_CLAIMS, "update", reserve)
        await world.finish(first)

        async def removed() -> bool:
            claim = await world.get("shared")
            return claim is not None and [user.name for user in claim.status.reserved_for] == ["second"]

        await until(removed)
        await idle(world)
        claim = await world.get("shared")
        assert claim is not None
        assert claim.status.allocation is not None
        assert claim.metadata.finalizers


@pytest.mark.behaviour("SP-75", "SP-76")
async def test_a_claim_is_not_named_in_the_status_of_a_recreated_pod() -> None:
    async with running() as world:
        recreated: list[Pod] = []

        async def recreate() -> None:
            await world.user.delete(PODS, "pod", TEAM, FORCE)
            recreated.append(await world.pod("pod", [FROM_TEMPLATE]))

        before(world, PODS, "patch", recreate)
        await world.template("template")
        await world.pod("pod", [FROM_TEMPLATE])

        async def named() -> bool:
            return bool(recreated) and bool(await world.named("pod"))

        await until(named)
        await idle(world)
        name = (await world.named("pod"))["gpu"]
        claim = await world.get(name or "")
        assert claim is not None
        assert [owner.uid for owner in claim.metadata.owner_references] == [recreated[0].metadata.uid]
