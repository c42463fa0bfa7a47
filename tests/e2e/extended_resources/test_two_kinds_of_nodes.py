"""One unchanged Deployment, while its nodes move from a device plugin to a driver; all real processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dray.api.document import Document, GroupVersion
from dray.client.interface import Client, Patch, PatchType, unstructured
from tests.e2e.node.conftest import end_shims
from tests.e2e.node.harness import NODES, PODS, Agent, client_of, container_status
from tests.fork_server import ForkedPopen, run
from tests.servers import Server

T = TypeVar("T")
GPU = "example.com/gpu"
APPS, DRA = GroupVersion("apps", "v1"), GroupVersion("resource.k8s.io", "v1")
DEPLOYMENTS = unstructured(APPS, "deployments", "Deployment")
CLASSES = unstructured(DRA, "deviceclasses", "DeviceClass", namespaced=False)
CLAIMS = unstructured(DRA, "resourceclaims", "ResourceClaim")
EVENTS = unstructured(GroupVersion("", "v1"), "events", "Event")
EXAMPLES = Path(__file__).parents[3] / "examples"
MAPPING = {"containerName": "a", "resourceName": GPU, "requestName": "container-0-request-0"}
SECONDS_MAX = 120.0
LOOK_SECONDS = 0.1


@pytest.fixture(scope="module")
def agents(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Agent, Agent]]:
    """Two nodes of this machine."""
    found = [Agent(server, tmp_path_factory.mktemp(name), name, ("--runtime=process",)) for name in ("first", "second")]
    for agent in found:
        agent.start()
    yield found[0], found[1]
    for agent in found:
        agent.stop()
        end_shims(agent)


@contextlib.contextmanager
def program(agent: Agent, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """An example as its author would start it; its end may come earlier."""
    with (agent.root / "examples.log").open("a") as log:
        process = ForkedPopen((sys.executable, *arguments), stdout=log, stderr=log, env=os.environ | environment)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


def device_plugin(agent: Agent) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    """One device."""
    arguments = (f"--resource={GPU}", "--pattern=/dev/null", f"--folder={agent.root}/device-plugins")
    return program(agent, str(EXAMPLES / "device-plugin/host_devices.py"), *arguments)


def driver(agent: Agent, server: Server, gpus: int) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    """So many cards, each also to be had in parts."""
    return program(
        agent,
        str(EXAMPLES / "gpu-driver/driver.py"),
        f"--node-name={agent.name}",
        f"--kubeconfig={server.kubeconfig}",
        f"--root-dir={agent.root}",
        f"--cdi-dir={agent.root}/cdi",
        GPUS=str(gpus),
    )


def device_class() -> Document:
    expression = 'device.driver == "gpu.example.com" && device.attributes["gpu.example.com"].profile == "full"'
    spec = {"selectors": [{"cel": {"expression": expression}}], "extendedResourceName": GPU}
    return {"metadata": {"name": "gpu.example.com"}, "spec": spec}


def deployment(replicas: int) -> Document:
    script = "env | grep ^GPU_ | sort; exec sleep 3600"
    container = {
        "name": "a",
        "image": "busybox",
        "command": ["sh", "-c", script],
        "resources": {"limits": {GPU: "1"}},
    }
    template = {
        "metadata": {"labels": {"app": "demo"}},
        "spec": {
            "containers": [container],
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
        },
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "demo"}}, "template": template}
    return {"metadata": {"name": "demo"}, "spec": spec}


@dataclass
class Demo:
    """The Deployment's Pods, looked at."""

    client: Client

    async def scale(self, replicas: int) -> None:
        patch = Patch(PatchType.MERGE, {"spec": {"replicas": replicas}})
        await self.client.patch(DEPLOYMENTS, "demo", "default", patch)

    async def pods(self) -> list[Document]:
        found = (await self.client.list(PODS, "default")).items
        return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]

    async def running(self, count: int, pending: int = 0) -> list[Document]:
        """The running Pods, as soon as there are so many of both kinds."""

        async def settled() -> list[Document] | None:
            pods = await self.pods()
            running = [pod for pod in pods if "running" in container_status(pod).get("state", {})]
            waiting = [pod for pod in pods if is_unschedulable(pod)]
            return running if (len(running), len(waiting)) == (count, pending) else None

        return await self.until(settled, self.pods)

    async def until(self, look: Callable[[], Awaitable[T | None]], story: Callable[[], Awaitable[Any]]) -> T:
        deadline = time.monotonic() + SECONDS_MAX
        while time.monotonic() < deadline:
            found = await look()
            if found:
                return found
            await asyncio.sleep(LOOK_SECONDS)
        lines = [(pod["metadata"]["name"], pod["spec"].get("nodeName"), pod["status"]) for pod in await story()]
        raise AssertionError(f"it did not come that far: {lines}")

    async def allocatable(self, node: str, count: str) -> None:
        async def same() -> bool:
            return bool((await self.client.get(NODES, node))["status"]["allocatable"].get(GPU) == count)

        await self.until(same, self.pods)

    async def extended_claims(self) -> dict[str, Document]:
        return {claim["metadata"]["name"]: claim for claim in (await self.client.list(CLAIMS, "default")).items}

    async def devices_in_use(self) -> list[tuple[str, str]]:
        claims = (await self.extended_claims()).values()
        results = [r for c in claims for r in c["status"].get("allocation", {}).get("devices", {}).get("results", ())]
        return sorted((result["pool"], result["device"]) for result in results)


