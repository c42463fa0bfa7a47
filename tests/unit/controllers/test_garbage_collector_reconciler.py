"""The garbage collector at work on a small server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dray.api.document import Document, GroupVersion
from dray.client.in_process import in_process_client
from dray.client.interface import DeleteOptions, PropagationPolicy, Resource, unstructured
from dray.client.resources import PODS as WHOLE_PODS
from dray.client.rest import RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.garbage_collector.reconciler import GarbageCollector
from dray.controllers.reconciler import ControllerContext
from dray.runtime.system import SystemClock
from tests.fake_local_server import DEFAULT_SERVED, FakeLocalServer, served

PODS = unstructured(GroupVersion("", "v1"), "pods", "Pod")
CRDS = served("customresourcedefinitions", "CustomResourceDefinition", "apiextensions.k8s.io", namespaced=False)


@pytest.fixture(autouse=True, params=[(), (WHOLE_PODS,)], ids=["metadata alone", "whole objects"])
def whole(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Resource[Any], ...]:
    """The kinds that others follow too: everything must hold either way."""
    kinds: tuple[Resource[Any], ...] = request.param
    monkeypatch.setattr(f"{__name__}.WHOLE", kinds)
    return kinds


WHOLE: tuple[Resource[Any], ...] = ()


def pod(name: str, *owners: Document, **metadata: object) -> Document:
    references = [
        {
            "apiVersion": item.get("apiVersion", "v1"),
            "kind": item.get("kind", "Pod"),
            "name": item["metadata"]["name"],
            "uid": item["metadata"]["uid"],
            "blockOwnerDeletion": True,
        }
        for item in owners
    ]
    return {"metadata": {"name": name, "namespace": "default", "ownerReferences": references, **metadata}}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the condition is the server's state
            await asyncio.sleep(0.001)


@asynccontextmanager
async def collecting(server: FakeLocalServer, *followed: Resource[Any]) -> AsyncIterator[RestClient]:
    client = in_process_client(server, user="system:serviceaccount:kube-system:generic-garbage-collector")
    clock = SystemClock()
    informers = SharedInformerFactory(client, clock, random.Random(1))
    for resource in followed:
        informers.informer(resource)
    collector = GarbageCollector(ControllerContext(client, informers, clock), shared=WHOLE)
    tasks = [asyncio.create_task(informers.run()), asyncio.create_task(collector.run())]
    try:
        yield client
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def names(server: FakeLocalServer, plural: str = "pods", group: str = "") -> set[str]:
    return {item["metadata"]["name"] for item in server.all(plural, group)}


def quiet(server: FakeLocalServer) -> Callable[[], bool]:
    """Holds when the collector follows Pods and everything it reads has been read."""
    return lambda: any(item.verb == "watch" and item.resource == "pods" for item in server.requests)


async def test_dependents_go_with_their_owner_in_the_background_all_the_way_down() -> None:
    server = FakeLocalServer()
    top = server.put("", "pods", pod("top"))
    middle = server.put("", "pods", pod("middle", top))
    server.put("", "pods", pod("leaf", middle))
    server.put("", "pods", pod("stranger"))
    async with collecting(server) as client:
        await until(quiet(server))
        await client.delete(PODS, "top", "default")
        await until(lambda: names(server) == {"stranger"})


async def test_an_object_with_an_owner_left_only_loses_the_reference() -> None:
    server = FakeLocalServer()
    one, two = server.put("", "pods", pod("one")), server.put("", "pods", pod("two"))
    server.put("", "pods", pod("both", one, two))
    async with collecting(server) as client:
        await until(quiet(server))
        await client.delete(PODS, "one", "default")
        await until(lambda: len((server.find("pods", "both", "default") or {})["metadata"]["ownerReferences"]) == 1)
    assert names(server) == {"two", "both"}


async def test_an_owner_that_was_gone_before_the_start_is_noticed_by_a_live_read() -> None:
    server = FakeLocalServer()
    gone = {"metadata": {"name": "gone", "uid": "gone"}}
    server.put("", "pods", pod("orphan", gone))
    # The name is taken by another object: the uid decides.
    server.put("", "pods", pod("gone"))
    async with collecting(server):
        await until(lambda: names(server) == {"gone"})
    reads = [item for item in server.requests if item.verb == "get" and item.name == "gone"]
    assert reads, "deleted without looking for the owner"


async def test_an_owner_that_exists_but_was_not_seen_yet_protects() -> None:
    server = FakeLocalServer(*[item for item in DEFAULT_SERVED if item.plural != "configmaps"])
    # Served for reads, not for watching: never in the graph.
    hidden = served("configmaps", "ConfigMap")
    server.served.append(type(hidden)("", "v1", "configmaps", "ConfigMap", True, frozenset({"get"})))
    owner = server.put("", "configmaps", {"kind": "ConfigMap", "metadata": {"name": "cm", "namespace": "default"}})
    server.put("", "pods", pod("kept", owner))
    async with collecting(server):
        await until(lambda: any(item.verb == "get" and item.name == "cm" for item in server.requests))
    assert names(server) == {"kept"}
    assert not any(item.verb == "delete" for item in server.requests)


async def test_foreground_deletion_takes_the_dependents_first() -> None:
    server = FakeLocalServer()
    top = server.put("", "pods", pod("top"))
    middle = server.put("", "pods", pod("middle", top))
    server.put("", "pods", pod("leaf", middle))
    async with collecting(server) as client:
        await until(quiet(server))
        await client.delete(PODS, "top", "default", DeleteOptions(propagation_policy=PropagationPolicy.FOREGROUND))
        await until(lambda: names(server) == set())
    order = [obj["metadata"]["name"] for _, kind, _, obj in server.history if kind == "DELETED"]
    assert order == ["leaf", "middle", "top"]


async def test_foreground_deletion_of_a_circle_ends() -> None:
    server = FakeLocalServer()
    a = server.put("", "pods", pod("a"))
    b = server.put("", "pods", pod("b", a))
    server.put("", "pods", pod("a", b, uid=a["metadata"]["uid"]))
    async with collecting(server) as client:
        await until(quiet(server))
        await client.delete(PODS, "a", "default", DeleteOptions(propagation_policy=PropagationPolicy.FOREGROUND))
        await until(lambda: names(server) == set())


async def test_orphaning_keeps_the_dependents() -> None:
    server = FakeLocalServer()
    top = server.put("", "pods", pod("top"))
    server.put("", "pods", pod("child", top))
    async with collecting(server) as client:
        await until(quiet(server))
        await client.delete(PODS, "top", "default", DeleteOptions(propagation_policy=PropagationPolicy.ORPHAN))
        await until(lambda: names(server) == {"child"})
    child = server.find("pods", "child", "default")
    assert child is not None
    assert not child["metadata"].get("ownerReferences")


async def test_kinds_that_appear_later_are_collected_too() -> None:
    server = FakeLocalServer(*DEFAULT_SERVED, CRDS)
    owner = server.put("", "pods", pod("owner"))
    async with collecting(server) as client:
        await until(quiet(server))
        server.served.append(served("widgets", "Widget", "example.com"))
        server.put("apiextensions.k8s.io", "customresourcedefinitions", {"metadata": {"name": "widgets.example.com"}})
        server.put("example.com", "widgets", pod("widget", owner))
        await until(lambda: any(item.verb == "watch" and item.resource == "widgets" for item in server.requests))
        await client.delete(PODS, "owner", "default")
        await until(lambda: names(server, "widgets", "example.com") == set())


@pytest.mark.parametrize("plural", ["events"])
async def test_events_are_not_followed(plural: str) -> None:
    server = FakeLocalServer()
    async with collecting(server):
        await until(quiet(server))
    assert not any(item.resource == plural for item in server.requests)


async def test_a_dependent_that_somebody_holds_goes_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dray.controllers.garbage_collector.reconciler.FINALIZER_GRACE_SECONDS", 0.05)
    server = FakeLocalServer()
    owner = server.put("", "pods", pod("owner"))
    for name in ("first", "second"):
        server.put("", "pods", pod(name, owner, finalizers=["example.com/hold"]))

    def is_going(name: str) -> bool:
        return "deletionTimestamp" in (server.find("pods", name, "default") or {"metadata": {}})["metadata"]

    async with collecting(server) as client:
        await until(quiet(server))
        await client.delete(PODS, "owner", "default")
        await until(lambda: is_going("first") and is_going("second"))


async def test_a_kind_that_others_follow_is_watched_once(whole: tuple[Resource[Any], ...]) -> None:
    server = FakeLocalServer()
    async with collecting(server, WHOLE_PODS):
        await until(lambda: any(item.verb == "watch" and item.resource == "configmaps" for item in server.requests))
        await until(quiet(server))
    watches = [item for item in server.requests if item.verb == "watch" and item.resource == "pods"]
    assert len(watches) == (1 if whole else 2)
