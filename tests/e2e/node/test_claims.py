"""A Pod with a claim, all the way: scheduler, agent, an example driver, CDI, container."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dray.api.document import Document, GroupVersion
from dray.api.errors import AlreadyExistsError
from dray.client.interface import unstructured
from tests.e2e.kubectl.tool import Kubectl
from tests.e2e.node.conftest import BOTH
from tests.e2e.node.harness import PODS, Agent, Cluster, shell
from tests.fork_server import ForkedPopen
from tests.servers import Server

RUNTIMES = BOTH
EXAMPLE = Path(__file__).parents[3] / "examples" / "env-driver"
RESOURCE = GroupVersion("resource.k8s.io", "v1")
CLASSES = unstructured(RESOURCE, "deviceclasses", "DeviceClass", namespaced=False)
CLAIMS = unstructured(RESOURCE, "resourceclaims", "ResourceClaim")
SLICES = unstructured(RESOURCE, "resourceslices", "ResourceSlice", namespaced=False)
START_SECONDS_MAX = 120.0


@contextlib.contextmanager
def driver(agent: Agent, server: Server) -> Iterator[None]:
    """The example as its author would start it."""
    arguments = (
        sys.executable,
        str(EXAMPLE / "driver.py"),
        f"--node-name={agent.name}",
        f"--kubeconfig={server.kubeconfig}",
        f"--root-dir={agent.root}",
        f"--cdi-dir={agent.root}/cdi",
    )
    with (agent.root / "driver.log").open("a") as log:
        process = ForkedPopen(arguments, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(10)


def objects() -> dict[str, Document]:
    return {item["kind"]: item for item in yaml.safe_load_all((EXAMPLE / "claim.yaml").read_text())}


async def make(cluster: Cluster, name: str) -> Document:
    """The example's class and a claim; returns what a Pod's spec says of it."""
    found = objects()
    with contextlib.suppress(AlreadyExistsError):
        await cluster.client.create(CLASSES, found["DeviceClass"])
    await cluster.client.create(CLAIMS, {**found["ResourceClaim"], "metadata": {"name": name}}, cluster.namespace)
    return {
        "resourceClaims": [{"name": "c", "resourceClaimName": name}],
        "nodeSelector": {"kubernetes.io/hostname": cluster.node},
    }


def using(script: str) -> Document:
    return shell("a", script, resources={"claims": [{"name": "c"}]})


async def slices_of(cluster: Cluster, agent: Agent) -> list[Document]:
    found = (await cluster.client.list(SLICES)).items
    return [item for item in found if item["spec"].get("nodeName") == agent.name]


async def test_a_claims_devices_reach_its_container_alone(
    cluster: Cluster, agent: Agent, server: Server, kubectl: Kubectl
) -> None:
    claim = await make(cluster, "variables")
    with driver(agent, server):
        # No node is named: the scheduler finds the one with the devices.
        await cluster.run(
            "p", using("echo $GREETING $TARGET"), shell("b", "echo ${TARGET:-none}"), nodeName=None, **claim
        )
        await cluster.phase("p", "Succeeded")
        assert kubectl("logs", "p", "-c", "a") == "hello world\n"
        assert kubectl("logs", "p", "-c", "b") == "none\n"
        # Unprepared before the Pod was reported as finished.
        assert list((agent.root / "cdi").glob("*.json")) == []


@pytest.mark.behaviour("SP-116")
async def test_without_its_driver_a_pod_waits_and_says_so(
    cluster: Cluster, agent: Agent, server: Server, kubectl: Kubectl
) -> None:
    claim = await make(cluster, "late")
    with driver(agent, server):
        await _until_published(cluster, agent)
    await cluster.run("p", using("echo $TARGET"), nodeName=None, **claim)
    event = await cluster.event("p", "FailedPrepareDynamicResources")
    assert event["message"].startswith("Failed to prepare dynamic resources: prepare dynamic resources: ")
    assert "env.example.com" in event["message"]
    pod = await cluster.client.get(PODS, "p", cluster.namespace)
    assert pod["status"]["phase"] == "Pending"
    with driver(agent, server):
        await cluster.phase("p", "Succeeded")
        assert kubectl("logs", "p") == "world\n"


@pytest.mark.behaviour("CL-44")
async def test_a_pod_that_its_claim_is_not_reserved_for_must_not_run(cluster: Cluster, agent: Agent) -> None:
    claim = await make(cluster, "unreserved")
    # Bound by hand: no scheduler has allocated or reserved anything.
    await cluster.run("p", using("echo ran"), **claim)
    event = await cluster.event("p", "FailedPrepareDynamicResources")
    assert "unreserved" in event["message"]
    pod = await cluster.client.get(PODS, "p", cluster.namespace)
    assert pod["status"]["phase"] == "Pending"
    await cluster.delete("p", 0)


async def _until_published(cluster: Cluster, agent: Agent) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while not await slices_of(cluster, agent):
        assert time.monotonic() < deadline, (agent.root / "driver.log").read_text()
        await asyncio.sleep(0.05)
