"""A user with many connections: another user's requests are answered after a few of theirs, not after all."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import orjson
import pytest

from dray.apiserver.fairness import FairQueue, Limits
from dray.apiserver.metrics import RequestMetrics
from dray.apiserver.request_limiter import RequestLimiter
from dray.runtime.metrics import Metrics
from dray.runtime.system import SystemClock
from tests.security.attacker import CONFIG_MAPS, TrustingListener, attacked_server

CONNECTIONS: Final = 60
OBJECTS: Final = 300
REQUESTS: Final = 15
WAIT_SECONDS: Final = 60.0
TABLE: Final = "application/json;as=Table;v=v1;g=meta.k8s.io"


@asynccontextmanager
async def listening(limits: Limits) -> AsyncIterator[int]:
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
        limiter = RequestLimiter(FairQueue(limits), SystemClock())
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
    """A user who repeats requests on many connections, and counts the answers."""

    def __init__(self, accept: str) -> None:
        self.answers = 0
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
            self.answers += 1


@pytest.mark.parametrize("accept", ["application/json", TABLE, ""], ids=["lists", "tables", "creates"])
async def test_another_user_waits_for_a_few_of_the_greedy_users_requests(accept: str) -> None:
    async with listening(Limits()) as port, AsyncExitStack() as stack:
        flood = Flood(accept)
        clients = [await stack.enter_async_context(connected(port, "greedy")) for _ in range(CONNECTIONS)]
        modest = await stack.enter_async_context(connected(port, "modest"))
        tasks = [asyncio.ensure_future(flood.client(client, number)) for number, client in enumerate(clients)]
        try:
            while flood.answers < CONNECTIONS:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0)
            between = []
            for _ in range(REQUESTS):
                before = flood.answers
                status, _ = await modest.call("GET", f"{CONFIG_MAPS}/map-0")
                assert status == 200
                between.append(flood.answers - before)
        finally:
            for task in tasks:
                task.cancel()
            done, _ = await asyncio.wait(tasks)
        assert all(task.cancelled() for task in done), "no request of the greedy user failed"
        # In order of arrival it would be all of them, for each step of the request. Creates are answered many at once,
        # when the store has committed them; what counts is time, and they are short.
        few = CONNECTIONS // 5 if accept else CONNECTIONS * 2 // 3
        assert sorted(between)[REQUESTS // 2] <= few, between


async def test_a_list_in_parts_is_the_whole_list() -> None:
    limits = Limits(turn_seconds=0.0)
    async with listening(limits) as port, connected(port, "alice") as client:
        status, body = await client.call("GET", CONFIG_MAPS)
        assert status == 200
        assert len(orjson.loads(body)["items"]) == OBJECTS + 1
        status, body = await client.call("GET", f"{CONFIG_MAPS}?fieldSelector=metadata.name%3Dmap-7", accept=TABLE)
        assert [row["object"]["metadata"]["name"] for row in orjson.loads(body)["rows"]] == ["map-7"]


async def test_requests_beyond_the_queue_are_refused() -> None:
    async with listening(Limits(seats=1, queue_length_max=0)) as port, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(port, "greedy")) for _ in range(20)]
        answers = await asyncio.gather(*(client.call("GET", CONFIG_MAPS) for client in clients))
        codes = {code for code, _ in answers}
        assert codes == {200, 429}
        refused = next(body for code, body in answers if code == 429)
        assert orjson.loads(refused)["message"] == "Too many requests, please try again later."
