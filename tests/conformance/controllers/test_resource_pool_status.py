"""ResourcePoolStatusRequests: answered once by their controller, shown by kubectl, deleted later."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import APIError
from dray.api.features import FeatureGates
from dray.apiserver import in_process
from dray.client.in_process import in_process_client
from dray.client.interface import Client
from dray.client.resources import (
    DEVICE_TAINT_RULES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from dray.client.resources import RESOURCE_POOL_STATUS_REQUESTS as REQUESTS
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.reconciler import ControllerContext
from dray.controllers.resource_pool_status.reconciler import RETRY_SECONDS, ResourcePoolStatusRequestController
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup
from dray.sim.replica.virtual_time import LoopClock, run_virtually
from tests.in_process_server import in_process_server

DRIVER = "gpu.example.com"
GATES = FeatureGates.parse("DRAResourcePoolStatus=true")
PREFIX = "resourcepoolstatusrequest_controller_"
SLICES, CLAIMS = RESOURCE_SLICES.unstructured, RESOURCE_CLAIMS.unstructured


@dataclass
class Cluster:
    client: Client
    metrics: Metrics
    clock: LoopClock

    async def slice(self, name: str, pool: str, *devices: str, of: int = 1) -> None:
        place = {"name": pool, "generation": 1, "resourceSliceCount": of}
        spec = {"driver": DRIVER, "pool": place, "nodeName": "n", "devices": [{"name": item} for item in devices]}
        await self.client.create(SLICES, {"metadata": {"name": name}, "spec": spec})

    async def claim(self, name: str, *devices: str, pool: str = "p") -> None:
        request = {"name": "r", "exactly": {"deviceClassName": "c"}}
        body = {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": {"requests": [request]}}}
        made = await self.client.create(CLAIMS, body)
        results = [{"request": "r", "driver": DRIVER, "pool": pool, "device": item} for item in devices]
        made["status"] = {"allocation": {"devices": {"results": results}}}
        await self.client.update_status(CLAIMS, made)

    async def ask(self, name: str = "q", **spec: Any) -> None:
        await self.client.create(REQUESTS, {"metadata": {"name": name}, "spec": {"driver": DRIVER, **spec}})

    async def answer(self, name: str = "q") -> Document:
        async with asyncio.timeout(100):
            while True:
                found = await self.client.get(REQUESTS, name)
                if "status" in found:
                    status: Document = found["status"]
                    return status
                await asyncio.sleep(0.1)


@asynccontextmanager
async def running_cluster(gates: FeatureGates, contents: Sequence[Document]) -> AsyncIterator[Cluster]:
    clock, metrics = LoopClock(), Metrics()
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
    made = [namespace, *contents]
    async with in_process.in_process_server(clock, random.Random(1), gates=gates, contents=made) as server:
        client = in_process_client(server, user="admin", groups=("system:masters",))
        informers = SharedInformerFactory(client, clock, random.Random(2))
        controller = ResourcePoolStatusRequestController(
            ControllerContext(client, informers, clock, metrics=metrics, gates=gates)
        )
        async with TaskGroup("cluster") as group:
            group.spawn(informers.run(), "informers")
            group.spawn(controller.run(), "controller")
            yield Cluster(client, metrics, clock)


def virtually(
    test: Callable[[Cluster], Coroutine[Any, Any, None]],
    gates: FeatureGates = GATES,
    contents: Sequence[Document] = (),
) -> None:
    async def main() -> None:
        async with running_cluster(gates, contents) as cluster:
            await test(cluster)

    run_virtually(main())


@pytest.mark.behaviour("N-73", "N-75", "N-79", "N-124")
def test_a_request_is_answered_once() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.slice("1", "p", "a", "b")
        await cluster.claim("c", "a")
        await cluster.ask()
        status = await cluster.answer()
        assert status["poolCount"] == 1
        (pool,) = status["pools"]
        assert (pool["totalDevices"], pool["allocatedDevices"], pool["availableDevices"]) == (2, 1, 1)
        assert [(item["type"], item["reason"], item["message"]) for item in status["conditions"]] == [
            ("Complete", "CalculationComplete", "Calculated status for 1 pools")
        ]
        await cluster.claim("d", "b")
        await cluster.ask("later")
        (pool,) = (await cluster.answer("later"))["pools"]
        assert pool["availableDevices"] == 0
        assert await cluster.answer() == status
        labels = {"driver_name": DRIVER}
        assert cluster.metrics.value(f"{PREFIX}requests_processed_total", labels) == 2
        assert cluster.metrics.value(f"{PREFIX}request_processing_errors_total", labels) == 0
        assert cluster.metrics.value(f"{PREFIX}request_processing_duration_seconds_count", labels) == 2

    virtually(scenario)


@pytest.mark.behaviour("N-72", "N-73")
def test_neither_question_nor_answer_can_change() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.ask()
        await cluster.answer()
        found = await cluster.client.get(REQUESTS, "q")
        assert found["spec"]["limit"] == 100
        with pytest.raises(APIError) as refused:
            await cluster.client.update(REQUESTS, {**found, "spec": {"driver": "other.example.com", "limit": 100}})
        assert "spec: Invalid value: null: field is immutable" in refused.value.message
        with pytest.raises(APIError) as refused:
            await cluster.client.update_status(REQUESTS, {**found, "status": {**found["status"], "poolCount": 7}})
        assert "status: Invalid value: null: field is immutable" in refused.value.message
        without = {**found, "metadata": {"name": "q"}}
        with pytest.raises(APIError, match="must be specified for an update"):
            await cluster.client.update(REQUESTS, without)

    virtually(scenario)


@pytest.mark.behaviour("N-75", "N-74")
def test_the_number_of_pools_is_limited() -> None:
    async def scenario(cluster: Cluster) -> None:
        for name in ("c", "a", "b"):
            await cluster.slice(name, name, "x")
        await cluster.ask(limit=2)
        status = await cluster.answer()
        assert status["poolCount"] == 3
        assert [pool["poolName"] for pool in status["pools"]] == ["a", "b"]
        await cluster.ask("one", poolName="c")
        assert [pool["poolName"] for pool in (await cluster.answer("one"))["pools"]] == ["c"]
        await cluster.ask("none", poolName="gone")
        assert (await cluster.answer("none"))["poolCount"] == 0

    virtually(scenario)


@pytest.mark.behaviour("N-77")
@pytest.mark.parametrize("rules", [True, False])
def test_rules_count_with_their_gate(rules: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.slice("1", "p", "a", "b")
        taint = {"key": "k", "effect": "NoSchedule"}
        rule = {"metadata": {"name": "r"}, "spec": {"deviceSelector": {"device": "a"}, "taint": taint}}
        await cluster.client.create(DEVICE_TAINT_RULES, rule)
        await cluster.ask()
        (pool,) = (await cluster.answer())["pools"]
        assert pool["unavailableDevices"] == int(rules)

    virtually(scenario, FeatureGates({**GATES.overrides, "DRADeviceTaintRules": rules}))


@pytest.mark.behaviour("N-78")
def test_a_pool_that_becomes_complete_is_counted_then() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.slice("1", "p", "a", of=2)
        await cluster.ask()
        await asyncio.sleep(5)
        assert "status" not in await cluster.client.get(REQUESTS, "q")
        await cluster.slice("2", "p", "b", of=2)
        (pool,) = (await cluster.answer())["pools"]
        assert pool["totalDevices"] == 2

    virtually(scenario)


@pytest.mark.behaviour("N-78", "N-80")
def test_a_pool_that_stays_incomplete_leaves_the_request_pending() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.slice("1", "p", "a", of=2)
        await cluster.ask()
        await asyncio.sleep(sum(RETRY_SECONDS) + 1)
        await cluster.slice("2", "p", "b", of=2)
        await asyncio.sleep(86000 - sum(RETRY_SECONDS))
        assert "status" not in await cluster.client.get(REQUESTS, "q")
        await asyncio.sleep(1200)
        with pytest.raises(APIError, match="not found"):
            await cluster.client.get(REQUESTS, "q")

    virtually(scenario)


@pytest.mark.behaviour("N-80")
def test_answered_requests_are_deleted_after_an_hour() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.ask()
        await cluster.answer()
        await asyncio.sleep(3500)
        await cluster.client.get(REQUESTS, "q")
        await asyncio.sleep(800)
        with pytest.raises(APIError, match="not found"):
            await cluster.client.get(REQUESTS, "q")

    virtually(scenario)


@pytest.mark.behaviour("N-79", "N-124")
def test_a_pool_that_cannot_be_read_fails_the_request() -> None:
    device = {"name": "a", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "much"}}}
    place = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "pool": place, "nodeName": "n", "devices": [device]}
    bad = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "bad"}, "spec": spec}

    async def scenario(cluster: Cluster) -> None:
        await cluster.ask()
        status = await cluster.answer()
        assert status["poolCount"] == 0
        assert "pools" not in status
        assert [(item["type"], item["reason"]) for item in status["conditions"]] == [("Failed", "CalculationFailed")]
        labels = {"driver_name": DRIVER}
        assert cluster.metrics.value(f"{PREFIX}requests_processed_total", labels) == 1
        assert cluster.metrics.value(f"{PREFIX}request_processing_errors_total", labels) == 1

    # Written without validation.
    virtually(scenario, contents=[bad])


@pytest.mark.behaviour("N-72")
def test_without_the_gate_the_kind_is_not_served() -> None:
    async def main() -> None:
        async with in_process_server(LoopClock(), random.Random(1)) as server:
            client = in_process_client(server, user="admin", groups=("system:masters",))
            with pytest.raises(APIError, match="could not find the requested resource"):
                await client.list(REQUESTS)

    run_virtually(main())
