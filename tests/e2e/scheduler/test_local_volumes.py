"""Claims of local volumes that wait for their first consumer, bound by scheduler and controller together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dray.api.document import Document, GroupVersion
from dray.client.interface import DeleteOptions, Patch, PatchType, WriteOptions, unstructured
from dray.client.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from tests.e2e.scheduler.cluster import EVENTS, PODS, Cluster, node, pod, started

STORAGE_CLASSES = unstructured(GroupVersion("storage.k8s.io", "v1"), "storageclasses", "StorageClass", namespaced=False)
DRA = GroupVersion("resource.k8s.io", "v1")
DEVICE_CLASSES = unstructured(DRA, "deviceclasses", "DeviceClass", namespaced=False)
RESOURCE_SLICES = unstructured(DRA, "resourceslices", "ResourceSlice", namespaced=False)
RESOURCE_CLAIMS = unstructured(DRA, "resourceclaims", "ResourceClaim")
NOW = DeleteOptions(grace_period_seconds=0)


def run(folder: Path, test: Callable[[Cluster], Awaitable[None]], mode: str = "WaitForFirstConsumer") -> None:
    async def main() -> None:
        async with started(folder) as cluster:
            storage = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": mode}
            await cluster.client.create(STORAGE_CLASSES, {"metadata": {"name": "local"}, **storage})
            for name in ("a", "b"):
                await cluster.create(node(name, labels={"kubernetes.io/hostname": name}))
            cluster.start_controllers()
            cluster.start_scheduler()
            await test(cluster)

    asyncio.run(main())


def volume(name: str, on: str, size: str = "1Gi") -> Document:
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [on]}]}
    return {
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local",
            "local": {"path": f"/data/{name}"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
    }


def claim(name: str, size: str = "1Gi") -> Document:
    requests = {"requests": {"storage": size}}
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "local", "resources": requests}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


def consumer(name: str, *claims: str, **spec: Any) -> Document:
    volumes = [{"name": item, "persistentVolumeClaim": {"claimName": item}} for item in claims]
    return pod(name, volumes=volumes, terminationGracePeriodSeconds=0, **spec)


async def phase(cluster: Cluster, name: str, wanted: str) -> Document:
    """Wait until the claim has a phase."""
    return await cluster.eventually(
        lambda: cluster.client.get(PERSISTENT_VOLUME_CLAIMS, name, "default"),
        lambda item: item.get("status", {}).get("phase") == wanted,
    )


async def volume_phase(cluster: Cluster, name: str, wanted: str) -> Document:
    return await cluster.eventually(
        lambda: cluster.client.get(PERSISTENT_VOLUMES, name), lambda item: item.get("status", {}).get("phase") == wanted
    )


@pytest.mark.behaviour("SC-04", "SC-05", "SC-06")
def test_a_claim_gets_the_smallest_volume_on_the_node_of_its_pod(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        for item in (volume("a-large", "a", "10Gi"), volume("a-small", "a"), volume("b-other", "b", "5Gi")):
            await cluster.client.create(PERSISTENT_VOLUMES, item)
        await cluster.client.create(PERSISTENT_VOLUME_CLAIMS, claim("data"))
        await volume_phase(cluster, "a-small", "Available")
        await phase(cluster, "data", "Pending")

        async def messages() -> list[str]:
            return [item["message"] for item in (await cluster.client.list(EVENTS, "default")).items]

        await cluster.eventually(
            messages, lambda found: "waiting for first consumer to be created before binding" in found
        )
        await cluster.create(consumer("user", "data", nodeSelector={"kubernetes.io/hostname": "a"}))
        assert await cluster.node_of("user") == "a"
        bound = await phase(cluster, "data", "Bound")
        assert bound["spec"]["volumeName"] == "a-small"
        assert bound["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] == "yes"
        assert bound["status"]["capacity"] == {"storage": "1Gi"}
        found = await volume_phase(cluster, "a-small", "Bound")
        assert found["spec"]["claimRef"]["uid"] == bound["metadata"]["uid"]
        assert found["metadata"]["annotations"] == {"pv.kubernetes.io/bound-by-controller": "yes"}
        # Another Pod of the same claim can only run there.
        await cluster.create(consumer("second", "data"))
        assert await cluster.node_of("second") == "a"
        for name in ("user", "second"):
            await cluster.client.delete(PODS, name, "default", NOW)
        await cluster.client.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")
        await volume_phase(cluster, "a-small", "Released")

    run(tmp_path, test)


@pytest.mark.behaviour("SC-06")
def test_two_pods_never_get_the_same_volume_and_one_waits_until_there_is_another(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.client.create(PERSISTENT_VOLUMES, volume("only", "b"))
        await volume_phase(cluster, "only", "Available")
        for number in range(2):
            await cluster.client.create(PERSISTENT_VOLUME_CLAIMS, claim(f"data-{number}"))
        await cluster.create(*(consumer(f"p{number}", f"data-{number}") for number in range(2)))

        async def placed() -> list[str]:
            pods = (await cluster.client.list(PODS, "default")).items
            return [item["metadata"]["name"] for item in pods if item["spec"].get("nodeName")]

        (first,) = await cluster.eventually(placed, lambda found: len(found) == 1)
        second = "p1" if first == "p0" else "p0"
        text = "node(s) didn't find available persistent volumes to bind"
        await cluster.condition(second, "Unschedulable", text)
        await cluster.client.create(PERSISTENT_VOLUMES, volume("more", "a"))
        assert await cluster.node_of(second) == "a"

    run(tmp_path, test)


@pytest.mark.behaviour("SC-04")
def test_an_immediate_claim_is_bound_without_a_pod(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.client.create(PERSISTENT_VOLUME_CLAIMS, claim("data"))
        await phase(cluster, "data", "Pending")
        await cluster.client.create(PERSISTENT_VOLUMES, volume("v", "b"))
        assert (await phase(cluster, "data", "Bound"))["spec"]["volumeName"] == "v"
        await cluster.create(consumer("user", "data"))
        assert await cluster.node_of("user") == "b"

    run(tmp_path, test, "Immediate")


@pytest.mark.behaviour("SC-06")
def test_volumes_in_use_outlive_their_deletion(tmp_path: Path) -> None:
    """A claim goes when no scheduled Pod uses it any more, a volume when it is not bound any more."""

    async def test(cluster: Cluster) -> None:
        await cluster.client.create(PERSISTENT_VOLUMES, volume("disk", "a"))
        created = await cluster.client.create(PERSISTENT_VOLUME_CLAIMS, claim("data"))
        assert created["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
        await cluster.create(consumer("user", "data"))
        assert await cluster.node_of("user") == "a"
        await phase(cluster, "data", "Bound")
        await volume_phase(cluster, "disk", "Bound")
        await cluster.client.delete(PERSISTENT_VOLUMES, "disk")
        await cluster.client.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")
        # A Pod that is created now is refused by the scheduler, and does not keep the claim.
        await cluster.create(consumer("late", "data"))
        late = await cluster.eventually(
            lambda: cluster.client.get(PODS, "late", "default"), lambda item: item.get("status", {}).get("conditions")
        )
        assert 'persistentvolumeclaim "data" is being deleted' in late["status"]["conditions"][0]["message"]
        for resource, name, namespace in (
            (PERSISTENT_VOLUMES, "disk", ""),
            (PERSISTENT_VOLUME_CLAIMS, "data", "default"),
        ):
            kept = await cluster.client.get(resource, name, namespace)
            assert kept["metadata"]["deletionTimestamp"]
            assert len(kept["metadata"]["finalizers"]) == 1
        await cluster.client.delete(PODS, "user", "default", NOW)

        async def left() -> list[str]:
            volumes = await cluster.client.list(PERSISTENT_VOLUMES)
            claims = await cluster.client.list(PERSISTENT_VOLUME_CLAIMS, "default")
            return [item["metadata"]["name"] for item in (*volumes.items, *claims.items)]

        await cluster.eventually(left, lambda names: names == [])

    run(tmp_path, test)


@pytest.mark.behaviour("SC-06")
def test_a_pod_that_is_deleted_while_its_volume_is_bound_holds_no_devices(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create(node("a", labels={"kubernetes.io/hostname": "a"}))
        await create_device(cluster, "a")
        # Without a controller that completes the binding.
        await cluster.client.create(PERSISTENT_VOLUMES, volume("v", "a"))
        available = Patch(PatchType.MERGE, {"status": {"phase": "Available"}})
        await cluster.client.patch(PERSISTENT_VOLUMES, "v", "", available, WriteOptions(subresource="status"))
        await cluster.client.create(PERSISTENT_VOLUME_CLAIMS, claim("data"))
        cluster.start_scheduler()
        await cluster.create(consumer("first", "data", **await with_device(cluster, "first")))
        await cluster.eventually(
            lambda: cluster.client.get(PERSISTENT_VOLUMES, "v"), lambda item: "claimRef" in item["spec"]
        )
        await cluster.create(consumer("second", **await with_device(cluster, "second")))
        await cluster.condition("second", "Unschedulable")
        await cluster.client.delete(PODS, "first", "default", NOW)
        assert await cluster.node_of("second") == "a"

    async def main() -> None:
        async with started(tmp_path) as cluster:
            storage = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
            await cluster.client.create(STORAGE_CLASSES, {"metadata": {"name": "local"}, **storage})
            await test(cluster)

    asyncio.run(main())


async def create_device(cluster: Cluster, on: str) -> None:
    """Create a device on the node, and its class."""
    await cluster.client.create(DEVICE_CLASSES, {"metadata": {"name": "gpu"}, "spec": {}})
    pool = {"name": on, "generation": 1, "resourceSliceCount": 1}
    spec = {"nodeName": on, "driver": "gpu.example.com", "pool": pool, "devices": [{"name": "gpu-0"}]}
    await cluster.client.create(RESOURCE_SLICES, {"metadata": {"name": on}, "spec": spec})


async def with_device(cluster: Cluster, name: str) -> Document:
    """Create a claim of a device; return what the spec of a Pod says about it."""
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}
    await cluster.client.create(RESOURCE_CLAIMS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
    return {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}
