"""`dray node resources`: the rows for answers of PodResources, and the command at a socket."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc.aio
import pytest

from dray.cli.node_resources import HeldRow, allocatable_rows, pod_rows
from dray.cmd.main import main
from dray.rpc.pb.podresources.v1 import api_pb2 as v1
from dray.rpc.pb.podresources.v1.api_pb2_grpc import add_PodResourcesListerServicer_to_server
from dray.rpc.sockets import listen


def device(name: str, *nodes: int) -> v1.ContainerDevices:
    topology = v1.TopologyInfo(nodes=[v1.NUMANode(id=node) for node in nodes])
    return v1.ContainerDevices(resource_name="example.com/foo", device_ids=[name], topology=topology)


MEMORY = v1.ContainerMemory(memory_type="memory", size=2 << 30, topology=v1.TopologyInfo(nodes=[v1.NUMANode(id=1)]))
CLAIM = v1.DynamicResource(
    class_name="gpu",
    claim_name="pod-gpu-x7",
    claim_namespace="default",
    claim_resources=[
        v1.ClaimResource(
            driver_name="gpu.example.com",
            pool_name="node-1",
            device_name="gpu-0",
            cdi_devices=[v1.CDIDevice(name="example.com/gpu=0")],
        )
    ],
)
MAIN = v1.ContainerResources(
    name="main",
    # One entry for each device and NUMA node.
    devices=[device("b", 0), device("a", 0), device("c", 0), device("c", 1)],
    cpu_ids=[4, 2, 3, 8],
    memory=[MEMORY],
    dynamic_resources=[CLAIM],
)
POD = v1.PodResources(name="worker", namespace="default", containers=[MAIN, v1.ContainerResources(name="plain")])


@pytest.mark.behaviour("PR-06", "PR-07", "PR-08", "PR-10")
def test_rows_of_a_pod() -> None:
    place = ("default", "worker", "main")
    assert pod_rows([POD]) == [
        HeldRow(*place, "example.com/foo", "a,b", "0"),
        HeldRow(*place, "example.com/foo", "c", "0-1"),
        HeldRow(*place, "cpu", "2-4,8"),
        HeldRow(*place, "memory", "2Gi", "1"),
        HeldRow(*place, "pod-gpu-x7", "gpu.example.com/node-1/gpu-0", class_name="gpu", cdi="example.com/gpu=0"),
        HeldRow("default", "worker", "plain", "", ""),
    ]


@pytest.mark.behaviour("PR-09")
def test_rows_of_what_the_node_can_allocate() -> None:
    found = v1.AllocatableResourcesResponse(devices=[device("a")], cpu_ids=[0, 1], memory=[MEMORY])
    assert allocatable_rows(found) == [
        HeldRow("", "", "", "example.com/foo", "a"),
        HeldRow("", "", "", "cpu", "0-1"),
        HeldRow("", "", "", "memory", "2Gi", "1"),
    ]


class Kubelet:
    """A PodResources service with one Pod."""

    async def List(self, _request: Any, _context: Any) -> v1.ListPodResourcesResponse:
        return v1.ListPodResourcesResponse(pod_resources=[POD])

    async def Get(self, request: v1.GetPodResourcesRequest, context: Any) -> v1.GetPodResourcesResponse:
        if request.pod_name != POD.name:
            await context.abort(grpc.StatusCode.UNKNOWN, f"pod {request.pod_name} in namespace default not found")
        return v1.GetPodResourcesResponse(pod_resources=POD)

    async def GetAllocatableResources(self, _request: Any, _context: Any) -> v1.AllocatableResourcesResponse:
        return v1.AllocatableResourcesResponse(cpu_ids=[0, 1])


async def run(root: Any, *arguments: str) -> int:
    folder = root / "pod-resources"
    folder.mkdir(exist_ok=True)
    server = grpc.aio.server()
    add_PodResourcesListerServicer_to_server(Kubelet(), server)
    await listen(server, str(folder / "kubelet.sock"))
    try:
        return await asyncio.to_thread(main, ["node", "resources", f"--root-dir={root}", *arguments])
    finally:
        await server.stop(None)


async def test_the_table(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run(tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAMESPACE", "POD", "CONTAINER", "RESOURCE", "HOLDS", "NUMA"]
    assert lines[2].split() == ["default", "worker", "main", "example.com/foo", "c", "0-1"]
    assert lines[6].split() == ["default", "worker", "plain", "-", "-", "-"]


async def test_one_pod_as_json(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run(tmp_path, "worker", "-o", "json") == 0
    assert [row["resource"] for row in json.loads(capsys.readouterr().out)["items"]][-2:] == ["pod-gpu-x7", ""]


async def test_the_node(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run(tmp_path, "--allocatable") == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["cpu", "0-1", "-"]


async def test_a_pod_that_the_node_does_not_have(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run(tmp_path, "other") == 1
    assert "Unknown: pod other in namespace default not found\n" in capsys.readouterr().err


def test_no_agent(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node", "resources", f"--root-dir={tmp_path}"]) == 1
    error = capsys.readouterr().err
    assert "pod-resources/kubelet.sock: Unavailable" in error
    assert "Is the node agent running" in error


def test_allocatable_is_not_about_a_pod(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node", "resources", "--allocatable", "worker", f"--root-dir={tmp_path}"]) == 2
    assert "leave out the Pod" in capsys.readouterr().err
