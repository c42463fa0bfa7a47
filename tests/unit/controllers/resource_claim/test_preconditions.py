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
    cluster: ClusterHarness,
    resource: Resource[Pod] | Resource[ResourceClaim],
    verb: str,
    act: Callable[[], Awaitable[object]],
) -> None:
    """Act once, before the server receives the controller's first such request."""
    send = cluster.transport.inner.send
    pending = [act]

    async def delayed(call: Call) -> Document:
        if call.resource == resource and call.verb == verb and pending:
            await pending.pop()()
        return await send(call)

    cluster.transport.inner.send = delayed  # type: ignore[method-assign]


async def idle(cluster: ClusterHarness) -> None:
    async def is_idle() -> bool:
        return cluster.controller.controller.queue.idle

    await until(is_idle)


async def generated(cluster: ClusterHarness) -> tuple[Pod, ResourceClaim]:
    await cluster.template("template")
    pod = await cluster.pod("pod", [FROM_TEMPLATE])
    await until(lambda: cluster.named("pod"))
    [claim] = await cluster.claims()
    return pod, claim


@pytest.mark.behaviour("SP-86")
async def test_deletion_spares_a_claim_that_was_recreated_under_the_same_name() -> None:
    async with running() as cluster:
        pod, claim = await generated(cluster)
        name = claim.metadata.name or ""
        deleted: list[Call] = []

        async def recreate() -> None:
            deleted.extend(call for call in cluster.transport.calls if call.verb == "delete")
            await cluster.user.delete(RESOURCE_CLAIMS, name, TEAM)
            body = {"metadata": {"name": name, "namespace": TEAM}, "spec": msgspec.to_builtins(claim.spec)}
            await cluster.user.create(RESOURCE_CLAIMS, msgspec.convert(body, ResourceClaim))

        before(cluster, RESOURCE_CLAIMS, "delete", recreate)
        await cluster.finish(pod)

        async def was_deleted() -> bool:
            return bool(deleted)

        await until(was_deleted)
        await idle(cluster)
        current = await cluster.get(name)
        assert current is not None
        assert current.metadata.uid != claim.metadata.uid
        assert current.metadata.deletion_timestamp is None


@pytest.mark.behaviour("SP-82", "SP-84")
async def test_a_consumer_that_is_reserved_meanwhile_keeps_the_allocation() -> None:
    async with running() as cluster:
        entry = {"name": "gpu", "resourceClaimName": "shared"}
        first, second = [await cluster.pod(name, [entry]) for name in ("first", "second")]
        allocated = await cluster.allocate(await cluster.claim("shared"), first)

        async def reserve() -> None:
            await cluster.allocate(allocated, first, second)

        before(cluster, RESOURCE_CLAIMS, "update", reserve)
        await cluster.finish(first)

        async def removed() -> bool:
            claim = await cluster.get("shared")
            return claim is not None and [user.name for user in claim.status.reserved_for] == ["second"]

        await until(removed)
        await idle(cluster)
        claim = await cluster.get("shared")
        assert claim is not None
        assert claim.status.allocation is not None
        assert claim.metadata.finalizers


@pytest.mark.behaviour("SP-75", "SP-76")
async def test_a_claim_is_not_named_in_the_status_of_a_recreated_pod() -> None:
    async with running() as cluster:
        recreated: list[Pod] = []

        async def recreate() -> None:
            await cluster.user.delete(PODS, "pod", TEAM, FORCE)
            recreated.append(await cluster.pod("pod", [FROM_TEMPLATE]))

        before(cluster, PODS, "patch", recreate)
        await cluster.template("template")
        await cluster.pod("pod", [FROM_TEMPLATE])

        async def named() -> bool:
            return bool(recreated) and bool(await cluster.named("pod"))

        await until(named)
        await idle(cluster)
        name = (await cluster.named("pod"))["gpu"]
        claim = await cluster.get(name or "")
        assert claim is not None
        assert [owner.uid for owner in claim.metadata.owner_references] == [recreated[0].metadata.uid]
