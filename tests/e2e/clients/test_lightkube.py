"""The lightkube client: typed models, apply, status, pages and watches, sync and async."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from lightkube import ApiError, AsyncClient, Client, KubeConfig, codecs
from lightkube.models.apps_v1 import DeploymentSpec
from lightkube.models.autoscaling_v1 import ScaleSpec
from lightkube.models.core_v1 import Container, PodSpec, PodTemplateSpec
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.models.resource_v1 import DeviceClaim, DeviceRequest, ExactDeviceRequest, ResourceClaimSpec
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import ConfigMap, Pod
from lightkube.resources.resource_v1 import DeviceClass, ResourceClaim, ResourceSlice
from lightkube.types import CascadeType, PatchType

from tests.e2e.clients import bodies
from tests.servers import Server

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:lightkube.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:httpx.*"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def client(server: Server, namespace: str) -> Iterator[Client]:
    with Client(
        config=KubeConfig.from_file(str(server.kubeconfig)), namespace=namespace, field_manager="lightkube"
    ) as found:
        yield found


def claim(name: str, device_class: str = "gpu") -> ResourceClaim:
    request = DeviceRequest(name="gpu", exactly=ExactDeviceRequest(deviceClassName=device_class))
    return ResourceClaim(
        apiVersion="resource.k8s.io/v1",
        kind="ResourceClaim",
        metadata=ObjectMeta(name=name),
        spec=ResourceClaimSpec(devices=DeviceClaim(requests=[request])),
    )


def config_map(name: str, **data: str) -> ConfigMap:
    return ConfigMap(apiVersion="v1", kind="ConfigMap", metadata=ObjectMeta(name=name), data=data)


def test_pod_life(client: Client, namespace: str) -> None:
    made = client.create(
        Pod(
            metadata=ObjectMeta(name="web", labels={"app": "web"}),
            spec=PodSpec(containers=[Container(name="main", image="busybox")]),
        )
    )
    assert made.metadata is not None
    assert made.metadata.namespace == namespace
    assert client.get(Pod, "web").spec.containers[0].imagePullPolicy == "Always"
    assert [pod.metadata.name for pod in client.list(Pod, labels={"app": "web"})] == ["web"]
    client.delete(Pod, "web", grace_period=0)
    with pytest.raises(ApiError) as refused:
        client.get(Pod, "web")
    assert (refused.value.status.code, refused.value.status.reason) == (404, "NotFound")


def test_device_kinds_typed(client: Client) -> None:
    client.create(codecs.from_dict(bodies.device_class("lightkube-gpu")))
    client.create(codecs.from_dict(bodies.resource_slice("lightkube-slice", node="node-9")))
    made = client.create(claim("claim", "lightkube-gpu"))
    assert made.spec.devices.requests[0].exactly.count == 1
    found = list(client.list(ResourceSlice, fields={"spec.nodeName": "node-9"}))
    assert found[0].spec.devices[0].capacity["memory"]["value"] == "40Gi"
    made.metadata.labels = {"a": "b"}
    replaced = client.replace(made)
    assert replaced.metadata.labels == {"a": "b"}
    with pytest.raises(ApiError) as refused:
        client.replace(made)
    assert refused.value.status.code == 409
    client.delete(ResourceClaim, "claim", cascade=CascadeType.FOREGROUND)
    client.delete(ResourceSlice, "lightkube-slice")
    client.delete(DeviceClass, "lightkube-gpu")
    assert not list(client.list(DeviceClass))


def test_status_subresource(client: Client) -> None:
    client.create(claim("claim"))
    status: Any = {"status": bodies.allocation()}
    patched = client.patch(ResourceClaim.Status, "claim", status, patch_type=PatchType.MERGE)
    assert patched.status.allocation.devices.results[0].pool == "node-1"
    again = client.get(ResourceClaim.Status, "claim")
    again.status.allocation.devices.results[0].shareID = None
    replaced = client.replace(again)
    assert replaced.status.allocation.devices.results[0].device == "gpu-0"


def test_apply_and_conflict(client: Client) -> None:
    assert client.apply(config_map("settings", a="1", b="2")).data == {"a": "1", "b": "2"}
    # A field no longer applied goes away.
    assert client.apply(config_map("settings", a="1")).data == {"a": "1"}
    with pytest.raises(ApiError) as refused:
        client.apply(config_map("settings", a="2"), field_manager="other")
    assert refused.value.status.code == 409
    assert refused.value.status.details.causes[0].reason == "FieldManagerConflict"
    assert client.apply(config_map("settings", a="2"), field_manager="other", force=True).data == {"a": "2"}


def test_apply_status(client: Client) -> None:
    client.create(claim("claim"))
    status = ResourceClaim.Status.from_dict(bodies.resource_claim("claim") | {"status": bodies.allocation()})
    applied = client.apply(status)
    assert applied.status.allocation.devices.results[0].driver == "gpu.example.com"


@pytest.mark.parametrize(
    ("patch_type", "patch"),
    [
        pytest.param(PatchType.MERGE, {"data": {"a": None, "b": "2"}}, id="merge"),
        pytest.param(PatchType.STRATEGIC, {"data": {"a": None, "b": "2"}}, id="strategic"),
        pytest.param(
            PatchType.JSON,
            [{"op": "remove", "path": "/data/a"}, {"op": "add", "path": "/data/b", "value": "2"}],
            id="json",
        ),
    ],
)
def test_patch_types(client: Client, patch_type: PatchType, patch: Any) -> None:
    client.create(config_map("settings", a="1"))
    assert client.patch(ConfigMap, "settings", patch, patch_type=patch_type).data == {"b": "2"}


def test_scale(client: Client) -> None:
    template = PodTemplateSpec(
        metadata=ObjectMeta(labels={"app": "web"}), spec=PodSpec(containers=[Container(name="main", image="busybox")])
    )
    spec = DeploymentSpec(replicas=1, selector=LabelSelector(matchLabels={"app": "web"}), template=template)
    client.create(Deployment(metadata=ObjectMeta(name="web"), spec=spec))
    scale = Deployment.Scale(metadata=ObjectMeta(name="web"), spec=ScaleSpec(replicas=4))
    assert client.replace(scale, "web").spec.replicas == 4
    assert client.get(Deployment, "web").spec.replicas == 4


def test_pages(client: Client) -> None:
    for number in range(7):
        client.create(config_map(f"settings-{number}"))
    names = [item.metadata.name for item in client.list(ConfigMap, chunk_size=3)]
    assert [name for name in names if name.startswith("settings-")] == [f"settings-{number}" for number in range(7)]


def test_watch_from_a_version(client: Client, server: Server, namespace: str) -> None:
    listing = client.list(ConfigMap)
    list(listing)
    version = listing.resourceVersion

    def write() -> None:
        with Client(config=KubeConfig.from_file(str(server.kubeconfig)), namespace=namespace) as other:
            other.create(config_map("settings"))
            other.patch(ConfigMap, "settings", {"data": {"a": "1"}})
            other.delete(ConfigMap, "settings")

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    for event, found in client.watch(ConfigMap, resource_version=version):
        if found.metadata.name == "settings":
            seen.append(event)
        if event == "DELETED":
            break
    writer.join()
    assert seen == ["ADDED", "MODIFIED", "DELETED"]


def test_delete_collection(client: Client) -> None:
    for number in range(3):
        client.create(claim(f"claim-{number}"))
    client.deletecollection(ResourceClaim)
    assert not list(client.list(ResourceClaim))


async def test_async_client(server: Server, namespace: str) -> None:
    client = AsyncClient(config=KubeConfig.from_file(str(server.kubeconfig)), namespace=namespace)
    try:
        names = [f"claim-{number}" for number in range(8)]
        await asyncio.gather(*(client.create(claim(name)) for name in names))
        found = [item.metadata.name async for item in client.list(ResourceClaim)]
        assert found == names
        async for event, item in client.watch(ResourceClaim):
            assert event == "ADDED"
            await client.delete(ResourceClaim, item.metadata.name)
            names.remove(item.metadata.name)
            if not names:
                break
        assert [item async for item in client.list(ResourceClaim)] == []
    finally:
        await client.close()
