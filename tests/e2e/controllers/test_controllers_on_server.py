"""The first controllers on the real API server, in its process and over HTTPS with a kubeconfig."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dray.api.document import Document, GroupVersion, NamespacedName
from dray.api.errors import NotFoundError
from dray.api.types import core_v1, meta_v1
from dray.client import credentials
from dray.client.event_recorder import WARNING, EventRecorder, Source
from dray.client.http import http_client
from dray.client.in_process import in_process_client
from dray.client.interface import DeleteOptions, PropagationPolicy, Resource, WatchOptions, unstructured
from dray.client.leader_election import LeaderElector
from dray.client.resources import EVENTS
from dray.client.rest import RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.cmd import apiserver
from dray.cmd.settings import APIServerSettings
from dray.controllers.garbage_collector.reconciler import GarbageCollector
from dray.controllers.namespace.reconciler import NamespaceController
from dray.controllers.reconciler import ControllerContext
from dray.controllers.service_account.reconciler import ServiceAccountController
from dray.runtime.tasks import TaskGroup

CORE = GroupVersion("", "v1")
NAMESPACES = unstructured(CORE, "namespaces", "Namespace", namespaced=False)
CONFIG_MAPS = unstructured(CORE, "configmaps", "ConfigMap")
ACCOUNTS = unstructured(CORE, "serviceaccounts", "ServiceAccount")
CRDS = unstructured(
    GroupVersion("apiextensions.k8s.io", "v1"),
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
)
WIDGETS = unstructured(GroupVersion("example.com", "v1"), "widgets", "Widget")
TYPED: Resource[core_v1.ConfigMap] = Resource("", "v1", "configmaps", "ConfigMap", core_v1.ConfigMap)


@asynccontextmanager
async def started(folder: Path, transport: str) -> AsyncIterator[tuple[RestClient, apiserver.Running]]:
    settings = APIServerSettings(data_dir=str(folder / "state"), port=0, store="memory")
    async with apiserver.running(settings) as running:
        if transport == "memory":
            client = in_process_client(running.local, user="admin", groups=("system:masters",))
        else:
            client = http_client(credentials.load_access({}, path=str(running.kubeconfig)), running.clock)
        try:
            yield client, running
        finally:
            await client.close()


@pytest.fixture(params=["memory", "https"])
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RestClient]:
    async with started(tmp_path, request.param) as (client, running), TaskGroup("test") as group:
        informers = SharedInformerFactory(client, running.clock, random.Random(1))
        controllers = (
            GarbageCollector(ControllerContext(client, informers, running.clock)),
            NamespaceController(ControllerContext(client, informers, running.clock)),
            ServiceAccountController(ControllerContext(client, informers, running.clock), root_ca="PEM"),
        )
        group.spawn(informers.run(), "informers")
        for controller in controllers:
            group.spawn(controller.run(), type(controller).__name__)
        yield client


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while not await condition():  # noqa: ASYNC110 - the condition is the server's state
            await asyncio.sleep(0.005)


async def exists(client: RestClient, resource: Resource[Document], name: str, namespace: str = "") -> bool:
    try:
        await client.get(resource, name, namespace)
    except NotFoundError:
        return False
    return True


def config_map(name: str, *owners: Document, namespace: str = "default") -> Document:
    references = [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": True,
        }
        for owner in owners
    ]
    return {"metadata": {"name": name, "namespace": namespace, "ownerReferences": references}}


async def test_a_namespace_is_furnished_emptied_and_gone(client: RestClient) -> None:
    await client.create(NAMESPACES, {"metadata": {"name": "team"}})
    await until(lambda: exists(client, ACCOUNTS, "default", "team"))
    await until(lambda: exists(client, CONFIG_MAPS, "kube-root-ca.crt", "team"))
    await client.create(CONFIG_MAPS, config_map("mine", namespace="team"))
    await client.delete(NAMESPACES, "team")

    async def gone() -> bool:
        return not await exists(client, NAMESPACES, "team")

    await until(gone)
    assert not (await client.list(CONFIG_MAPS, "team")).items


@pytest.mark.parametrize("policy", [None, PropagationPolicy.BACKGROUND, PropagationPolicy.FOREGROUND])
async def test_dependents_go_with_their_owner(client: RestClient, policy: PropagationPolicy | None) -> None:
    top = await client.create(CONFIG_MAPS, config_map("top"))
    middle = await client.create(CONFIG_MAPS, config_map("middle", top))
    await client.create(CONFIG_MAPS, config_map("leaf", middle))
    await client.delete(CONFIG_MAPS, "top", "default", DeleteOptions(propagation_policy=policy))

    async def gone() -> bool:
        left = {item["metadata"]["name"] for item in (await client.list(CONFIG_MAPS, "default")).items}
        return not left & {"top", "middle", "leaf"}

    await until(gone)


async def test_orphans_stay(client: RestClient) -> None:
    top = await client.create(CONFIG_MAPS, config_map("top"))
    await client.create(CONFIG_MAPS, config_map("child", top))
    await client.delete(CONFIG_MAPS, "top", "default", DeleteOptions(propagation_policy=PropagationPolicy.ORPHAN))

    async def gone() -> bool:
        return not await exists(client, CONFIG_MAPS, "top", "default")

    await until(gone)
    child = await client.get(CONFIG_MAPS, "child", "default")
    assert not child["metadata"].get("ownerReferences")


async def test_custom_resources_are_collected(client: RestClient) -> None:
    if not any(item.plural == CRDS.plural for item in await client.resources()):
        pytest.skip("the server has no custom resource definitions")
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    await client.create(
        CRDS,
        {
            "metadata": {"name": "widgets.example.com"},
            "spec": {
                "group": "example.com",
                "scope": "Namespaced",
                "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
                "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
            },
        },
    )
    owner = await client.create(CONFIG_MAPS, config_map("owner"))

    async def created() -> bool:
        try:
            await client.create(WIDGETS, config_map("w", owner))
        except NotFoundError:
            return False
        return True

    await until(created)
    await client.delete(CONFIG_MAPS, "owner", "default")

    async def gone() -> bool:
        return not await exists(client, WIDGETS, "w", "default")

    await until(gone)


@pytest.mark.parametrize("transport", ["memory", "https"])
async def test_typed_objects_informers_events_and_leases(tmp_path: Path, transport: str) -> None:
    async with started(tmp_path, transport) as (client, running), TaskGroup("test") as group:
        informers = SharedInformerFactory(client, running.clock, random.Random(1))
        plain = informers.informer(TYPED)
        streamed = informers.informer(CONFIG_MAPS, watch_list=True)
        group.spawn(informers.run(), "informers")
        await asyncio.wait_for(informers.wait_for_sync(), 10)
        wanted = core_v1.ConfigMap(metadata=meta_v1.ObjectMeta(name="a", namespace="default"), data={"k": "v"})
        made = await client.create(TYPED, wanted)
        assert made.metadata.uid

        async def seen() -> bool:
            return plain.lister.get("a", "default") == made and streamed.lister.get("a", "default") is not None

        await until(seen)

        recorder = EventRecorder(client, running.clock, Source("test"))
        group.spawn(recorder.run(), "recorder")
        for _ in range(3):
            recorder.event(TYPED.group_version_kind, made, WARNING, "Failed", "no")
        await asyncio.wait_for(recorder.flush(), 10)
        (event,) = (await client.list(EVENTS, "default")).items
        assert (event["count"], event["involvedObject"]["uid"]) == (3, made.metadata.uid)

        led = asyncio.Event()
        elector = LeaderElector(
            client, running.clock, random.Random(1), lease=NamespacedName("kube-system", "lock"), identity="me"
        )

        async def lead() -> None:
            led.set()
            await asyncio.Event().wait()

        leading = group.spawn(elector.run(lead), "leader")
        await asyncio.wait_for(led.wait(), 10)
        assert elector.is_leader
        leading.cancel()
        await asyncio.wait({leading})
        assert not elector.is_leader


async def test_a_watch_of_the_real_server_ends_when_asked(tmp_path: Path) -> None:
    async with started(tmp_path, "https") as (client, _):
        async with asyncio.timeout(10):
            events = [item async for item in client.watch(NAMESPACES, options=WatchOptions(timeout_seconds=1))]
        assert events
