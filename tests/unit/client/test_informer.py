"""Informers over the in-process client: sync, events, resumption, expiry, indexes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dray.api.document import Document, GroupVersion
from dray.api.errors import APIError, ForbiddenError, InvalidError, ServiceUnavailableError, TooManyRequestsError
from dray.api.types.core_v1 import Pod
from dray.client import informer as informer_module
from dray.client import shared_informers
from dray.client.in_process import in_process_client
from dray.client.indexer import BY_OWNER_UID, IndexFunction
from dray.client.informer import DoList, DoWatch, Informer, Selection
from dray.client.interface import (
    Bookmark,
    Deletion,
    EventType,
    ListPage,
    LocalRequest,
    Resource,
    WatchBatch,
    WatchEvent,
    unstructured,
)
from dray.client.objects import key_of, labels_of, owner_uids
from dray.client.shared_informers import SharedInformer, SharedInformerFactory
from dray.client.skipped_objects import SkippedObjects
from dray.runtime.metrics import Metrics
from dray.runtime.system import SystemClock
from tests.fake_local_server import FakeLocalServer, fail

PODS = unstructured(GroupVersion("", "v1"), "pods", "Pod")


def label_values(label: str) -> IndexFunction:
    """Index by the value of one label."""
    return lambda obj: (value,) if (value := labels_of(obj).get(label)) is not None else ()


def pod(name: str, **metadata: object) -> Document:
    return {"metadata": {"name": name, "namespace": "default", **metadata}}


def event(kind: EventType, obj: Document) -> WatchEvent[Document] | Deletion:
    if kind is EventType.DELETED:
        return Deletion(key_of(obj), obj["metadata"]["resourceVersion"])
    return WatchEvent(kind, obj, key_of(obj), obj["metadata"]["resourceVersion"])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the condition is a cache's, which has no event
            await asyncio.sleep(0.001)


@asynccontextmanager
async def running(
    server: FakeLocalServer, skipped: SkippedObjects | None = None
) -> AsyncIterator[SharedInformerFactory]:
    client = in_process_client(server, user="test")
    informers = SharedInformerFactory(client, SystemClock(), random.Random(1), skipped)
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
    delivered: list[str] = []
    async with running(server) as informers:
        informer = informers.informer(PODS, watch_list=watch_list)
        informer.add_handler(lambda old, new: delivered.append(f"{old is not None:d}{new is not None:d}"))
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
    assert delivered == ["01", "01", "10", "01"]


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


class UnstreamingServer(FakeLocalServer):
    """A server, or a proxy before it, that cannot stream lists; `kind` says how."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    async def watch(self, request: LocalRequest) -> AsyncIterator[WatchBatch]:
        stream = await super().watch(request)
        return self._broken(stream) if "sendInitialEvents" in request.query else stream

    async def _broken(self, stream: AsyncIterator[WatchBatch]) -> AsyncIterator[WatchBatch]:
        if self.kind == "refuses":
            raise InvalidError("meta.k8s.io", "ListOptions", "", [])
        if self.kind == "cannot":
            raise refusal(501)
        if self.kind == "gateway times out":
            raise refusal(504)
        async for batch in stream:
            ended = any("annotations" in item["metadata"] for _, item in batch)
            if not ended:
                yield batch
            elif self.kind == "cuts with an error":
                raise ServiceUnavailableError("connection reset")
            elif self.kind == "cuts":
                return


def refusal(code: int) -> APIError:
    error = APIError("no")
    error.code = code
    return error


@pytest.mark.parametrize("kind", ["refuses", "cannot", "gateway times out", "ignores", "cuts", "cuts with an error"])
async def test_a_server_that_cannot_stream_is_listed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_informers, "STREAM_SECONDS_MAX", 0.05)
    server = UnstreamingServer(kind)
    server.put("", "pods", pod("a"))
    async with running(server) as informers:
        informer = informers.informer(PODS, watch_list=True)
        await asyncio.wait_for(informers.wait_for_sync(), 5)
        assert names(informer) == ["a"]
        server.put("", "pods", pod("b"))
        await until(lambda: names(informer) == ["a", "b"])
        # The list that an expiry needs is a plain one at once.
        server.compact()
        seen = len(server.requests)
        server.break_watches()
        server.put("", "pods", pod("c"))
        await until(lambda: names(informer) == ["a", "b", "c"])
    assert not any("sendInitialEvents" in request.query for request in server.requests[seen:])


