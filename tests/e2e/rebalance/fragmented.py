"""A real cluster whose devices are fragmented: one GPU of two is free on each of three nodes, and a Pod needs two."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from dray.api.document import Document
from dray.cli.cluster import connect
from dray.client.interface import Bookmark, Client, WatchOptions
from dray.client.resources import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    REPLICA_SETS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_SLICES,
)
from dray.sim.usable_nodes import HOLD_TAINT
from tests.fork_server import ForkedPopen
from tests.servers import Server, running_server
from tests.unit.sim import cluster as builders

NAMESPACE = "default"
SECONDS_MAX = 120.0
NODE_NAMES = ("sim-0", "sim-1", "sim-2")


def pod_spec(template: str) -> Document:
    return {
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}],
    }


def gang() -> list[Document]:
    """A PodGroup and its two Pods: one with two devices, and one with one."""
    pods = [
        {
            "metadata": {"name": f"train-{number}", "namespace": NAMESPACE},
            "spec": {**pod_spec(template), "schedulingGroup": {"podGroupName": "train"}},
        }
        for number, template in enumerate(("two", "one"))
    ]
    policy = {"gang": {"minCount": len(pods)}}
    group = {"metadata": {"name": "train", "namespace": NAMESPACE}, "spec": {"schedulingPolicy": policy}}
    return [group, *pods]


def big_pod() -> Document:
    return {"metadata": {"name": "big", "namespace": NAMESPACE}, "spec": pod_spec("two")}


def replica_set(replicas: int) -> Document:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": pod_spec("one")}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": "web", "namespace": NAMESPACE}, "spec": spec}


def _template(name: str, count: int) -> Document:
    found = builders.template(name, builders.exactly(count))
    return {**found, "metadata": {"name": name, "namespace": NAMESPACE}}


class Fragmented:
    """The cluster, with a client of the administrator."""

    def __init__(self, server: Server, client: Client) -> None:
        self.server = server
        self.client = client

    async def pods(self) -> list[Document]:
        return list((await self.client.list(PODS.unstructured, NAMESPACE)).items)

    async def node_of(self, name: str) -> str:
        pod = await self.client.get(PODS, name, NAMESPACE)
        return pod.spec.node_name or ""

    async def held(self) -> list[str]:
        nodes = (await self.client.list(NODES)).items
        return [node.metadata.name or "" for node in nodes if any(t.key == HOLD_TAINT for t in node.spec.taints)]

    async def wait(self, resource: Any, wanted: Callable[[list[Document]], bool]) -> None:
        """Wait until the objects of a resource are as wanted."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                page = await self.client.list(resource.unstructured)
                if wanted(list(page.items)):
                    return
                options = WatchOptions(resource_version=page.resource_version)
                async with aclosing(self.client.watch(resource.unstructured, "", options)) as events:
                    async for event in events:
                        if not isinstance(event, Bookmark):
                            break

    def dray(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        output, errors = process.communicate(timeout=SECONDS_MAX)
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "dray", *arguments]
        return ForkedPopen(command, env=self.server.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@asynccontextmanager
async def fragmented(data_dir: Path, *flags: str) -> AsyncIterator[Fragmented]:
    """Run the cluster: three Pods of a ReplicaSet, each on a node of its own, and `big`, which fits nowhere."""
    with running_server(data_dir, f"--nodes={len(NODE_NAMES)}", *flags) as server:
        async with connect(str(server.kubeconfig)) as client:
            device_class = builders.device_class("gpu", f'device.driver == "{builders.GPU}"')
            await client.create(DEVICE_CLASSES.unstructured, device_class)
            for name in NODE_NAMES:
                cards = [builders.device("gpu-0"), builders.device("gpu-1")]
                document = builders.resource_slice(name, builders.GPU, *cards, nodeName=name)
                await client.create(RESOURCE_SLICES.unstructured, document)
            for name, count in (("one", 1), ("two", 2)):
                await client.create(RESOURCE_CLAIM_TEMPLATES.unstructured, _template(name, count))
            await client.create(REPLICA_SETS.unstructured, replica_set(len(NODE_NAMES)))
            cluster = Fragmented(server, client)
            await cluster.wait(PODS, is_on_every_node)
            await client.create(PODS.unstructured, big_pod())
            await cluster.wait(PODS, is_unschedulable("big"))
            yield cluster


def is_on_every_node(pods: list[Document]) -> bool:
    """Every node has a Pod."""
    return {pod["spec"].get("nodeName") for pod in pods} - {None} == set(NODE_NAMES)


def is_unschedulable(name: str) -> Callable[[list[Document]], bool]:
    """The scheduler has tried the Pod."""

    def check(pods: list[Document]) -> bool:
        conditions = [c for p in pods if p["metadata"]["name"] == name for c in p["status"].get("conditions") or ()]
        return any(c["type"] == "PodScheduled" and c.get("reason") == "Unschedulable" for c in conditions)

    return check
