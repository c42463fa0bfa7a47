"""Extended resources that a claim stands for, on a real agent: the scheduler's part is written by hand."""

from __future__ import annotations

import contextlib
import json

import pytest

from dray.api.document import Document, GroupVersion
from dray.api.errors import AlreadyExistsError
from dray.client.interface import Patch, PatchType, WriteOptions, unstructured
from tests.e2e.kubectl.tool import Kubectl
from tests.e2e.node.conftest import BOTH
from tests.e2e.node.devices import FOO, driver, held, plugin, resources_of, until, until_amounts
from tests.e2e.node.harness import PODS, Agent, Cluster, is_running, shell
from tests.servers import Server

RUNTIMES = BOTH
RESOURCE = GroupVersion("resource.k8s.io", "v1")
CLASSES = unstructured(RESOURCE, "deviceclasses", "DeviceClass", namespaced=False)
CLAIMS = unstructured(RESOURCE, "resourceclaims", "ResourceClaim")
STATUS = WriteOptions(subresource="status")
GPU = "example.com/gpu"
DRIVER = "env.example.com"
STAYS = 'echo ${DEVICE:-none} ${FOO:-none}; trap "exit 0" TERM; while true; do sleep 0.05; done'


def asking(name: str, *resources: str) -> Document:
    return shell(name, STAYS, resources={"limits": dict.fromkeys(resources, "1")})


async def bound(
    cluster: Cluster, name: str, mapped: dict[tuple[str, str], str], *containers: Document, **spec: str
) -> Document:
    """A Pod with the special claim, as the scheduler leaves it; `mapped` says which device each request has."""
    client, namespace = cluster.client, cluster.namespace
    device_class = {"metadata": {"name": DRIVER}, "spec": {"extendedResourceName": GPU}}
    with contextlib.suppress(AlreadyExistsError):
        await client.create(CLASSES, device_class)
    pod = await cluster.run(name, *containers, nodeName=None, schedulerName="by-hand", **spec)
    uid = pod["metadata"]["uid"]
    claim = await client.create(CLAIMS, special_claim(name, uid, len(mapped)), namespace)
    claim["status"] = {
        "allocation": {
            "devices": {
                "results": [
                    {"request": f"request-{number}", "driver": DRIVER, "pool": cluster.node, "device": device}
                    for number, device in enumerate(mapped.values())
                ]
            }
        },
        "reservedFor": [{"resource": "pods", "name": name, "uid": uid}],
    }
    await client.update(CLAIMS, claim, STATUS)
    mappings = [
        {"containerName": container, "resourceName": resource, "requestName": f"request-{number}"}
        for number, (container, resource) in enumerate(mapped)
    ]
    special = {"resourceClaimName": claim["metadata"]["name"], "requestMappings": mappings}
    patch = Patch(PatchType.MERGE, {"status": {"extendedResourceClaimStatus": special}})
    await client.patch(PODS, name, namespace, patch, STATUS)
    target = {"apiVersion": "v1", "kind": "Node", "name": cluster.node}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    await client.create_subresource(PODS, name, namespace, "binding", body)
    return claim


def special_claim(pod: str, uid: str, requests: int) -> Document:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid, "controller": True}
    return {
        "metadata": {
            "name": f"{pod}-extended-resources",
            "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
            "ownerReferences": [owner],
        },
        "spec": {
            "devices": {
                "requests": [
                    {"name": f"request-{number}", "exactly": {"deviceClassName": DRIVER}} for number in range(requests)
                ]
            }
        },
    }


def prepared(agent: Agent) -> list[str]:
    path = agent.root / "dra_manager_state"
    data = json.loads(json.loads(path.read_text())["Data"])
    return [item["ClaimName"] for item in data["ClaimInfoStateList"]]


async def end(cluster: Cluster, *names: str) -> None:
    for name in names:
        await cluster.delete(name)
    for name in names:
        await cluster.gone(name)


