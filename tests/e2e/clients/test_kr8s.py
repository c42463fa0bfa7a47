"""The kr8s client, sync and async."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import kr8s
import kr8s.asyncio
import pytest
from kr8s import objects
from kr8s._async_utils import as_sync_func
from kr8s.asyncio import objects as async_objects

from tests.e2e.clients import bodies
from tests.servers import Server

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:kr8s.*"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    # kr8s names the Kubernetes versions it was tested with.
    pytest.mark.filterwarnings("ignore:.*version.*:UserWarning"),
]
ResourceClaim: Any = objects.new_class(kind="ResourceClaim", version="resource.k8s.io/v1", namespaced=True)
DeviceClass: Any = objects.new_class(
    kind="DeviceClass", version="resource.k8s.io/v1", namespaced=False, plural="deviceclasses"
)


@contextmanager
def sync_api(server: Server) -> Iterator[Any]:
    """kr8s leaves its connections to the garbage collector, which then warns in some other test."""
    found: Any = kr8s.api(kubeconfig=str(server.kubeconfig))
    try:
        yield found
    finally:
        as_sync_func(found._session.aclose)()


@pytest.fixture
def api(server: Server) -> Iterator[Any]:
    with sync_api(server) as found:
        yield found


def test_version_and_discovery(api: Any) -> None:
    assert api.version()["gitVersion"].startswith("v1.37")
    found = {(resource["version"], resource["kind"]): resource for resource in api.api_resources()}
    assert found["resource.k8s.io/v1", "ResourceSlice"]["namespaced"] is False
    assert found["resource.k8s.io/v1", "ResourceClaim"]["namespaced"] is True
    assert api.whoami()


def test_pod_life(api: Any, namespace: str) -> None:
    pod = objects.Pod(bodies.pod("web", "claim") | {"apiVersion": "v1"}, api=api, namespace=namespace)
    pod.create()
    assert pod.exists()
    assert pod.spec.resourceClaims[0].resourceClaimName == "claim"
    pod.label(tier="front")
    pod.annotate({"note": "hello"})
    pod.refresh()
    assert (pod.labels["tier"], pod.annotations["note"]) == ("front", "hello")
    assert [found.name for found in api.get("pods", namespace=namespace, label_selector={"tier": "front"})] == ["web"]
    pod.delete(grace_period=0)
    assert not pod.exists()


def test_device_kinds(api: Any, namespace: str) -> None:
    device_class = DeviceClass(bodies.device_class("kr8s-gpu"), api=api)
    device_class.create()
    claim = ResourceClaim(bodies.resource_claim("claim", "kr8s-gpu"), api=api, namespace=namespace)
    claim.create()
    claim.patch({"metadata": {"labels": {"a": "b"}}})
    claim.patch([{"op": "add", "path": "/metadata/labels/c", "value": "d"}], type="json")
    assert dict(claim.labels) == {"a": "b", "c": "d"}
    claim.patch({"status": bodies.allocation()}, subresource="status")
    claim.refresh()
    assert claim.status.allocation.devices.results[0].device == "gpu-0"
    fetched = next(iter(api.get("resourceclaims.resource.k8s.io", "claim", namespace=namespace)))
    assert fetched.raw["metadata"]["uid"] == claim.metadata.uid
    claim.delete()
    device_class.delete()
    assert not device_class.exists()


def test_scale(api: Any, namespace: str) -> None:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main", "image": "busybox"}]}}
    deployment = objects.Deployment(
        {
            "metadata": {"name": "web", "namespace": namespace},
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template},
        },
        api=api,
    )
    deployment.create()
    deployment.patch({"spec": {"replicas": 3}}, subresource="scale")
    deployment.refresh()
    assert deployment.replicas == 3


def test_missing_and_conflicting(api: Any, namespace: str) -> None:
    settings = objects.ConfigMap(bodies.config_map("settings", a="1"), api=api, namespace=namespace)
    with pytest.raises(kr8s.NotFoundError):
        settings.refresh()
    settings.create()
    with pytest.raises(kr8s.ServerError, match='configmaps "settings" already exists'):
        settings.create()


def test_field_selectors_with_a_trailing_comma(api: Any, namespace: str) -> None:
    for name in ("one", "two"):
        objects.ConfigMap(bodies.config_map(name), api=api, namespace=namespace).create()
    found = api.get("configmaps", namespace=namespace, field_selector={"metadata.name": "two"})
    assert [item.name for item in found] == ["two"]


def test_sync_watch(api: Any, server: Server, namespace: str) -> None:
    objects.ConfigMap(bodies.config_map("first"), api=api, namespace=namespace).create()

    def write() -> None:
        # kr8s clients belong to their thread.
        with sync_api(server) as other:
            settings = objects.ConfigMap(bodies.config_map("settings"), api=other, namespace=namespace)
            settings.create()
            settings.delete()

    writer = threading.Thread(target=write)
    seen = []
    for event, found in api.watch("configmaps", namespace=namespace):
        if found.name == "first":
            # The watch is open now: nothing written from here on may be missed.
            writer.start()
        if found.name == "settings":
            seen.append(event)
        if event == "DELETED":
            break
    writer.join()
    assert seen == ["ADDED", "DELETED"]


@pytest.fixture
async def aio(server: Server) -> AsyncIterator[Any]:
    found: Any = await kr8s.asyncio.api(kubeconfig=str(server.kubeconfig))
    try:
        yield found
    finally:
        await found._session.aclose()


async def test_async_life_and_watch(aio: Any, namespace: str) -> None:
    seen: list[tuple[str, str]] = []
    opened = asyncio.Event()
    await (await async_objects.ConfigMap(bodies.config_map("first"), api=aio, namespace=namespace)).create()

    async def follow() -> None:
        async for event, found in aio.async_watch("configmaps", namespace=namespace):
            opened.set()
            if found.name.startswith("settings"):
                seen.append((event, found.name))
            if event == "DELETED":
                return

    following = asyncio.create_task(follow())
    await asyncio.wait_for(opened.wait(), 20)
    made = []
    for number in range(5):
        settings = await async_objects.ConfigMap(
            bodies.config_map(f"settings-{number}", n=str(number)), api=aio, namespace=namespace
        )
        await settings.create()
        made.append(settings)
    await made[0].patch({"data": {"n": "new"}})
    assert made[0].raw["data"]["n"] == "new"
    await made[0].delete()
    await asyncio.wait_for(following, 20)
    assert seen == [
        *(("ADDED", f"settings-{number}") for number in range(5)),
        ("MODIFIED", "settings-0"),
        ("DELETED", "settings-0"),
    ]
    names = [found.name async for found in aio.get("configmaps", namespace=namespace)]
    assert "settings-0" not in names


async def test_async_wait_for_deletion(aio: Any, namespace: str) -> None:
    body = bodies.config_map("settings")
    body["metadata"]["finalizers"] = ["example.com/hold"]
    settings = await async_objects.ConfigMap(body, api=aio, namespace=namespace)
    await settings.create()
    await settings.delete()
    assert await settings.exists()
    waiting = asyncio.create_task(settings.wait("delete", timeout=20))
    started = time.monotonic()
    other = await async_objects.ConfigMap.get("settings", namespace=namespace, api=aio)
    await other.patch({"metadata": {"finalizers": None}})
    await waiting
    assert time.monotonic() - started < 20
