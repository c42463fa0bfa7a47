"""A user with many connections: another user's requests are answered after a few of theirs, not after all."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeVar

import orjson
import pytest

from dray.apiserver.call import Pacer
from dray.apiserver.fairness import FairQueue, Limits
from dray.apiserver.metrics import RequestMetrics
from dray.apiserver.request import UserInfo
from dray.apiserver.request_limiter import RequestLimiter
from dray.runtime.metrics import Metrics
from dray.runtime.system import SystemClock
from tests.security.attacker import CONFIG_MAPS, TrustingListener, attacked_server

T = TypeVar("T")

CONNECTIONS: Final = 150
# About what a step of a create takes; a turn has four of them.
STEP_SECONDS: Final = 0.00025
OBJECTS: Final = 300
REQUESTS: Final = 15
# Only for a server that does not answer at all.
WAIT_SECONDS: Final = 180.0
TABLE: Final = "application/json;as=Table;v=v1;g=meta.k8s.io"


class StepClock(SystemClock):
    """Advances with each reading, so that a step of a request takes the same time on every machine, however busy."""

    def __init__(self) -> None:
        self._readings = 0

    def monotonic(self) -> float:
        self._readings += 1
        return self._readings * STEP_SECONDS


class CountingLimiter(RequestLimiter):
    """Counts the requests that it has started, by user."""

    def __init__(self, limits: Limits) -> None:
        clock = StepClock()
        super().__init__(FairQueue(limits), clock, clock.monotonic)
        self.started: Counter[str] = Counter()

    async def run(self, user: UserInfo, path: str, work: Callable[[Pacer], Coroutine[Any, Any, T]]) -> T:
        def counted(pacer: Pacer) -> Coroutine[Any, Any, T]:
            self.started[user.name] += 1
            return work(pacer)

        return await super().run(user, path, counted)


@asynccontextmanager
async def listening(limiter: RequestLimiter) -> AsyncIterator[int]:
    """The port of a server with some objects that every user may read and write."""
    async with attacked_server() as attacker:
        role = {
            "metadata": {"name": "maps"},
            "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}],
        }
        binding = {
            "metadata": {"name": "maps"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "maps"},
            "subjects": [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "system:authenticated"}],
        }
        for path, document in (("clusterroles", role), ("clusterrolebindings", binding)):
            answer = await attacker.send("POST", f"/apis/rbac.authorization.k8s.io/v1/{path}", document)
            assert answer.code == 201, answer
        for number in range(OBJECTS):
            document = {"metadata": {"name": f"map-{number}"}, "data": {"text": "x" * 200}}
            assert (await attacker.send("POST", CONFIG_MAPS, document)).code == 201
        bound = socket.create_server(("127.0.0.1", 0))
        listener = TrustingListener(attacker._server, limiter, RequestMetrics(Metrics()))
        await listener.start([bound], None)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                yield bound.getsockname()[1]
        finally:
            await listener.stop()


class Client:
    """One connection of a user."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, user: str) -> None:
        self._reader, self._writer, self._user = reader, writer, user

    async def call(
        self, method: str, path: str, body: bytes = b"", accept: str = "application/json"
    ) -> tuple[int, bytes]:
        """Send a request and read the response."""
        self._writer.write(
            f"{method} {path} HTTP/1.1\r\nAuthorization: {self._user}\r\nAccept: {accept}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return int(head.split()[1]), await self._reader.readexactly(size)


@asynccontextmanager
async def connected(port: int, user: str) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
    try:
        yield Client(reader, writer, user)
    finally:
        writer.transport.abort()


class Flood:
    """A user who repeats requests on many connections."""

    def __init__(self, accept: str) -> None:
        self._accept = accept

    async def client(self, client: Client, number: int) -> None:
        """Repeat until cancelled."""
        round_number = 0
        while True:
            if self._accept:
                status, _ = await client.call("GET", CONFIG_MAPS, accept=self._accept)
                assert status == 200
            else:
                round_number += 1
                body = orjson.dumps({"metadata": {"name": f"greedy-{number}-{round_number}"}, "data": {"t": "x" * 200}})
                status, _ = await client.call("POST", CONFIG_MAPS, body)
                assert status == 201


@pytest.mark.parametrize("accept", ["application/json", TABLE, ""], ids=["lists", "tables", "creates"])
async def test_another_user_waits_for_a_few_of_the_greedy_users_requests(accept: str) -> None:
    limiter = CountingLimiter(Limits())
    async with listening(limiter) as port, AsyncExitStack() as stack:
        flood = Flood(accept)
        clients = [await stack.enter_async_context(connected(port, "greedy")) for _ in range(CONNECTIONS)]
        modest = await stack.enter_async_context(connected(port, "modest"))
        tasks = [asyncio.ensure_future(flood.client(client, number)) for number, client in enumerate(clients)]
        try:
            while limiter.started["greedy"] < CONNECTIONS:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0)
            between = []
            for _ in range(REQUESTS):
                before = limiter.started["greedy"]
                status, _ = await modest.call("GET", f"{CONFIG_MAPS}/map-0")
                assert status == 200
                between.append(limiter.started["greedy"] - before)
        finally:
            for task in tasks:
                task.cancel()
            done, _ = await asyncio.wait(tasks)
        assert all(task.cancelled() for task in done), "no request of the greedy user failed"
        # In order of arrival it would be all of them, for each step of the request. Not those that are answered in the
        # meantime are counted, but those that are started: a commit of the store answers many creates at once.
        assert max(between) <= CONNECTIONS // 5, between


async def test_a_list_in_parts_is_the_whole_list() -> None:
    limiter = RequestLimiter(FairQueue(Limits(turn_seconds=0.0)), SystemClock())
    async with listening(limiter) as port, connected(port, "alice") as client:
        status, body = await client.call("GET", CONFIG_MAPS)
        assert status == 200
        assert len(orjson.loads(body)["items"]) == OBJECTS + 1
        status, body = await client.call("GET", f"{CONFIG_MAPS}?fieldSelector=metadata.name%3Dmap-7", accept=TABLE)
        assert [row["object"]["metadata"]["name"] for row in orjson.loads(body)["rows"]] == ["map-7"]


async def test_requests_beyond_the_queue_are_refused() -> None:
    limiter = RequestLimiter(FairQueue(Limits(seats=1, queue_length_max=0)), SystemClock())
    async with listening(limiter) as port, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(port, "greedy")) for _ in range(20)]
        answers = await asyncio.gather(*(client.call("GET", CONFIG_MAPS) for client in clients))
        codes = {code for code, _ in answers}
        assert codes == {200, 429}
        refused = next(body for code, body in answers if code == 429)
        assert orjson.loads(refused)["message"] == "Too many requests, please try again later."


async def test_requests_leave_no_cycles_for_the_garbage_collector() -> None:
    """Its collections hold up everybody; of requests that leave cycles, many users' make them frequent and long."""
    paths = (f"{CONFIG_MAPS}/map-1", f"{CONFIG_MAPS}/missing", f"{CONFIG_MAPS}?limit=5", "/nothing")
    async with listening(CountingLimiter(Limits())) as port, connected(port, "modest") as client:
        for path in paths:
            await client.call("GET", path)
        gc.collect()
        gc.disable()
        try:
            for number in range(100):
                await client.call("GET", paths[number % len(paths)])
            assert gc.collect() < 100
        finally:
            gc.enable()
