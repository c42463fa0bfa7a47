"""Partitions of simulated GPUs in real containers: who sees them, and what becomes of Pods when things break."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from pathlib import Path

import pytest
import yaml

from dray.api.document import Document, GroupVersion
from dray.api.errors import AlreadyExistsError
from dray.client.interface import unstructured
from tests.containerd import Containerd
from tests.e2e.kubectl.tool import Kubectl
from tests.e2e.node.conftest import BOTH
from tests.e2e.node.devices import EXAMPLES, driver, resources_of, until
from tests.e2e.node.harness import PODS, Agent, Cluster, container_status, is_running, shell
from tests.servers import Server

RUNTIMES = BOTH
RESOURCE = GroupVersion("resource.k8s.io", "v1")
CLASSES = unstructured(RESOURCE, "deviceclasses", "DeviceClass", namespaced=False)
TEMPLATES = unstructured(RESOURCE, "resourceclaimtemplates", "ResourceClaimTemplate")
STAYS = 'trap "exit 0" TERM; while true; do sleep 0.05; done'
USES = {"resources": {"claims": [{"name": "gpu"}]}}
LOOK = "env | grep ^GPU_ || echo nothing; ls /dev | grep ^gpu || echo no node"


async def objects(cluster: Cluster, **exactly: object) -> Document:
    """The example's class and template; returns what a Pod's spec says of them."""
    found = {item["kind"]: item for item in yaml.safe_load_all((EXAMPLES / "gpu-driver/claim.yaml").read_text())}
    with contextlib.suppress(AlreadyExistsError):
        await cluster.client.create(CLASSES, found["DeviceClass"])
    template = found["ResourceClaimTemplate"]
    template["spec"]["spec"]["devices"]["requests"][0]["exactly"] |= exactly
    await cluster.client.create(TEMPLATES, template, cluster.namespace)
    return {
        "nodeName": None,
        "nodeSelector": {"kubernetes.io/hostname": cluster.node},
        "resourceClaims": found["Pod"]["spec"]["resourceClaims"],
    }


async def test_two_containers_share_a_partition_and_a_third_does_not(
    cluster: Cluster, agent: Agent, server: Server, kubectl: Kubectl, runtime: str
) -> None:
    spec = await objects(cluster)
    with driver(agent, server, "gpu-driver"):
        containers = [shell(name, f"{LOOK}; {STAYS}", **USES) for name in ("a", "b")]
        await cluster.run("p", *containers, shell("c", f"{LOOK}; {STAYS}"), **spec)
        for name in ("a", "b", "c"):
            await cluster.wait("p", is_running(name))
        await until(lambda: all("nod" in kubectl("logs", "p", "-c", name) for name in "c"))
        nothing = kubectl("logs", "p", "-c", "c").split("\n")
        assert nothing == ["nothing", "no node", ""]
        found = await resources_of(agent, "p", cluster.namespace)
        seen = {
            part.name: [
                (item.class_name, one.device_name) for item in part.dynamic_resources for one in item.claim_resources
            ]
            for part in found.containers
        }
        ((class_name, device),) = seen["a"]
        assert class_name == "gpu.example.com"
        assert "-2g-" in device
        assert seen == {"a": [(class_name, device)], "b": [(class_name, device)], "c": []}
        variable = f"GPU_{device.upper().replace('-', '_')}=time-slicing"
        # Without namespaces of their own, processes see the machine's devices.
        node = device if runtime == "cri" else "no node"
        for name in ("a", "b"):
            await until(functools.partial(logged, kubectl, name, node))
            lines = kubectl("logs", "p", "-c", name).split()
            assert variable in lines
            assert sum(line.startswith("GPU_CLAIM=") for line in lines) == 1
        await end(cluster, "p")
        assert list((agent.root / "cdi").glob("*.json")) == []


@pytest.mark.behaviour("SP-125")
async def test_a_card_that_breaks_is_seen_in_the_pods_status(
    cluster: Cluster, agent: Agent, server: Server, tmp_path: Path
) -> None:
    # It tolerates the taint, or it would be evicted.
    spec = await objects(cluster, tolerations=[{"operator": "Exists"}])
    with driver(agent, server, "gpu-driver", GPU_FAULTS=str(tmp_path), GPUS="1"):
        await cluster.run("p", shell("a", STAYS, **USES), **spec)
        await cluster.wait("p", is_running())
        pod = await cluster.wait("p", lambda item: healths(item) == ["Healthy"])
        (tmp_path / "gpu-0").touch()
        after = await cluster.wait("p", lambda item: healths(item) == ["Unhealthy"])
        assert container_status(after)["containerID"] == container_status(pod)["containerID"]
        (entry,) = container_status(after)["allocatedResourcesStatus"]
        assert entry["name"].startswith("claim:gpu")
        (tmp_path / "gpu-0").unlink()
        await cluster.wait("p", lambda item: healths(item) == ["Healthy"])
        await end(cluster, "p")


def healths(pod: Document) -> list[str]:
    entries = container_status(pod).get("allocatedResourcesStatus", [])
    return [item["health"] for entry in entries for item in entry["resources"]]


@pytest.mark.behaviour("SP-118", "SP-120")
async def test_a_node_that_crashes_and_comes_back(
    cluster: Cluster, agent: Agent, server: Server, kubectl: Kubectl, runtime: str, request: pytest.FixtureRequest
) -> None:
    spec = await objects(cluster)
    with driver(agent, server, "gpu-driver"):
        stays = shell("a", f"env | grep ^GPU_; {STAYS}", **USES)
        await cluster.run("stays", stays, restartPolicy="Always", **spec)
        await cluster.run("goes", stays, **spec)
        before = {name: await cluster.wait(name, is_running()) for name in ("stays", "goes")}
        await until(lambda: "GPU_CLAIM" in kubectl("logs", "stays"))
        first = kubectl("logs", "stays")
        power_cut(agent, runtime, request)
        await cluster.delete("goes", 0)
        await cluster.gone("goes")
        agent.start()
        after = await cluster.wait("stays", lambda pod: container_status(pod)["restartCount"] and is_running()(pod))
        assert container_status(after)["restartCount"] == 1
        assert container_status(after)["containerID"] != container_status(before["stays"])["containerID"]
        await until(lambda: kubectl("logs", "stays") == first)
        # Only what still has a Pod is prepared.
        await until(lambda: len(list((agent.root / "cdi").glob("*.json"))) == 1)
        await end(cluster, "stays")
        await until(lambda: not list((agent.root / "cdi").glob("*.json")))


def power_cut(agent: Agent, runtime: str, request: pytest.FixtureRequest) -> None:
    """The agent, its shims and their containers end without a word."""
    shims = agent.shims()
    assert agent.process is not None
    victims = [agent.process.pid, *shims]
    children = [int(word) for pid in shims for word in _children(pid).split()]
    for pid in (*victims, *children):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    agent.kill()
    if runtime == "cri":
        containerd: Containerd = request.getfixturevalue("containerd")
        containerd.kill_containers(agent.name)


def _children(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return ""


async def test_a_pod_of_the_same_name_waits_for_the_claim_of_the_one_before(
    cluster: Cluster, agent: Agent, server: Server
) -> None:
    spec = await objects(cluster)
    slow = 'trap "sleep 1; exit 0" TERM; while true; do sleep 0.05; done'
    with driver(agent, server, "gpu-driver"):
        first = await cluster.run("p", shell("a", slow, **USES), terminationGracePeriodSeconds=20, **spec)
        await cluster.wait("p", is_running())
        await cluster.delete("p", 0)
        await cluster.gone("p")
        second = await cluster.run("p", shell("a", STAYS, **USES), **spec)
        assert second["metadata"]["uid"] != first["metadata"]["uid"]
        pod = await cluster.wait("p", is_running())
        assert pod["metadata"]["uid"] == second["metadata"]["uid"]
        await end(cluster, "p")


def logged(kubectl: Kubectl, container: str, text: str) -> bool:
    return text in kubectl("logs", "p", "-c", container)


async def end(cluster: Cluster, *names: str) -> None:
    for name in names:
        await cluster.delete(name)
    for name in names:
        await cluster.gone(name)


async def test_a_pod_deleted_while_it_is_being_prepared(cluster: Cluster, agent: Agent, server: Server) -> None:
    spec = await objects(cluster)
    with driver(agent, server, "gpu-driver"):
        await cluster.run("warm", shell("a", "true", **USES), **spec)
        await cluster.phase("warm", "Succeeded")
    # Nobody is there to prepare it.
    await cluster.run("p", shell("a", "true", **USES), **spec)
    await cluster.event("p", "FailedPrepareDynamicResources")
    pod = await cluster.client.get(PODS, "p", cluster.namespace)
    assert pod["status"]["phase"] == "Pending"
    await end(cluster, "p", "warm")
