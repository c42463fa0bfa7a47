"""Informers over the in-process client: sync, events, resumption, expiry, indexes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from dray.api.document import Document, GroupVersion
from dray.api.errors import InvalidError, ServiceUnavailableError, TooManyRequestsError
from dray.client.in_process import in_process_client
from dray.client.indexer import BY_OWNER_UID, label_values
from dray.client.informer import DoList, DoWatch, Informer, Selection
from dray.client.interface import Bookmark, EventType, ListPage, WatchEvent, unstructured
from dray.client.objects import key_of, owner_uids
from dray.client.shared_informers import SharedInformer, SharedInformerFactory
from dray.runtime.system import SystemClock
from tests.fake_local_server import FakeLocalServer, fail

PODS = unstructured(GroupVersion("", "v1"), "pods", "Pod")


def pod(name: str, **metadata: object) -> Document:
    return {"metadata": {"name": name, "namespace": "default", **metadata}}


def event(kind: EventType, obj: Document) -> WatchEvent[Document]:
    return WatchEvent(kind, obj, key_of(obj), obj["metadata"]["resourceVersion"])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the condition is a cache's, which has no event
            await asyncio.sleep(0.001)


@asynccontextmanager
async def running(server: FakeLocalServer) -> AsyncIterator[SharedInformerFactory]:
    informers = SharedInformerFactory(in_process_client(server, user="test"), SystemClock(), random.Random(1))
    task = asyncio.create_task(informers.run())
    try:
        yield informers
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def names(informer: SharedInformer[Document]) -> list[str]:
    return sorted(obj["metadata"]["name"] for obj in informer.lister.list())


@pytest.mark.parametrize("watch_list", [False, True])
async def test_follows_the_server_through_breaks_and_expiry(watch_list: bool) -> None:
    server = FakeLocalServer()
    server.put("", "pods", pod("a"))
    heard: list[str] = []
    async with running(server) as informers:
        informer = informers.informer(PODS, watch_list=watch_list)
        informer.add_handler(lambda old, new: heard.append(f"{old is not None:d}{new is not None:d}"))
        await asyncio.wait_for(informers.wait_for_sync(), 5)
        assert names(informer) == ["a"]
        server.put("", "pods", pod("b"))
        await until(lambda: names(informer) == ["a", "b"])
        server.break_watches()
        server.remove("", "pods", "a", "default")
        await until(lambda: names(informer) == ["b"])
        server.put("", "pods", pod("c"))
        server.compact()
        server.break_watches()
        await until(lambda: names(informer) == ["b", "c"])
    assert heard == ["01", "01", "10", "01"]


async def test_a_failing_server_is_asked_again() -> None:
    server = FakeLocalServer()
    server.before = fail(3, ServiceUnavailableError("down"), resource="pods")
    async with running(server) as informers:
        informers.informer(PODS)
        await asyncio.wait_for(informers.wait_for_sync(), 5)
    assert [request.verb for request in server.requests][:4] == ["list"] * 4


async def test_one_informer_per_resource_and_selection() -> None:
    server = FakeLocalServer()
    server.put("", "pods", pod("a", labels={"app": "x"}))
    server.put("", "pods", pod("b"))
    async with running(server) as informers:
        everything = informers.informer(PODS)
        assert informers.informer(PODS) is everything
        selected = informers.informer(PODS, Selection("default", label_selector="app=x"))
        await asyncio.wait_for(informers.wait_for_sync(), 5)
        assert (names(everything), names(selected)) == (["a", "b"], ["a"])
        informers.stop(PODS)
        assert informers.informer(PODS) is not everything


def test_a_refused_streamed_list_falls_back_to_listing() -> None:
    informer: Informer[Document] = Informer(Selection(), random.Random(1), watch_list=True)
    first = informer.start()
    assert isinstance(first, DoWatch)
    assert first.options.send_initial_events
    informer.watch_opened(0)
    following = informer.watch_ended(InvalidError("meta.k8s.io", "ListOptions", "", []), 0)
    assert isinstance(following, DoList)
    assert following.delay_seconds == 0


def test_the_server_s_retry_after_is_obeyed() -> None:
    informer: Informer[Document] = Informer(Selection(), random.Random(1))
    informer.start()
    assert informer.list_failed(TooManyRequestsError("slow down", 7)).delay_seconds == 7


def test_a_watch_resumes_at_the_last_bookmark() -> None:
    informer = synced_informer()
    informer.watch_opened(0)
    informer.event_received(Bookmark("55"))
    following = informer.watch_ended(None, 10)
    assert isinstance(following, DoWatch)
    assert (following.options.resource_version, following.delay_seconds) == ("55", 0)


def test_a_watch_that_ends_at_once_backs_off_with_growing_waits() -> None:
    informer = synced_informer()
    delays = []
    for _ in range(12):
        informer.watch_opened(0)
        delays.append(informer.watch_ended(None, 0).delay_seconds)
    assert 0.025 <= delays[0] <= 0.05
    assert 5 <= delays[-1] <= 10


def test_a_recreated_object_is_a_deletion_and_an_addition() -> None:
    informer = synced_informer(pod("a", uid="1", resourceVersion="1"))
    heard: list[tuple[str, str]] = []
    informer.add_handler(
        lambda old, new: heard.append((old["metadata"]["uid"] if old else "", new["metadata"]["uid"] if new else ""))
    )
    informer.event_received(event(EventType.ADDED, pod("a", uid="2", resourceVersion="9")))
    assert heard == [("", "1"), ("1", ""), ("", "2")]


def test_resync_tells_everything_again() -> None:
    informer = synced_informer(pod("a", resourceVersion="1"))
    heard: list[bool] = []
    informer.add_handler(lambda old, new: heard.append(old is new))
    informer.resync()
    assert heard == [False, True]


def test_indexes_follow_changes() -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}
    informer = synced_informer(pod("a", labels={"app": "x"}, ownerReferences=[owner], resourceVersion="1"))
    informer.add_index("app", label_values("app"))
    informer.add_index(BY_OWNER_UID, owner_uids)
    assert len(informer.lister.by_index("app", "x")) == 1
    assert len(informer.lister.owned_by("u")) == 1
    informer.event_received(event(EventType.MODIFIED, pod("a", labels={"app": "y"}, resourceVersion="2")))
    assert informer.lister.by_index("app", "x") == ()
    assert len(informer.lister.by_index("app", "y")) == 1
    assert informer.lister.owned_by("u") == ()
    informer.event_received(event(EventType.DELETED, pod("a", resourceVersion="3")))
    assert informer.lister.by_index("app", "y") == ()
    assert informer.lister.list("default") == ()


def synced_informer(*objects: Document) -> Informer[Document]:
    informer: Informer[Document] = Informer(Selection(), random.Random(1))
    informer.start()
    informer.page_received(ListPage(objects, "1"))
    return informer
