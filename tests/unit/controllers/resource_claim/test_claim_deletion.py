"""Deletion of claims: own writes do not enqueue the claim, and no other event is missed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from dray.api.document import Document
from dray.api.pod_claims import FINALIZER
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.client.interface import DeleteOptions
from dray.client.resources import PODS, RESOURCE_CLAIMS
from dray.client.rest import Call
from tests.unit.controllers.resource_claim.test_resource_claim_reconciler import (
    FROM_TEMPLATE,
    TEAM,
    ClusterHarness,
    running,
    until,
)

NOW = DeleteOptions(grace_period_seconds=0)


async def in_use(cluster: ClusterHarness) -> tuple[Pod, ResourceClaim]:
    """A Pod and the claim generated for it, allocated."""
    await cluster.template("template")
    pod = await cluster.pod("pod", [FROM_TEMPLATE], nodeName="node")
    await until(lambda: cluster.named("pod"))
    [claim] = await cluster.claims()
    return pod, await cluster.allocate(claim, pod)


def protected(claim: ResourceClaim) -> ResourceClaim:
    return msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, finalizers=(FINALIZER,)))


def after(cluster: ClusterHarness, verb: str, subresource: str, act: Callable[[], Awaitable[None]]) -> None:
    """Act once, when the server has done what it was asked about claims and the controller has no answer yet."""
    send = cluster.transport.inner.send
    pending = [act]

    async def delayed(call: Call) -> Document:
        answer = await send(call)
        if call.resource == RESOURCE_CLAIMS and (call.verb, call.subresource) == (verb, subresource) and pending:
            await pending.pop()()
        return answer

    cluster.transport.inner.send = delayed  # type: ignore[method-assign]


@pytest.mark.behaviour("SP-86")
async def test_own_writes_do_not_enqueue_the_claim_again() -> None:
    async with running() as cluster:
        _, claim = await in_use(cluster)
        name = claim.metadata.name or ""

        async def idle() -> bool:
            return cluster.controller.controller.queue.idle

        async def freed() -> bool:
            known = cluster.claim_known(name)
            return known is None or known.status.allocation is None

        async def released() -> bool:
            known = cluster.claim_known(name)
            return known is None or not known.metadata.finalizers

        async def gone() -> bool:
            return await cluster.get(name) is None and cluster.claim_known(name) is None

        after(cluster, "update", "status", lambda: until(freed))
        after(cluster, "update", "", lambda: until(released))
        await until(idle)
        before = cluster.metrics.value("workqueue_adds_total", {"name": "resource_claim"})
        await cluster.user.delete(PODS, "pod", TEAM, NOW)
        await until(gone)
        await until(idle)
        assert cluster.metrics.value("workqueue_adds_total", {"name": "resource_claim"}) == before + 1


@pytest.mark.behaviour("SP-84", "SP-86")
async def test_a_finalizer_added_during_deletion_is_removed() -> None:
    async with running() as cluster:
        _, claim = await in_use(cluster)
        name = claim.metadata.name or ""

        async def hold() -> None:
            current = await cluster.get(name)
            assert current is not None
            await cluster.user.update(RESOURCE_CLAIMS, protected(current))

        async def informer_has_it() -> None:
            async def deleting() -> bool:
                known = cluster.claim_known(name)
                return known is None or known.metadata.deletion_timestamp is not None

            await until(deleting)

        after(cluster, "update", "", hold)
        after(cluster, "delete", "", informer_has_it)
        await cluster.user.delete(PODS, "pod", TEAM, NOW)

        async def gone() -> bool:
            return await cluster.get(name) is None

        await until(gone)
        assert [verb for verb, plural, _ in cluster.transport.all_writes() if plural == "resourceclaims"][-4:] == [
            "update",
            "update",
            "delete",
            "update",
        ]


@pytest.mark.behaviour("SP-82", "SP-84")
async def test_a_recreated_claim_is_reconciled() -> None:
    async with running() as cluster:
        pod, claim = await in_use(cluster)
        name = claim.metadata.name or ""

        async def make_another() -> None:
            metadata = {"name": name, "namespace": TEAM, "finalizers": [FINALIZER]}
            spec = msgspec.to_builtins(claim.spec)
            another = await cluster.user.create(
                RESOURCE_CLAIMS, msgspec.convert({"metadata": metadata, "spec": spec}, ResourceClaim)
            )
            held = await cluster.allocate(another, pod)

            async def informer_has_it() -> bool:
                known = cluster.claim_known(name)
                return known is not None and known.metadata.resource_version == held.metadata.resource_version

            await until(informer_has_it)

        after(cluster, "delete", "", make_another)
        await cluster.user.delete(PODS, "pod", TEAM, NOW)

        async def let_go() -> bool:
            current = await cluster.get(name)
            return current is not None and current.metadata.uid != claim.metadata.uid and not current.status.allocation

        await until(let_go)


async def pending(cluster: ClusterHarness) -> ResourceClaim:
    """The claim of a Pod that nobody schedules."""
    await cluster.template("template")
    await cluster.pod("pod", [FROM_TEMPLATE])
    await until(lambda: cluster.named("pod"))
    [claim] = await cluster.claims()
    return claim


@pytest.mark.behaviour("SP-75", "SP-86")
async def test_a_claim_that_was_never_allocated_goes_with_its_pod() -> None:
    async with running() as cluster:
        claim = await pending(cluster)
        assert claim.metadata.finalizers == (FINALIZER,)

        async def gone() -> bool:
            return not await cluster.claims()

        await cluster.user.delete(PODS, "pod", TEAM, NOW)
        await until(gone)
        # The finalizer first, so that the deletion takes effect at once.
        assert [verb for verb, plural, _ in cluster.transport.all_writes() if plural == "resourceclaims"] == [
            "create",
            "update",
            "delete",
        ]


@pytest.mark.behaviour("SP-75", "SP-78", "SP-85")
async def test_a_claim_that_was_never_allocated_is_replaced_when_it_is_deleted() -> None:
    async with running() as cluster:
        claim = await pending(cluster)
        name = claim.metadata.name or ""
        await cluster.user.delete(RESOURCE_CLAIMS, name, TEAM)

        async def replaced() -> bool:
            now = (await cluster.named("pod")).get("gpu")
            return now not in (name, None) and await cluster.get(name) is None

        await until(replaced)
        [another] = await cluster.claims()
        assert another.metadata.deletion_timestamp is None