@pytest.mark.parametrize("code", [401, 403, 429, 503])
def test_a_failure_that_says_nothing_about_streams_is_retried_as_a_stream(code: int) -> None:
    informer: Informer[Document] = Informer(Selection(), random.Random(1), watch_list=True)
    following = informer.start()
    for _ in range(5):
        informer.watch_requested(0)
        following = informer.watch_ended(refusal(code), 0)
    assert isinstance(following, DoWatch)
    assert following.options.send_initial_events
    assert following.delay_seconds > 0


LIST_PODS = 'User "u" cannot list resource "pods" in API group "" at the cluster scope'
WATCH_PODS = 'User "u" cannot watch resource "pods" in API group "" at the cluster scope'


async def test_a_refused_list_is_out_of_sync_until_it_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    server = FakeLocalServer()
    server.put("", "pods", pod("a"))
    server.before = fail(3, ForbiddenError(PODS.group_resource, "", LIST_PODS), verb="list")
    async with running(server) as informers:
        informers.informer(PODS)
        assert informers.out_of_sync() == "pods: waiting for the first list"
        await until(lambda: len(server.requests) > 1)
        assert informers.out_of_sync() == f"pods: pods is forbidden: {LIST_PODS}"
        await until(lambda: informers.out_of_sync() is None)
    assert [record.getMessage() for record in caplog.records] == ["list failed, will be retried"]


async def test_a_watch_that_is_refused_later_is_out_of_sync_until_it_is_allowed() -> None:
    """Also if no event follows: an open watch is enough."""
    server = FakeLocalServer()
    async with running(server) as informers:
        informers.informer(PODS)
        await until(lambda: server.requests != [] and server.requests[-1].verb == "watch")
        server.before = fail(2, ForbiddenError(PODS.group_resource, "", WATCH_PODS), verb="watch")
        server.break_watches()
        await until(lambda: informers.out_of_sync() == f"pods: pods is forbidden: {WATCH_PODS}")
        await until(lambda: informers.out_of_sync() is None)


async def test_an_informer_of_a_kind_that_may_vanish_does_not_count() -> None:
    server = FakeLocalServer()
    server.before = fail(1000, ForbiddenError(PODS.group_resource, "", LIST_PODS), resource="pods")
    async with running(server) as informers:
        optional = informers.transformed(PODS, lambda document: document)
        await until(lambda: optional.failure is not None)
        assert informers.out_of_sync() is None


async def test_informers_that_fail_alike_are_named_together() -> None:
    server = FakeLocalServer()
    server.before = fail(1000, ServiceUnavailableError("GET https://10.0.0.1: connection refused"))
    async with running(server) as informers:
        informers.informer(PODS)
        informers.informer(unstructured(GroupVersion("coordination.k8s.io", "v1"), "leases", "Lease"))
        reason = "leases.coordination.k8s.io, pods: GET https://10.0.0.1: connection refused"
        await until(lambda: informers.out_of_sync() == reason)


def test_a_refused_streamed_list_falls_back_to_listing() -> None:
    informer: Informer[Document] = Informer(Selection(), random.Random(1), watch_list=True)
    first = informer.start()
    assert isinstance(first, DoWatch)
    assert first.options.send_initial_events
    informer.watch_requested(0)
    following = informer.watch_ended(InvalidError("meta.k8s.io", "ListOptions", "", []), 0)
    assert isinstance(following, DoList)
    assert following.delay_seconds == 0


def test_the_server_s_retry_after_is_obeyed() -> None:
    informer: Informer[Document] = Informer(Selection(), random.Random(1))
    informer.start()
    assert informer.list_failed(TooManyRequestsError("slow down", 7)).delay_seconds == 7


def test_a_watch_resumes_at_the_last_bookmark() -> None:
    informer = synced_informer()
    informer.watch_requested(0)
    informer.batch_received([Bookmark("55")])
    following = informer.watch_ended(None, 10)
    assert isinstance(following, DoWatch)
    assert (following.options.resource_version, following.delay_seconds) == ("55", 0)


