"""The change stream: objects, changes, and an error line when watching fails."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import orjson
import pytest

from dray.api.document import GroupVersion
from dray.api.errors import InternalError
from dray.client.in_process import in_process_client
from dray.client.interface import Client, unstructured
from dray.dashboard import change_stream
from dray.dashboard.change_stream import LineBuffer, stream_changes, synced_line
from dray.runtime.system import SystemClock
from tests.fake_local_server import FakeLocalServer

SECONDS_MAX = 10.0
PODS = unstructured(GroupVersion("", "v1"), "pods", "Pod")
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"}}


def lines(chunk: bytes) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in chunk.splitlines()]


class Failing:
    """A client whose informers fail in a way that they do not retry."""

    def __init__(self, client: Client, error: Exception) -> None:
        self._client = client
        self.error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def watch_batches(self, *_arguments: Any) -> Any:
        raise self.error


async def read_all(client: Client) -> list[dict[str, Any]]:
    """Every line until the stream ends."""
    async with asyncio.timeout(SECONDS_MAX), aclosing(stream_changes(client, SystemClock())) as stream:
        return [line async for chunk in stream for line in lines(chunk)]


async def test_rows_come_before_the_kind_is_synced_and_changes_after() -> None:
    client = in_process_client(FakeLocalServer(), user="admin")
    await client.create(PODS, POD)
    seen: list[dict[str, Any]] = []
    async with asyncio.timeout(SECONDS_MAX), aclosing(stream_changes(client, SystemClock())) as stream:
        deleted = False
        async for chunk in stream:
            seen += lines(chunk)
            if any(line.get("removed") for line in seen):
                break
            if not deleted and any(line.get("kind") == "Pod" and line["type"] == "SYNCED" for line in seen):
                deleted = True
                await client.delete(PODS, "web", "default")
    assert seen[0]["type"] == "COLUMNS"
    pods = [line for line in seen if "pods" in (line.get("table"), line.get("kind", "").lower() + "s")]
    assert [line["type"] for line in pods] == ["ROWS", "SYNCED", "ROWS"]
    assert pods[0]["rows"]["default/web"][seen[0]["tables"]["pods"].index("state")] == "pending"
    assert pods[2]["removed"] == ["default/web"]
    unavailable = {line["kind"]: line["message"] for line in seen if line["type"] == "UNAVAILABLE"}
    assert unavailable["ResourceSlice"] == "not served"


async def test_a_crash_while_watching_ends_the_stream_with_an_error() -> None:
    client = Failing(in_process_client(FakeLocalServer(), user="admin"), RuntimeError("bug"))
    seen = await read_all(client)
    assert seen[-1] == {"type": "ERROR", "message": "internal error"}
    assert [line["type"] for line in seen].count("ERROR") == 1


async def test_an_api_error_before_watching_reaches_the_page() -> None:
    class Unreachable(Failing):
        async def resources(self, **_: Any) -> Any:
            raise self.error

    seen = await read_all(Unreachable(in_process_client(FakeLocalServer(), user="admin"), InternalError("no route")))
    assert [line["type"] for line in seen] == ["ERROR"]
    assert "no route" in seen[0]["message"]


async def test_closing_the_stream_stops_watching() -> None:
    before = asyncio.all_tasks()
    stream = stream_changes(in_process_client(FakeLocalServer(), user="admin"), SystemClock())
    async with asyncio.timeout(SECONDS_MAX):
        await anext(stream)
        await stream.aclose()
    assert asyncio.all_tasks() == before


async def test_an_idle_stream_sends_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_stream, "HEARTBEAT_SECONDS", 0.0)
    assert lines(await LineBuffer().next_chunk()) == [{"type": "HEARTBEAT"}]


async def test_a_reader_that_falls_behind_gets_an_error_instead_of_a_gap() -> None:
    buffer = LineBuffer(lines_max=2)
    for kind in ("Node", "Pod", "Event"):
        buffer.add(synced_line(kind))
    (line,) = lines(await buffer.next_chunk())
    assert line["type"] == "ERROR"
    assert await buffer.next_chunk() == b"", "nothing follows an error"
