"""Pools counted by the cluster: a ResourcePoolStatusRequest, its answer, and its deletion."""

from __future__ import annotations

import asyncio
from typing import Final

from dray.api.document import Document
from dray.api.errors import NotFoundError
from dray.cli.cluster import connect
from dray.client.errors import ignore_not_found
from dray.client.interface import Client, DeleteOptions
from dray.client.resources import RESOURCE_POOL_STATUS_REQUESTS
from dray.sim.snapshot import SnapshotError
from dray.sim.usage import PoolRow

# A request about a pool that stays incomplete is never answered; its controller gives up after half a minute.
ANSWER_SECONDS_MAX: Final = 45.0
POLL_SECONDS: Final = 0.2
# The largest number of pools in one answer.
_LIMIT: Final = 1000


async def request_pools(kubeconfig: str, context: str, driver: str) -> list[PoolRow]:
    """Return the pools of a driver as the cluster counts them."""
    async with connect(kubeconfig, context) as client:
        request = await _create(client, driver)
        try:
            status = await _answer(client, request["metadata"]["name"])
        finally:
            options = DeleteOptions(uid=request["metadata"]["uid"])
            await ignore_not_found(
                client.delete(RESOURCE_POOL_STATUS_REQUESTS, request["metadata"]["name"], "", options)
            )
    failure = next((item["message"] for item in status.get("conditions") or () if item["type"] == "Failed"), None)
    if failure is not None:
        raise SnapshotError(f"the cluster could not count the pools of {driver}: {failure}")
    return [PoolRow.of(pool) for pool in status.get("pools") or ()]


async def _create(client: Client, driver: str) -> Document:
    body = {"metadata": {"generateName": "dray-top-"}, "spec": {"driver": driver, "limit": _LIMIT}}
    try:
        return await client.create(RESOURCE_POOL_STATUS_REQUESTS, body)
    except NotFoundError as error:
        text = "the cluster has no ResourcePoolStatusRequests; they need the feature gate DRAResourcePoolStatus"
        raise SnapshotError(text) from error


async def _answer(client: Client, name: str) -> Document:
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            while True:
                found = await client.get(RESOURCE_POOL_STATUS_REQUESTS, name)
                if found.get("status") is not None:
                    status: Document = found["status"]
                    return status
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError as error:
        text = "the request was not answered: a pool is incomplete, or its controller does not run"
        raise SnapshotError(text) from error
    except NotFoundError as error:
        raise SnapshotError("the request was deleted before it was answered") from error