def test_a_watch_that_ends_at_once_backs_off_with_growing_waits() -> None:
    informer = synced_informer()
    delays = []
    for _ in range(12):
        informer.watch_requested(0)
        delays.append(informer.watch_ended(None, 0).delay_seconds)
    assert 0.025 <= delays[0] <= 0.05
    assert 5 <= delays[-1] <= 10


def test_a_recreated_object_is_a_deletion_and_an_addition() -> None:
    informer = synced_informer(pod("a", uid="1", resourceVersion="1"))
    delivered: list[tuple[str, str]] = []
    informer.add_handler(
        lambda old, new: delivered.append(
            (old["metadata"]["uid"] if old else "", new["metadata"]["uid"] if new else "")
        )
    )
    informer.batch_received([event(EventType.ADDED, pod("a", uid="2", resourceVersion="9"))])
    assert delivered == [("", "1"), ("1", ""), ("", "2")]


def test_a_handler_is_not_called_while_what_it_looks_for_is_empty() -> None:
    informer = synced_informer(pod("a", resourceVersion="1"))
    wanted: set[str] = set()
    delivered: list[str] = []
    informer.add_handler(
        lambda _old, new: delivered.append((new or {})["metadata"]["resourceVersion"]), needed_while=wanted
    )
    informer.batch_received([event(EventType.MODIFIED, pod("a", resourceVersion="2"))])
    wanted.add("a")
    informer.batch_received([event(EventType.MODIFIED, pod("a", resourceVersion="3"))])
    wanted.clear()
    informer.batch_received([event(EventType.MODIFIED, pod("a", resourceVersion="4"))])
    assert delivered == ["3"]


def test_collections_of_the_lister_follow_the_cache() -> None:
    informer: Informer[Document] = Informer(Selection(), random.Random(0))
    informer.add_index("app", label_values("app"))
    namespaces, apps = informer.lister.namespaces, informer.lister.index_values("app")
    delivered: list[bool] = []
    informer.add_handler(lambda _old, _new: delivered.append(True), needed_while=namespaces)
    informer.start()
    informer.page_received(ListPage([pod("a", labels={"app": "x"}, resourceVersion="1")], "1"))
    assert (set(namespaces), set(apps), delivered) == ({"default"}, {"x"}, [True])
    informer.batch_received([event(EventType.DELETED, pod("a", labels={"app": "x"}, resourceVersion="2"))])
    assert (set(namespaces), set(apps), delivered) == (set(), set(), [True])


def test_resync_tells_everything_again() -> None:
    informer = synced_informer(pod("a", resourceVersion="1"))
    delivered: list[bool] = []
    informer.add_handler(lambda old, new: delivered.append(old is new))
    informer.resync()
    assert delivered == [False, True]


def test_indexes_follow_changes() -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}
    informer = synced_informer(pod("a", labels={"app": "x"}, ownerReferences=[owner], resourceVersion="1"))
    informer.add_index("app", label_values("app"))
    informer.add_index(BY_OWNER_UID, owner_uids)
    assert len(informer.lister.by_index("app", "x")) == 1
    assert len(informer.lister.owned_by("u")) == 1
    informer.batch_received([event(EventType.MODIFIED, pod("a", labels={"app": "y"}, resourceVersion="2"))])
    assert informer.lister.by_index("app", "x") == ()
    assert len(informer.lister.by_index("app", "y")) == 1
    assert informer.lister.owned_by("u") == ()
    informer.batch_received([event(EventType.DELETED, pod("a", resourceVersion="3"))])
    assert informer.lister.by_index("app", "y") == ()
    assert informer.lister.list("default") == ()


def synced_informer(*objects: Document) -> Informer[Document]:
    informer: Informer[Document] = Informer(Selection(), random.Random(1))
    informer.start()
    informer.page_received(ListPage(objects, "1"))
    return informer


def test_the_first_list_is_the_most_recent_one() -> None:
    """With "0", a kube-apiserver that lags could answer with a state from before the process was started."""
    action = Informer[Document](Selection(), random.Random(1)).start()
    assert isinstance(action, DoList)
    assert action.options.resource_version == ""


