"""Devices without a driver on the node: GPU, NIC and CPUs of one NUMA node, counted and limited, and a fabric."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dray.api.document import Document
from dray.client.interface import unstructured
from dray.client.resources import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.containerd import needs_containerd
from tests.e2e.node.harness import PODS, Cluster, is_running, shell
from tests.servers import Server, running_server

RUNTIMES = ("cri",)
pytestmark = needs_containerd

GATES = "DRANodeAllocatableResources=true,DRAOptionalNodeOperations=true,DRAListTypeAttributes=true"
NUMA = "resource.kubernetes.io/numaNode"
CGROUPS = Path("/sys/fs/cgroup")
CLASSES = unstructured(DEVICE_CLASSES.group_version, "deviceclasses", "DeviceClass", namespaced=False)
SLICES = unstructured(RESOURCE_SLICES.group_version, "resourceslices", "ResourceSlice", namespaced=False)
CLAIMS = unstructured(RESOURCE_CLAIMS.group_version, "resourceclaims", "ResourceClaim")

FABRIC = Path(__file__).parents[3] / "examples" / "fabric-devices"
BY_KIND = {"DeviceClass": CLASSES, "ResourceSlice": SLICES, "ResourceClaim": CLAIMS, "Pod": PODS}


@pytest.fixture(scope="module")
def flags() -> tuple[str, ...]:
    return (f"--feature-gates={GATES}",)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("server"), f"--feature-gates={GATES}") as running:
        yield running


def device(name: str, numa: Document, **fields: object) -> Document:
    return {"name": name, "attributes": {NUMA: numa}, **fields}


def cores(name: str, numa: int) -> Document:
    """Two cores of a NUMA node, whose driver needs some memory for each Pod."""
    resources = {
        "cpu": {"mapping": {"deviceMultiplier": "200m"}},
        "memory": {"overhead": {"perPod": "8Mi", "perContainer": "4Mi"}},
    }
    return device(name, {"int": numa}, nodeAllocatableResources=resources)


async def publish(cluster: Cluster, driver: str, *devices: Document) -> None:
    expression = f'device.driver == "{driver}.example.com"'
    await cluster.client.create(
        CLASSES, {"metadata": {"name": driver}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
    )
    spec = {
        "driver": f"{driver}.example.com",
        "nodeName": cluster.node,
        "pool": {"name": cluster.node, "generation": 1, "resourceSliceCount": 1},
        "devices": list(devices),
        "skipNodeOperations": ["*"],
    }
    await cluster.client.create(SLICES, {"metadata": {"name": f"{driver}-slice"}, "spec": spec})


def limit_of(folder: str, version_1: str, version_2: str) -> str:
    """The content of a file of a cgroup."""
    unified = CGROUPS / folder / version_2
    if unified.exists():
        return unified.read_text().strip()
    controller = version_1.partition(".")[0]
    return (CGROUPS / controller / folder / version_1).read_text().strip()


@pytest.mark.behaviour("N-42", "N-43", "N-45", "N-47", "N-48", "N-52", "N-59", "N-106", "N-107", "N-108")
async def test_devices_of_one_numa_node_are_counted_and_limited(cluster: Cluster) -> None:
    await publish(cluster, "gpu", device("gpu-0", {"ints": [0]}), device("gpu-1", {"ints": [1, 0]}))
    await publish(cluster, "nic", device("nic-1", {"int": 1}))
    await publish(cluster, "cores", cores("cores-0", 0), cores("cores-1", 1))
    requests = [
        {"name": name, "exactly": {"deviceClassName": name, "count": 1, "allocationMode": "ExactCount"}}
        for name in ("gpu", "nic", "cores")
    ]
    spec = {"devices": {"requests": requests, "constraints": [{"matchAttribute": NUMA}]}}
    await cluster.client.create(CLAIMS, {"metadata": {"name": "near"}, "spec": spec}, cluster.namespace)
    resources = {"limits": {"cpu": "100m", "memory": "64Mi"}, "claims": [{"name": "near"}]}
    pod = await cluster.run(
        "p",
        shell("a", "sleep 3600", resources=resources),
        nodeName=None,
        resourceClaims=[{"name": "near", "resourceClaimName": "near"}],
    )
    running = await cluster.wait("p", is_running())
    claim = await cluster.client.get(CLAIMS, "near", cluster.namespace)
    results = claim["status"]["allocation"]["devices"]["results"]
    assert [item["device"] for item in results] == ["gpu-1", "nic-1", "cores-1"]
    assert [item["skipNodeOperations"] for item in results] == [["*"]] * 3
    assert running["status"]["nodeAllocatableResourceClaimStatuses"] == [
        {
            "resourceClaimName": "near",
            "containers": ["a"],
            "mapping": [{"name": "cpu", "quantity": "200m"}],
            "overhead": [{"name": "memory", "perPod": "8Mi", "perContainer": "4Mi"}],
        }
    ]
    group = f"dray/pod{pod['metadata']['uid']}"
    own = f"{group}/{running['status']['containerStatuses'][0]['containerID'].rpartition('/')[2]}"
    for folder in (group, own):
        assert limit_of(folder, "cpu.cfs_quota_us", "cpu.max").split()[0] == "30000"
        assert limit_of(folder, "memory.limit_in_bytes", "memory.max") == str((64 + 8 + 4) * 2**20)
    # A second Pod would need the same device.
    await cluster.run(
        "q",
        shell("a", "true", resources={"claims": [{"name": "near"}]}),
        nodeName=None,
        resourceClaims=[{"name": "near", "resourceClaimName": "near"}],
    )
    waiting = await cluster.wait("q", lambda found: found["status"].get("conditions"))
    (condition,) = [item for item in waiting["status"]["conditions"] if item["type"] == "PodScheduled"]
    assert "has a mapped device and cannot be shared across pods" in condition["message"]


@pytest.mark.behaviour("N-105", "N-107", "N-108", "N-114")
async def test_the_example_of_devices_in_a_fabric(cluster: Cluster) -> None:
    for file in ("devices.yaml", "claim.yaml"):
        for document in yaml.safe_load_all((FABRIC / file).read_text()):
            resource = BY_KIND[document["kind"]]
            if resource is PODS:
                # A finished Pod gives its device back at once.
                document["spec"]["containers"][0] |= {"command": ["sleep", "3600"], "imagePullPolicy": "IfNotPresent"}
            await cluster.client.create(resource, document, cluster.namespace if resource.namespaced else "")
    pod = await cluster.wait("fabric-user", is_running("user"))
    claim = await cluster.client.get(CLAIMS, "accelerator", cluster.namespace)
    (found,) = claim["status"]["allocation"]["devices"]["results"]
    assert (found["device"], found["skipNodeOperations"]) == ("accelerator-1", ["*"])
    # The devices can be used from every node that has the feature.
    assert "nodeSelector" not in claim["status"]["allocation"]
    assert pod["spec"]["nodeName"] == cluster.node