def is_unschedulable(pod: Document) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(item["type"] == "PodScheduled" and item.get("reason") == "Unschedulable" for item in conditions)


def special_name(pod: Document) -> str:
    name: str = pod["status"].get("extendedResourceClaimStatus", {}).get("resourceClaimName", "")
    return name


def by_node(pods: list[Document]) -> dict[str, list[Document]]:
    found: dict[str, list[Document]] = {}
    for pod in pods:
        found.setdefault(pod["spec"]["nodeName"], []).append(pod)
    return found


def migrate(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "dray", "migrate", "plan", "--resource", GPU, *arguments)
    return run(command, env=server.environment)


@pytest.fixture
async def demo(server: Server, agents: tuple[Agent, Agent]) -> AsyncIterator[Demo]:
    client = client_of(server)
    yield Demo(client)
    await client.close()


@pytest.mark.behaviour("XR-07", "XR-11", "XR-37", "XR-38", "XR-39", "XR-40")
async def test_a_deployment_stays_as_it_is_while_its_nodes_change(
    server: Server, agents: tuple[Agent, Agent], demo: Demo
) -> None:
    first, second = agents
    client = demo.client
    with device_plugin(first) as plugin, driver(second, server, 2):
        await demo.allocatable("first", "1")
        await client.create(CLASSES, device_class())
        await client.create(DEPLOYMENTS, deployment(3), "default")
        pods = by_node(await demo.running(3))
        # One device of the plugin, two of the driver; only those of the driver have a claim.
        [old], served = pods["first"], pods["second"]
        assert special_name(old) == ""
        assert {special_name(pod) for pod in served} == (await demo.extended_claims()).keys()
        assert [pod["status"]["extendedResourceClaimStatus"]["requestMappings"] for pod in served] == [[MAPPING]] * 2
        assert await demo.devices_in_use() == [("second", "gpu-0"), ("second", "gpu-1")]

        await demo.scale(4)
        await demo.running(3, pending=1)
        assert migrate(server, "--check").returncode == 0

        # The device plugin goes and a driver comes, with the same card and one more.
        plugin.terminate()
        plugin.wait(20)
        await demo.allocatable("first", "0")
        with driver(first, server, 2):
            pods = by_node(await demo.running(4))
            assert {len(pods["first"]), len(pods["second"])} == {2}
            [new] = [pod for pod in pods["first"] if special_name(pod)]
            [still] = [pod for pod in pods["first"] if not special_name(pod)]
            assert still["metadata"]["uid"] == old["metadata"]["uid"]
            assert container_status(still)["restartCount"] == 0
            assert container_status(still)["containerID"] == container_status(old)["containerID"]

            # What the old Pod has is not given away a second time.
            await demo.scale(5)
            await demo.running(4, pending=1)
            in_use = await demo.devices_in_use()
            assert len(in_use) == len(set(in_use)) == 3
            checked = migrate(server, "--check")
            assert (checked.returncode, checked.stderr) == (0, ""), checked.stdout

            # When it ends, its card is the driver's like all others.
            await client.delete(PODS, old["metadata"]["name"], "default")
            pods = by_node(await demo.running(4, pending=1))
            assert old["metadata"]["uid"] not in [pod["metadata"]["uid"] for pod in pods["first"]]
            assert all(special_name(pod) for found in pods.values() for pod in found)
            assert len(set(await demo.devices_in_use())) == 4
            assert new["metadata"]["uid"] in [pod["metadata"]["uid"] for pod in pods["first"]]

            await demo.scale(0)
            await demo.until(lambda: _no_claims(demo), demo.pods)


async def _no_claims(demo: Demo) -> bool:
    return not await demo.extended_claims()