async def test_others_get_their_turn_between_two_pages_of_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer_module, "PAGE_LIMIT", 1)
    server = FakeLocalServer()
    client = in_process_client(server, user="test")
    await client.create(PODS, pod("a"))
    await client.create(PODS, pod("b"))
    cached: Informer[Document] = Informer(Selection(), random.Random(1))
    informer = SharedInformer(client, PODS, cached, SystemClock())
    listed = [0]
    task = asyncio.ensure_future(informer.run())
    try:
        while not informer.synced:
            listed.append(sum(request.verb == "list" for request in server.requests))
            await asyncio.sleep(0)
    finally:
        task.cancel()
    assert 1 in listed, "the server answers at once, and the second page must not follow at once"


TYPED_PODS: Resource[Pod] = Resource("", "v1", "pods", "Pod", Pod)


@pytest.mark.behaviour("UD-01")
@pytest.mark.parametrize("watch_list", [False, True])
@pytest.mark.parametrize("resource", [PODS, TYPED_PODS], ids=["documents", "structures"])
async def test_an_object_that_does_not_decode_hides_no_other(resource: Resource[Any], watch_list: bool) -> None:
    server = FakeLocalServer()
    server.put("", "pods", pod("before", uid="before") | {"spec": 5})
    server.put("", "pods", pod("a", uid="a"))
    delivered: list[tuple[bool, str]] = []
    metrics = Metrics()
    client = in_process_client(server, user="test")
    skipped = SkippedObjects(client, SystemClock(), metrics, "tester")
    async with running(server, skipped) as informers:
        informer = informers.informer(resource, watch_list=watch_list)
        informer.add_handler(lambda old, new: delivered.append((old is not None, key_of(new or old).name)))
        await asyncio.wait_for(informers.wait_for_sync(), 5)
        server.put("", "pods", pod("b", uid="b") | {"spec": {"containers": 5}})
        server.put("", "pods", pod("a", uid="a") | {"spec": {"containers": 5}})
        server.put("", "pods", pod("c", uid="c"))
        await until(lambda: delivered == [(False, "a"), (False, "c")])
        assert [name.partition(":")[0] for name in skipped.names()] == [
            "pods default/a",
            "pods default/b",
            "pods default/before",
        ]
        assert b'resource="pods"} 3' in metrics.exposition()
        assert informer.lister.get("a", "default") is not None
        server.compact()
        server.break_watches()
        server.put("", "pods", pod("b", uid="b"))
        await until(lambda: delivered[2:] == [(False, "b")])
        server.put("", "pods", pod("a", uid="a"))
        server.remove("", "pods", "before", "default")
        await until(lambda: not skipped.names())
        assert delivered[3:] == [(True, "a")]
    assert b'resource="pods"} 0' in metrics.exposition()


@pytest.mark.behaviour("UD-02")
async def test_a_skipped_object_gets_one_event() -> None:
    server = FakeLocalServer()
    server.put("", "pods", pod("a", uid="1") | {"spec": 5})
    client = in_process_client(server, user="test")
    async with running(server, SkippedObjects(client, SystemClock(), Metrics(), "tester")) as informers:
        informers.informer(TYPED_PODS)
        informers.informer(TYPED_PODS, Selection(field_selector="spec.nodeName="))
        await asyncio.wait_for(informers.wait_for_sync(), 5)
        server.put("", "pods", pod("a", uid="1") | {"spec": 6})
        await until(lambda: bool(server.objects.get(("", "events"))))
    (event,) = server.objects["", "events"].values()
    assert (event["reason"], event["involvedObject"]["name"], event["count"]) == ("Undecodable", "a", 1)


async def test_what_a_transform_cannot_read_is_skipped() -> None:
    server = FakeLocalServer()
    server.put("", "pods", pod("a"))
    server.put("", "pods", pod("b") | {"spec": {"nodeName": "n"}})
    async with running(server) as informers:
        informer = informers.transformed(PODS, lambda document: {**document, "node": document["spec"]["nodeName"]})
        await asyncio.wait_for(informers.wait_for_sync(), 5)
        assert names(informer) == ["b"]
