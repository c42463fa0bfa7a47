"""Many Pods share one claim, of either API group: one scheduler does not conflict with itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import BadRequestError
from dray.client.interface import Resource
from dray.client.rest import Call
from dray.sim.replica.virtual_time import run_virtually
from tests.conformance.classic.cluster import (
    CLAIMS,
    DRIVER,
    NOW,
    PODS,
    STRUCTURED_CLAIMS,
    TEAM,
    Boards,
    Cluster,
    named,
    running_cluster,
)

Scenario = Callable[[Cluster], Coroutine[Any, Any, None]]
ALLOCATION = {"devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": "fabric", "device": "gpu-0"}]}}


def run_scenario(scenario: Scenario) -> None:
    async def run() -> None:
        async with running_cluster() as cluster:
            await cluster.furnish([f"n{number}" for number in range(4)])
            _slow_down(cluster)
            await scenario(cluster)

    run_virtually(run())


def _slow_down(cluster: Cluster) -> None:
    """Let the scheduler's writes take as long as on a real disk: otherwise they could not conflict."""
    transport = cluster.transports["scheduler"].inner
    send = transport.send

    async def slow(call: Call) -> Document:
        if call.verb not in ("get", "list", "watch"):
            await asyncio.sleep(0.005)
        return await send(call)

    transport.send = slow  # type: ignore[method-assign]


async def _bound(cluster: Cluster) -> list[str]:
    return sorted(
        pod["metadata"]["name"] for pod in (await cluster.user.list(PODS, TEAM)).items if pod["spec"].get("nodeName")
    )


async def _users(cluster: Cluster, claims: Resource[Document]) -> list[str]:
    claim = await cluster.user.get(claims, "c", TEAM)
    return sorted(user["name"] for user in claim["status"].get("reservedFor") or ())


async def _classic(cluster: Cluster, limit: int = -1) -> None:
    claim = await cluster.claim("c", "Immediate")
    status = {"phase": "Allocated", "driverName": DRIVER, "userLimit": limit}
    await cluster.user.update_status(CLAIMS, {**claim, "status": status})


async def _structured(cluster: Cluster, users: int = 0) -> None:
    devices = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}
    metadata = {"name": "c", "namespace": TEAM}
    claim = await cluster.user.create(STRUCTURED_CLAIMS, {"metadata": metadata, "spec": {"devices": devices}})
    others = [{"apiGroup": "example.com", "resource": "jobs", "name": f"j{n}", "uid": f"j{n}"} for n in range(users)]
    status = {"allocation": ALLOCATION, "reservedFor": others}
    await cluster.user.update_status(STRUCTURED_CLAIMS, {**claim, "status": status})


@pytest.mark.behaviour("CL-55", "CL-40", "CL-11")
@pytest.mark.parametrize(("make", "claims"), [(_classic, CLAIMS), (_structured, STRUCTURED_CLAIMS)])
def test_a_hundred_pods_share_a_claim_with_few_writes(
    make: Callable[[Cluster], Coroutine[Any, Any, None]], claims: Resource[Document]
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await make(cluster)
        names = sorted(f"p{number}" for number in range(100))
        before = asyncio.get_running_loop().time()
        await asyncio.gather(*(cluster.pod(name, named("c"), cpu="10m") for name in names))
        await cluster.eventually(lambda: _bound(cluster), lambda bound: bound == names)
        assert asyncio.get_running_loop().time() - before < 3
        assert await _users(cluster, claims) == names
        assert len(cluster.transports["scheduler"].writes()) < 20

    run_scenario(scenario)


@pytest.mark.behaviour("CL-55", "CL-11", "CL-40")
def test_no_more_pods_than_allowed_share_a_claim() -> None:
    async def scenario(cluster: Cluster) -> None:
        await _classic(cluster, limit=3)
        names = [f"p{number}" for number in range(8)]
        await asyncio.gather(*(cluster.pod(name, named("c"), cpu="10m") for name in names))
        bound = await cluster.eventually(lambda: _bound(cluster), lambda bound: len(bound) == 3)
        assert await _users(cluster, CLAIMS) == bound
        for name in set(names) - set(bound):
            await cluster.message(name, "resourceclaim in use (team/c)")
        await cluster.user.delete(PODS, bound[0], TEAM, NOW)
        await cluster.eventually(lambda: _bound(cluster), lambda now: len(now) == 3 and now != bound)

    run_scenario(scenario)


@pytest.mark.behaviour("CL-55")
def test_a_structured_claim_has_no_more_consumers_than_the_api_allows() -> None:
    async def scenario(cluster: Cluster) -> None:
        await _structured(cluster, users=254)
        names = [f"p{number}" for number in range(5)]
        await asyncio.gather(*(cluster.pod(name, named("c"), cpu="10m") for name in names))
        bound = await cluster.eventually(lambda: _bound(cluster), lambda bound: len(bound) == 2)
        for name in set(names) - set(bound):
            await cluster.message(name, "status.reservedFor: Too many: 257: must have at most 256 items")
        await cluster.user.delete(PODS, bound[0], TEAM, NOW)
        await cluster.eventually(lambda: _bound(cluster), lambda now: len(now) == 2 and now != bound)

    run_scenario(scenario)


@pytest.mark.behaviour("CL-55", "CL-41")
def test_reservations_of_failed_bindings_are_removed_with_few_writes() -> None:
    async def scenario(cluster: Cluster) -> None:
        await _classic(cluster)
        cluster.start_driver(Boards({}))
        broken = True

        def fail(call: Any) -> Exception | None:
            if broken and call.subresource == "binding":
                return BadRequestError("no binding today")
            return None

        cluster.transports["scheduler"].fail = fail
        names = sorted(f"p{number}" for number in range(30))
        await asyncio.gather(*(cluster.pod(name, named("c"), cpu="10m") for name in names))
        await cluster.message("p0", "no binding today")
        broken = False
        await cluster.eventually(lambda: _bound(cluster), lambda bound: bound == names)
        assert await _users(cluster, CLAIMS) == names

    run_scenario(scenario)
