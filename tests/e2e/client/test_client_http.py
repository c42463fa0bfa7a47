"""The HTTP transport against a small server on loopback: requests, streams, retries, failures."""

from __future__ import annotations

import asyncio
import gzip
import random
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from dray import __version__
from dray.api.document import Document, GroupVersion
from dray.api.errors import (
    APIError,
    ConflictError,
    ExpiredError,
    NotFoundError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from dray.client.http import http_client
from dray.client.interface import (
    Bookmark,
    DeleteOptions,
    IncompleteDiscoveryError,
    ListOptions,
    Patch,
    PatchType,
    PropagationPolicy,
    WatchEvent,
    WatchOptions,
    WriteOptions,
    unstructured,
)
from dray.client.kubeconfig import Access
from dray.client.rest import RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.lib.clock import Clock
from dray.node.agent.node_object import MachineInfo, NodeSpec
from dray.node.agent.node_registration import NodeRegistration, ReportTimes
from dray.runtime.http.requests import Request
from dray.runtime.http.router import Handler, Reply, text
from dray.runtime.http.server import page_server
from dray.runtime.system import SystemClock

LEASE_SECONDS = 4
PODS = unstructured(GroupVersion("", "v1"), "pods", "Pod")
CLAIMS = unstructured(GroupVersion("resource.k8s.io", "v1"), "resourceclaims", "ResourceClaim", metadata_only=True)


class EagerClock(SystemClock):
    """Does not wait, but remembers how long it should have."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@asynccontextmanager
async def serving(handler: Handler, *, clock: Clock | None = None, **access: Any) -> AsyncIterator[RestClient]:
    server = page_server(handler)
    url = f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
    client = http_client(Access(server=url, **access), clock or EagerClock())
    try:
        yield client
    finally:
        await client.close()
        await server.stop()


def json(document: Document, code: int = 200) -> Reply:
    return Reply(orjson.dumps(document), code, "application/json")


def status(code: int, reason: str, message: str = "") -> Reply:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }
    return json(body, code)


class Recorder:
    """Answers with an object and notes every request."""

    def __init__(self, answer: Document | None = None) -> None:
        self.answer = answer or {"kind": "Pod", "metadata": {"name": "a", "resourceVersion": "1"}}
        self.seen: list[tuple[str, str, bytes]] = []
        self.headers: list[dict[str, str]] = []

    async def __call__(self, request: Request) -> Reply:
        self.seen.append((request.method, request.target, request.body))
        self.headers.append(request.headers)
        return json(self.answer)


async def test_each_operation_is_its_request() -> None:
    server = Recorder()
    pod = {"metadata": {"name": "a", "namespace": "default"}}
    async with serving(server) as client:
        await client.get(PODS, "a", "default")
        await client.list(PODS, options=ListOptions(label_selector="a in (b,c)", limit=5, continue_token="t"))
        await client.create(PODS, pod, options=WriteOptions(field_manager="me", dry_run=True))
        await client.update_status(PODS, pod)
        await client.patch(
            PODS, "a", "default", Patch(PatchType.APPLY, {"x": 1}), WriteOptions(field_manager="me", force=True)
        )
        await client.delete(
            PODS, "a", "default", DeleteOptions(uid="u", propagation_policy=PropagationPolicy.FOREGROUND)
        )
        await client.delete_collection(PODS, "default", ListOptions(label_selector="x=y"))
        await client.create_subresource(PODS, "a", "default", "eviction", {"kind": "Eviction"})
        await client.get(CLAIMS, "c", "default")
    assert [(method, path) for method, path, _ in server.seen] == [
        ("GET", "/api/v1/namespaces/default/pods/a"),
        ("GET", "/api/v1/pods?labelSelector=a+in+%28b%2Cc%29&limit=5&continue=t"),
        ("POST", "/api/v1/namespaces/default/pods?fieldManager=me&dryRun=All"),
        ("PUT", "/api/v1/namespaces/default/pods/a/status"),
        ("PATCH", "/api/v1/namespaces/default/pods/a?fieldManager=me&force=true"),
        ("DELETE", "/api/v1/namespaces/default/pods/a"),
        ("DELETE", "/api/v1/namespaces/default/pods?labelSelector=x%3Dy"),
        ("POST", "/api/v1/namespaces/default/pods/a/eviction"),
        ("GET", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/c"),
    ]
    assert server.seen[2][2] == b'{"metadata":{"name":"a","namespace":"default"},"apiVersion":"v1","kind":"Pod"}'
    assert b'"propagationPolicy":"Foreground"' in server.seen[5][2]
    assert b'"preconditions":{"uid":"u"}' in server.seen[5][2]
    assert server.headers[4]["content-type"] == "application/apply-patch+yaml"
    assert server.headers[0]["user-agent"] == f"dray/{__version__}"
    assert server.headers[8]["accept"].startswith("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")


@pytest.mark.parametrize(
    ("access", "expected"),
    [
        ({"token": "t"}, {"Authorization": "Bearer t"}),
        ({"username": "bob", "password": "x"}, {"Authorization": "Basic Ym9iOng="}),
        (
            {"token": "t", "impersonate_user": "jane", "impersonate_groups": ("dev",)},
            {"Impersonate-User": "jane", "Impersonate-Group": "dev"},
        ),
    ],
)
async def test_credentials_are_presented(access: dict[str, Any], expected: dict[str, str]) -> None:
    server = Recorder()
    async with serving(server, **access) as client:
        await client.get(PODS, "a", "default")
    for name, value in expected.items():
        assert server.headers[0][name.lower()] == value


async def test_a_refused_token_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")

    async def handler(request: Request) -> Reply:
        if request.headers["authorization"] == "Bearer old":
            (tmp_path / "token").write_text("new")
            return status(401, "Unauthorized", "Unauthorized")
        return json({"metadata": {"name": "a"}})

    async with serving(handler, token_file=str(tmp_path / "token")) as client:
        assert (await client.get(PODS, "a", "default"))["metadata"]["name"] == "a"


@pytest.mark.parametrize(
    ("response", "error", "message"),
    [
        (lambda: status(404, "NotFound", 'pods "a" not found'), NotFoundError, 'pods "a" not found'),
        (lambda: status(409, "Conflict", "modified"), ConflictError, "modified"),
        (lambda: status(410, "Expired", "too old"), ExpiredError, "too old"),
        (lambda: text("who are you", 401), UnauthorizedError, "who are you"),
        (lambda: text("", 503), ServiceUnavailableError, "the server gave no reason"),
        (lambda: text("<html>", 200), ServiceUnavailableError, "response is not JSON"),
    ],
)
async def test_failures_are_api_errors(response: Callable[[], Reply], error: type[APIError], message: str) -> None:
    async def handler(_: Request) -> Reply:
        return response()

    async with serving(handler) as client:
        with pytest.raises(error, match=message):
            await client.get(PODS, "a", "default")


async def test_no_server_is_unavailable() -> None:
    client = http_client(Access(server="http://127.0.0.1:1"), EagerClock())
    with pytest.raises(ServiceUnavailableError, match=r"GET http://127\.0\.0\.1:1"):
        await client.get(PODS, "a")
    await client.close()
    with pytest.raises(ServiceUnavailableError, match="closed"):
        await client.get(PODS, "a")


def failing_first(times: int, code: int, headers: dict[str, str] | None = None) -> tuple[Handler, list[str]]:
    seen: list[str] = []

    async def handler(request: Request) -> Reply:
        seen.append(request.method)
        if len(seen) <= times:
            return text("", code, tuple((headers or {}).items()))
        return json({"metadata": {"name": "a"}})

    return handler, seen


async def test_reads_are_retried_and_broken_writes_are_not() -> None:
    clock = EagerClock()
    handler, seen = failing_first(2, 503)
    async with serving(handler, clock=clock) as client:
        await client.get(PODS, "a", "default")
    assert (len(seen), clock.slept) == (3, [0.1, 0.2])
    handler, seen = failing_first(1, 503)
    async with serving(handler) as client:
        with pytest.raises(ServiceUnavailableError):
            await client.create(PODS, {"metadata": {"name": "a", "namespace": "default"}})
    assert len(seen) == 1


async def test_retry_after_is_obeyed_for_writes_too_and_within_a_limit() -> None:
    clock = EagerClock()
    handler, seen = failing_first(2, 429, {"Retry-After": "3"})
    async with serving(handler, clock=clock) as client:
        await client.create(PODS, {"metadata": {"name": "a", "namespace": "default"}})
    assert clock.slept == [3, 3]
    handler, seen = failing_first(99, 429, {"Retry-After": "3"})
    async with serving(handler, clock=clock) as client:
        with pytest.raises(TooManyRequestsError):
            await client.get(PODS, "a", "default")
    assert len(seen) == 5


def stream(*lines: bytes, hang: asyncio.Event | None = None) -> Handler:
    async def pieces() -> AsyncGenerator[bytes, None]:
        for line in lines:
            # In two pieces: lines do not come in chunks of their own.
            yield line[: len(line) // 2]
            yield line[len(line) // 2 :]
        if hang is not None:
            await hang.wait()

    async def handler(_request: Request) -> Reply:
        return Reply(stream=pieces())

    return handler


def event(kind: str, name: str, version: int, **more: object) -> bytes:
    obj = {"metadata": {"name": name, "resourceVersion": str(version), **more}}
    return orjson.dumps({"type": kind, "object": obj}) + b"\n"


async def test_a_watch_is_read_line_by_line_however_long() -> None:
    big = "x" * 3_000_000
    handler = stream(
        event("ADDED", "a", 1),
        event("MODIFIED", "a", 2, annotations={"big": big}),
        event("BOOKMARK", "", 9, annotations={"k8s.io/initial-events-end": "true"}),
        event("DELETED", "a", 10),
    )
    async with serving(handler) as client:
        got = [item async for item in client.watch(PODS, "default")]
    assert [item.type for item in got if isinstance(item, WatchEvent)] == ["ADDED", "MODIFIED", "DELETED"]
    assert got[2] == Bookmark("9", initial_events_end=True)
    assert isinstance(got[1], WatchEvent)
    assert len(got[1].object["metadata"]["annotations"]["big"]) == 3_000_000


async def test_an_expired_watch_raises_from_within_the_stream() -> None:
    line = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}\n'
    async with serving(stream(line)) as client:
        with pytest.raises(ExpiredError, match="too old"):
            await anext(client.watch(PODS, options=WatchOptions(resource_version="1")))


@pytest.mark.parametrize("body", [b"<html>proxy</html>\n", b'{"kind":"PodList","items":[]}\n', b"[1]\n", b"1\n"])
async def test_a_response_that_is_no_watch_is_a_failure_of_the_server(body: bytes) -> None:
    """Of a proxy that answers by itself, or that drops the query."""

    async def answer(_request: Request) -> Reply:
        return Reply(body)

    async with serving(answer) as client:
        with pytest.raises(ServiceUnavailableError, match="the response is not a watch"):
            await anext(client.watch(PODS))


async def test_a_response_that_is_no_object_is_a_failure_of_the_server() -> None:
    async with serving(lambda _: respond(b"[]")) as client:
        with pytest.raises(ServiceUnavailableError, match="response is not an object"):
            await client.list(PODS)


async def respond(body: bytes) -> Reply:
    return Reply(body)


async def test_an_informer_lists_when_a_proxy_breaks_streams_with_its_own_pages() -> None:
    """It gives them a status of 200, and passes lists and plain watches on."""

    async def answer(request: Request) -> Reply:
        if "sendInitialEvents" in request.query:
            return Reply(b"<html>not possible</html>\n")
        if "watch" in request.query:
            return Reply(stream=silence())
        return json({"kind": "PodList", "metadata": {"resourceVersion": "5"}, "items": []})

    async with serving(answer, clock=SystemClock()) as client:
        informers = SharedInformerFactory(client, SystemClock(), random.Random(1))
        informer = informers.informer(PODS, watch_list=True)
        task = asyncio.create_task(informers.run())
        await asyncio.wait_for(informer.wait_for_sync(), 10)
        assert informers.out_of_sync() is None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def silence() -> AsyncGenerator[bytes, None]:
    await asyncio.Event().wait()
    yield b""


async def test_leaving_a_watch_early_closes_its_connection() -> None:
    hang = asyncio.Event()
    async with serving(stream(event("ADDED", "a", 1), hang=hang)) as client:
        async with aclosing(client.watch(PODS)) as events:
            first = await anext(events)
            assert isinstance(first, WatchEvent)
        hang.set()


async def test_an_informer_survives_a_server_that_dies_mid_line() -> None:
    calls: list[str] = []

    async def half() -> AsyncGenerator[bytes, None]:
        yield event("ADDED", "a", 6) + b'{"type":"ADD'
        raise ConnectionError("the server dies")

    async def whole() -> AsyncGenerator[bytes, None]:
        yield event("ADDED", "b", 7)
        await asyncio.Event().wait()

    async def handler(request: Request) -> Reply:
        calls.append(request.target)
        if "watch" not in request.query:
            return json({"metadata": {"resourceVersion": "5"}, "items": []})
        if sum("watch" in path for path in calls) == 1:
            return Reply(stream=half())
        assert request.query["resourceVersion"] == "6"
        return Reply(stream=whole())

    async with serving(handler, clock=SystemClock()) as client:
        informers = SharedInformerFactory(client, SystemClock(), random.Random(1))
        changed = asyncio.Queue[str]()
        informer = informers.informer(PODS)
        informer.add_handler(lambda _, new: changed.put_nowait((new or {})["metadata"]["name"]))
        task = asyncio.create_task(informers.run())
        assert [await asyncio.wait_for(changed.get(), 5) for _ in range(2)] == ["a", "b"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert sum("watch" not in path for path in calls) == 1, "listed again though nothing had expired"


async def test_discovery_lists_every_served_resource() -> None:
    answers: dict[str, Document] = {
        "/api": {"versions": ["v1"]},
        "/apis": {
            "groups": [
                {"name": "g", "versions": [{"groupVersion": "g/v2"}, {"groupVersion": "g/v1"}],
                 "preferredVersion": {"groupVersion": "g/v2"}},
                {"name": "down", "versions": [{"groupVersion": "down/v1"}],
                 "preferredVersion": {"groupVersion": "down/v1"}},
            ]
        },
        "/api/v1": {"resources": [
            {"name": "pods", "kind": "Pod", "namespaced": True, "verbs": ["get", "list"], "shortNames": ["po"]},
            {"name": "pods/status", "kind": "Pod", "namespaced": True, "verbs": ["get"]},
        ]},
        "/apis/g/v2": {"resources": [{"name": "things", "kind": "Thing", "namespaced": False, "verbs": ["list"]}]},
        "/apis/g/v1": {"resources": [{"name": "things", "kind": "Thing", "namespaced": False, "verbs": ["list"]}]},
    }  # fmt: skip

    async def handler(request: Request) -> Reply:
        if request.path not in answers:
            return status(503, "ServiceUnavailable", "down")
        return json(answers[request.path])

    async with serving(handler) as client:
        found = await client.resources()
        with pytest.raises(IncompleteDiscoveryError, match="the complete list of server APIs: down/v1: down") as caught:
            await client.resources(complete=True)
    assert [(item.group, item.version, item.plural, item.preferred) for item in found] == [
        ("", "v1", "pods", True),
        ("g", "v2", "things", True),
        ("g", "v1", "things", False),
    ]
    assert caught.value.found == found
    assert (found[0].subresources, found[0].short_names) == (("status",), ("po",))
    assert not found[1].namespaced


async def test_large_answers_come_packed() -> None:
    asked: list[str] = []

    async def handler(request: Request) -> Reply:
        asked.append(request.headers["accept-encoding"])
        packed = gzip.compress(orjson.dumps({"metadata": {"name": "a" * 1_000_000}}))
        return Reply(packed, content_type="application/json", headers=(("Content-Encoding", "gzip"),))

    async with serving(handler) as client:
        assert (await client.get(PODS, "a", "default"))["metadata"]["name"] == "a" * 1_000_000
    assert asked == ["gzip"]


async def test_what_a_server_warns_of_is_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(_request: Request) -> Reply:
        warnings = ('299 - "say \\"v1\\"", 299 - "two"', '299 - "three"')
        return Reply(b"{}", headers=tuple(("Warning", value) for value in warnings))

    async with serving(handler) as client:
        await client.get(PODS, "a", "default")
    assert [record.args for record in caplog.records] == [('say "v1"',), ("two",), ("three",)]


async def test_redirects_are_followed_on_the_server_alone() -> None:
    async def handler(request: Request) -> Reply:
        place = {"/version": "/elsewhere?x=%20y", "/loop": "/loop", "/away": "http://other.invalid/"}.get(request.path)
        return text("", 307, (("Location", place),)) if place else json({"found": request.target})

    async with serving(handler) as client:
        assert await client.get_path("/version") == {"found": "/elsewhere?x=%20y"}
        with pytest.raises(ServiceUnavailableError, match=r"redirected to http://other\.invalid/"):
            await client.get_path("/away")
        with pytest.raises(ServiceUnavailableError, match="stopped after 10 redirects"):
            await client.get_path("/loop")


async def test_a_server_below_a_path_is_asked_there() -> None:
    server = page_server(recorder := Recorder())
    port = await server.start("127.0.0.1", 0)
    client = http_client(Access(server=f"http://bob:x@127.0.0.1:{port}/k8s/c-1"), EagerClock())
    await client.get(PODS, "a", "default")
    await client.close()
    await server.stop()
    assert recorder.seen[0][1] == "/k8s/c-1/api/v1/namespaces/default/pods/a"
    assert recorder.headers[0]["authorization"] == "Basic Ym9iOng="


@pytest.mark.parametrize(
    ("access", "message"),
    [
        (Access(server="https://127.0.0.1:1", insecure=True), "GET https://127.0.0.1:1: connection refused"),
        (
            Access(server="http://h", proxy_url="http://127.0.0.1:1"),
            "http://h: proxy 127.0.0.1:1: connection refused",
        ),
        (Access(server="http://h", proxy_url="socks5://p:1"), "GET http://h: 'socks5://p:1': the scheme must be"),
        (Access(server="h:6443"), "GET h:6443: 'h:6443': the scheme must be http or https"),
    ],
)
async def test_servers_that_cannot_be_asked_are_named(access: Access, message: str) -> None:
    client = http_client(access, EagerClock())
    with pytest.raises(ServiceUnavailableError, match=re.escape(message)):
        await client.get(PODS, "a")
    await client.close()


class Pair:
    """Two servers of one cluster, and a client that knows both."""

    def __init__(self, *handlers: Handler) -> None:
        self.servers = [page_server(handler) for handler in handlers]
        self.clock = EagerClock()

    async def __aenter__(self) -> Pair:
        urls = [f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}" for server in self.servers]
        self.client = http_client(Access(urls[0], tuple(urls[1:])), self.clock)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        for server in self.servers:
            await server.stop()


@pytest.mark.behaviour("CS-11")
async def test_another_server_is_used_when_one_cannot_be_reached() -> None:
    recorders = Recorder(), Recorder()
    async with Pair(*recorders) as pair:
        await pair.servers[0].stop()
        # A write that was not sent is not lost, and nothing waits.
        await pair.client.create(PODS, {"metadata": {"name": "a", "namespace": "default"}})
        await pair.client.get(PODS, "a", "default")
        assert [[method for method, _, _ in recorder.seen] for recorder in recorders] == [[], ["POST", "GET"]]
        assert pair.clock.slept == []
        await pair.servers[1].stop()
        with pytest.raises(ServiceUnavailableError, match=r"GET http://127.0.0.1:\d+: connection refused"):
            await pair.client.get(PODS, "a", "default")


@pytest.mark.behaviour("CS-11")
async def test_a_write_that_may_have_been_executed_is_not_repeated() -> None:
    """It fails, and what follows goes to the other server; watches of the first end, and begin anew there."""
    held, watching = asyncio.Event(), asyncio.Event()
    other = Recorder()

    async def silent(request: Request) -> Reply:
        if "watch" in request.target:
            watching.set()
            return Reply(stream=endless())
        await held.wait()
        return text("")

    async def endless() -> AsyncGenerator[bytes, None]:
        yield orjson.dumps({"type": "ADDED", "object": {"metadata": {"name": "a", "resourceVersion": "1"}}}) + b"\n"
        await held.wait()

    async with Pair(silent, other) as pair:
        async with aclosing(pair.client.watch(PODS, "default", WatchOptions(resource_version="0"))) as watch:
            assert isinstance(await anext(watch), WatchEvent)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("dray.client.http.REQUEST_TIMEOUT_SECONDS", 0.2)
                with pytest.raises(ServiceUnavailableError, match="the response timed out"):
                    await pair.client.create(PODS, {"metadata": {"name": "a", "namespace": "default"}})
            with pytest.raises(ServiceUnavailableError):
                await anext(watch)
        assert other.seen == []
        await pair.client.get(PODS, "a", "default")
        assert [method for method, _, _ in other.seen] == ["GET"]
        held.set()


@pytest.mark.behaviour("CS-11")
async def test_a_node_leaves_a_server_that_hangs_before_its_lease_expires() -> None:
    held, other = asyncio.Event(), Recorder()

    async def hang(request: Request) -> Reply:
        await held.wait()
        return text("")

    machine = MachineInfo("n", ("10.0.0.1",), "x86_64", 1, 1, 1, "k", "o")
    async with Pair(hang, other) as pair:
        node = NodeRegistration(
            pair.client, pair.clock, NodeSpec("n", machine, "fake://1"), times=ReportTimes(LEASE_SECONDS)
        )
        async with asyncio.timeout(LEASE_SECONDS):
            assert not await node.renew_once()
            assert await node.renew_once()
        assert [method for method, _, _ in other.seen] == ["POST"]
        held.set()