@pytest.mark.behaviour("XR-32", "XR-34", "XR-35", "XR-36", "PR-10")
async def test_each_container_has_the_devices_of_its_requests(
    cluster: Cluster, agent: Agent, server: Server, kubectl: Kubectl
) -> None:
    with driver(agent, server):
        mapped = {("a", GPU): "slot-1", ("b", GPU): "slot-2"}
        await bound(cluster, "p", mapped, asking("a", GPU), asking("b", GPU), asking("c"))
        for name in ("a", "b", "c"):
            await cluster.wait("p", is_running(name))
        await logged(kubectl, "a", "slot-1 none")
        await logged(kubectl, "b", "slot-2 none")
        await logged(kubectl, "c", "none none")
        assert await dynamic(agent, cluster) == {"a": ["slot-1"], "b": ["slot-2"], "c": []}
        assert prepared(agent) == ["p-extended-resources"]
        # What is in use is known again after a crash, without asking anyone.
        agent.kill()
        agent.start()
        await until(lambda: dynamic_is(agent, cluster, {"a": ["slot-1"], "b": ["slot-2"], "c": []}))
        await end(cluster, "p")
        assert prepared(agent) == []
        assert list((agent.root / "cdi").glob("*.json")) == []


async def dynamic_is(agent: Agent, cluster: Cluster, wanted: dict[str, list[str]]) -> bool:
    # Until the Pod is known again it is not found.
    with contextlib.suppress(Exception):
        return await dynamic(agent, cluster) == wanted
    return False


async def dynamic(agent: Agent, cluster: Cluster) -> dict[str, list[str]]:
    found = await resources_of(agent, "p", cluster.namespace)
    for part in found.containers:
        for item in part.dynamic_resources:
            assert (item.claim_name, item.class_name) == ("p-extended-resources", DRIVER)
    return {
        part.name: [one.device_name for item in part.dynamic_resources for one in item.claim_resources]
        for part in found.containers
    }


async def logged(kubectl: Kubectl, container: str, text: str) -> None:
    await until(lambda: kubectl("logs", "p", "-c", container).strip() == text, f"{container}: {text}")


@pytest.mark.behaviour("XR-32", "XR-33", "DP-38")
async def test_what_is_mapped_is_not_asked_of_the_device_plugin(
    cluster: Cluster, agent: Agent, server: Server, kubectl: Kubectl
) -> None:
    with driver(agent, server), plugin(agent, "x"):
        await until_amounts(cluster, 1, 1)
        # The plugin has one device and the Pod asks for two of its resource: one of them is the claim's.
        mapped = {("a", FOO): "slot-3"}
        await bound(cluster, "p", mapped, asking("a", FOO), asking("b", FOO))
        for name in ("a", "b"):
            await cluster.wait("p", is_running(name))
        await logged(kubectl, "a", "slot-3 none")
        await logged(kubectl, "b", "none x")
        assert await held(agent) == {"p": ["x"]}
        # One more does not fit, whichever side allocated the others.
        await cluster.run("q", asking("a", FOO))
        assert (await cluster.phase("q", "Failed"))["status"]["reason"] == f"OutOf{FOO}"
        await end(cluster, "p", "q")
        assert prepared(agent) == []


@pytest.mark.behaviour("XR-35")
async def test_the_special_claim_of_a_pod_deleted_while_the_agent_is_away_is_given_back(
    cluster: Cluster, agent: Agent, server: Server
) -> None:
    with driver(agent, server):
        await bound(cluster, "p", {("a", GPU): "slot-1"}, asking("a", GPU))
        await cluster.wait("p", is_running())
        agent.kill()
        await cluster.delete("p", 0)
        await cluster.gone("p")
        assert prepared(agent) == ["p-extended-resources"]
        agent.start()
        await until(lambda: prepared(agent) == [])
        assert list((agent.root / "cdi").glob("*.json")) == []


@pytest.mark.behaviour("XR-32")
async def test_a_resource_that_the_node_does_not_know_is_not_checked(cluster: Cluster) -> None:
    await cluster.run("p", shell("a", "true", resources={"limits": {"unknown.com/x": "7"}}))
    await cluster.phase("p", "Succeeded")
