"""PodResources over its socket, with real device plugins and claims from the checkpoint."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from dray.api.document import UID, NamespacedName
from dray.api.features import FeatureGates
from dray.api.gate_table import Release
from dray.driver.device_plugin import Device
from dray.node.checkpoint_file import CheckpointFile
from dray.node.devices.files import load_checkpoint
from dray.node.dra import checkpoint
from dray.node.dra.claims import ClaimInfo
from dray.node.dra.claims import Device as ClaimDevice
from dray.node.dra.dra_manager import DraManager
from dray.node.pod_resources.server import PodResourcesServer
from dray.node.pod_resources.sources import Sources
from dray.rpc.pb.podresources.v1 import api_pb2 as v1
from dray.rpc.pb.podresources.v1.api_pb2_grpc import PodResourcesListerStub
from dray.rpc.pb.podresources.v1alpha1 import api_pb2 as v1alpha1
from dray.rpc.pb.podresources.v1alpha1.api_pb2_grpc import PodResourcesListerStub as AlphaStub
from dray.rpc.sockets import connect
from dray.runtime.metrics import Metrics
from dray.runtime.system import SystemClock
from tests.e2e.node_devices.harness import Foo, node, plugin, task, until
from tests.unit.node.devices.builders import FOO, Pods, asking, container, pod, sidecar
from tests.unit.node.pod_resources.fakes import with_claims

GATES = FeatureGates()


class Client:
    def __init__(self, channel: grpc.aio.Channel, metrics: Metrics) -> None:
        self.v1: Any = PodResourcesListerStub(channel)
        self.alpha: Any = AlphaStub(channel)
        self.metrics = metrics

    async def list(self) -> dict[str, list[tuple[str, str]]]:
        """Devices by Pod."""
        found = await self.v1.List(v1.ListPodResourcesRequest())
        return {
            item.name: [(one.resource_name, one.device_ids[0]) for part in item.containers for one in part.devices]
            for item in found.pod_resources
        }

    async def get(self, name: str, namespace: str = "default") -> v1.PodResources:
        answer = await self.v1.Get(v1.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace))
        found: v1.PodResources = answer.pod_resources
        return found

    def counted(self, name: str, version: str = "v1") -> float:
        return self.metrics.value(f"kubelet_pod_resources_endpoint_{name}", {"server_api_version": version})


@contextlib.asynccontextmanager
async def served(root: str, sources: Sources, gates: FeatureGates = GATES) -> AsyncIterator[Client]:
    metrics = Metrics()
    server = PodResourcesServer(root, sources, SystemClock(), metrics, gates)
    async with task(server.run()):
        await server.wait_started()
        async with connect(server.path) as channel:
            yield Client(channel, metrics)


async def refused(work: Any) -> tuple[grpc.StatusCode, str | None]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await work
    return caught.value.code(), caught.value.details()


@pytest.mark.behaviour("PR-01", "PR-02", "PR-05", "PR-16", "PR-25")
async def test_devices_of_pods(folder: str) -> None:
    pods = Pods()
    async with node(os.path.join(folder, "dp"), pods) as here, plugin(here.folder, Foo("a", "b", "c")):
        await here.until_amounts(3, 3)
        for uid in ("u1", "u2"):
            assert await here.admit(asking(uid)) is None
        async with served(folder, Sources(pods, here.devices)) as client:
            path = os.path.join(folder, "pod-resources")
            assert os.stat(path).st_mode & 0o777 == 0o750
            assert await client.list() == {"pod-u1": [(FOO, "a")], "pod-u2": [(FOO, "b")]}
            listed = await client.v1.List(v1.ListPodResourcesRequest())
            assert await client.get("pod-u1") == listed.pod_resources[0]
            alpha = await client.alpha.List(v1alpha1.ListPodResourcesRequest())
            assert [item.containers[0].devices[0].device_ids[0] for item in alpha.pod_resources] == ["a", "b"]
            # Reading frees what Pods have that are gone; `Get` does not.
            pods.remove("u1")
            await client.get("pod-u2")
            assert here.held("u1") == ["a"]
            assert await client.list() == {"pod-u2": [(FOO, "b")]}
            assert here.held("u1") == []


@pytest.mark.behaviour("PR-09")
async def test_allocatable_follows_health(folder: str) -> None:
    foo = Foo("a", Device("b", numa_nodes=(1,)))
    async with (
        node(os.path.join(folder, "dp")) as here,
        plugin(here.folder, foo),
        served(folder, Sources(here.pods, here.devices)) as client,
    ):

        async def ids() -> list[str]:
            found = await client.v1.GetAllocatableResources(v1.AllocatableResourcesRequest())
            return [one.device_ids[0] for one in found.devices]

        await here.until_amounts(2, 2)
        assert await here.admit(asking("u1")) is None
        assert await ids() == ["a", "b"]
        foo.set(Device("a", healthy=False), Device("b"))
        await here.until_amounts(2, 1)
        assert await ids() == ["b"]
        foo.set(Device("a"), Device("b"))
        await here.until_amounts(2, 2)
        assert await ids() == ["a", "b"]


def prepared_claim(folder: str) -> DraManager:
    """A manager with a claim of Pod u1, from its checkpoint."""
    device = ClaimDevice("pool", "gpu-0", None, ("req",), ("v.com/gpu=0",))
    saved = ClaimInfo(UID("c1"), NamespacedName("default", "gpus"), {"drv": (device,)}, frozenset({UID("u1")}))
    CheckpointFile(os.path.join(folder, checkpoint.FILE_NAME)).replace(checkpoint.encode([saved]))
    unused = cast(Any, None)
    return DraManager(unused, "node", folder, SystemClock(), Metrics())


@pytest.mark.behaviour("PR-15", "PR-23")
async def test_claims_survive_a_restart_without_driver_and_api_server(folder: str) -> None:
    claims, pods = prepared_claim(folder), Pods()
    async with served(folder, Sources(pods, claims=(claims,))) as client:
        assert await client.list() == {}
        pods.add(with_claims("u1", {"g": "gpus"}, {"main": [("g", "")]}))
        found = (await client.get("pod-u1")).containers[0].dynamic_resources
        assert [(item.claim_name, item.claim_resources[0].cdi_devices[0].name) for item in found] == [
            ("gpus", "v.com/gpu=0")
        ]


@pytest.mark.behaviour("PR-17", "PR-20")
async def test_errors_and_counters(folder: str) -> None:
    pods = Pods(pod("u1"), pod("u2", name="done", status={"phase": "Succeeded"}))
    async with served(folder, Sources(pods)) as client:
        unknown = grpc.StatusCode.UNKNOWN
        assert await refused(client.get("nope", "x")) == (unknown, "pod nope in namespace x not found")
        assert await refused(client.get("done")) == (unknown, "pod done in namespace default not found")
        assert (await client.get("pod-u1")).name == "pod-u1"
        await client.list()
        await client.alpha.List(v1alpha1.ListPodResourcesRequest())
        await client.v1.GetAllocatableResources(v1.AllocatableResourcesRequest())
        counted = {name: client.counted(name) for name in ("requests_total", "requests_list", "requests_get")}
        assert counted == {"requests_total": 5, "requests_list": 1, "requests_get": 3}
        assert client.counted("requests_get_allocatable") == 1
        await until(lambda: client.counted("errors_get") == 2)
        assert client.counted("errors_list") == 0
        assert client.counted("requests_total", "v1alpha1") == 1
        assert client.counted("requests_list", "v1alpha1") == 0


@pytest.mark.behaviour("PR-18", "PR-22")
async def test_get_has_the_containers_of_list_and_reading_changes_nothing(folder: str) -> None:
    item = pod("u1", [container("main", {FOO: 1})], [container("init", {FOO: 1}), sidecar("side", {FOO: 1})])
    async with node(os.path.join(folder, "dp")) as here, plugin(here.folder, Foo("a", "b")):
        await here.until_amounts(2, 2)
        assert await here.admit(item) is None
        saved = load_checkpoint(os.path.join(here.folder, "kubelet_internal_checkpoint"))
        async with served(folder, Sources(here.pods, here.devices)) as client:
            one = await client.get("pod-u1")
            assert [part.name for part in one.containers] == ["side", "main"]
            assert one == (await client.v1.List(v1.ListPodResourcesRequest())).pod_resources[0]
            await client.v1.GetAllocatableResources(v1.AllocatableResourcesRequest())
        assert load_checkpoint(os.path.join(here.folder, "kubelet_internal_checkpoint")) == saved
        assert [here.held("u1", name) for name in ("init", "side", "main")] == [["a"], ["a"], ["b"]]


@pytest.mark.behaviour("EV-26", "NG-11", "NG-12", "PR-19")
async def test_gates_that_a_release_lets_be_set(folder: str) -> None:
    off = FeatureGates.parse("PodResourcesGet=false,PodResourcesDynamicResources=false", Release(1, 35))
    user = with_claims("u1", {"g": "gpus"}, {"main": [("g", "")]})
    sources = Sources(Pods(user), claims=(prepared_claim(folder),))
    async with served(folder, sources) as client:
        before = await client.get("pod-u1")
        assert before.containers[0].dynamic_resources
    async with served(folder, sources, off) as client:
        assert await refused(client.get("pod-u1")) == (
            grpc.StatusCode.UNKNOWN,
            "PodResources API Get method disabled",
        )
        (listed,) = (await client.v1.List(v1.ListPodResourcesRequest())).pod_resources
        assert not listed.containers[0].dynamic_resources
    without_claims = FeatureGates.parse("PodResourcesDynamicResources=false", Release(1, 35))
    async with served(folder, sources, without_claims) as client:
        assert await client.get("pod-u1") == listed
    # The API keeps no state: it is as before.
    async with served(folder, sources) as client:
        assert await client.get("pod-u1") == before


@pytest.mark.behaviour("PR-21")
async def test_too_many_requests_are_refused(folder: str) -> None:
    async with served(folder, Sources(Pods())) as client:
        answers = await asyncio.gather(*(client.list() for _ in range(400)), return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
        assert 0 < len(errors) < 400
        found = {(error.code(), error.details()) for error in errors}
        assert found == {(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")}
        assert client.metrics.value("dray_node_calls_rejected_total", {"api": "pod-resources"}) == len(errors)
