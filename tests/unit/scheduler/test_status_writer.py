"""The background writes of Pod statuses: the newest replaces what was not sent, and nothing obsolete is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from dray.api.types.core_v1 import Pod
from dray.client.interface import Client, Patch
from dray.runtime.tasks import TaskGroup
from dray.scheduler.status_writer import LATE_WRITES_MAX, WRITES_MAX, StatusWriter
from tests.unit.scheduler.builders import pod

pytestmark = pytest.mark.behaviour("SC-12")


class BlockedClient:
    """Blocks patches until they are released; records those that were sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.release = asyncio.Semaphore(0)

    async def patch(self, _resource: object, name: str, _namespace: str, patch: Patch, _options: object) -> None:
        body: Any = patch.body
        self.sent.append((name, body["status"]))
        await self.release.acquire()

    def release_all(self) -> None:
        for _ in range(1000):
            self.release.release()


@asynccontextmanager
async def running() -> AsyncIterator[tuple[StatusWriter, BlockedClient]]:
    client = BlockedClient()
    writer = StatusWriter(cast(Client, client))
    async with asyncio.timeout(10), TaskGroup("test") as group:
        group.spawn(writer.run(), "writer")
        yield writer, client


async def steps() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def late(given: Pod, status: Any) -> Any:
    return lambda: None if status is None else (given, status)


async def test_the_newest_status_replaces_what_was_not_sent_field_by_field() -> None:
    async with running() as (writer, client):
        writer.write(pod("a"), {"x": 1})
        await steps()
        writer.write(pod("a"), {"x": 2, "y": 2})
        writer.write(pod("a"), {"x": 3})
        assert writer.pending("uid-a") == {"x": 3, "y": 2}
        client.release_all()
        await writer.wait("uid-a")
    assert client.sent == [("a", {"x": 1}), ("a", {"x": 3, "y": 2})]


async def test_writes_of_different_pods_run_at_once_up_to_a_limit() -> None:
    async with running() as (writer, client):
        for number in range(WRITES_MAX + 5):
            writer.write(pod(f"p{number}"), {"x": number})
        await steps()
        assert len(client.sent) == WRITES_MAX
        client.release_all()
        for number in range(WRITES_MAX + 5):
            await writer.wait(f"uid-p{number}")
    assert [status["x"] for _, status in client.sent] == list(range(WRITES_MAX + 5))


async def test_a_binding_drops_what_was_not_sent() -> None:
    async with running() as (writer, client):
        for number in range(WRITES_MAX):
            writer.write(pod(f"p{number}"), {})
        await steps()
        writer.write(pod("a"), {"x": 1})
        await writer.settle("uid-a")
        assert writer.pending("uid-a") is None
        client.release_all()
        await steps()
    assert "a" not in dict(client.sent)


async def test_a_binding_waits_for_what_was_sent_and_what_follows_it() -> None:
    async with running() as (writer, client):
        writer.write(pod("a"), {"x": 1})
        await steps()
        writer.write(pod("a"), {"x": None})
        settled = asyncio.ensure_future(writer.settle("uid-a"))
        await steps()
        assert not settled.done()
        client.release_all()
        await settled
        assert writer.pending("uid-a") is None
    assert client.sent == [("a", {"x": 1}), ("a", {"x": None})]


async def test_late_statuses_are_few_at_a_time_and_asked_for_when_they_are_sent() -> None:
    async with running() as (writer, client):
        obsolete = False
        for number in range(LATE_WRITES_MAX + 3):
            name = f"p{number}"
            given = pod(name)
            writer.write_late(f"uid-{name}", lambda given=given: None if obsolete else (given, {"x": 1}))  # type: ignore[misc]
        await steps()
        assert len(client.sent) == LATE_WRITES_MAX
        obsolete = True
        client.release_all()
        await steps()
        assert len(client.sent) == LATE_WRITES_MAX
        # The next one finds a free writer.
        writer.write_late("uid-b", late(pod("b"), {"x": 2}))
        await steps()
    assert client.sent[-1] == ("b", {"x": 2})


async def test_a_late_status_gives_way_to_another_one_and_to_a_binding() -> None:
    async with running() as (writer, client):
        for number in range(LATE_WRITES_MAX):
            writer.write_late(f"uid-p{number}", late(pod(f"p{number}"), {"x": 0}))
        await steps()
        writer.write_late("uid-a", late(pod("a"), {"x": 1}))
        writer.write_late("uid-b", late(pod("b"), {"x": 1}))
        writer.write(pod("a"), {"x": 2})
        await writer.settle("uid-b")
        client.release_all()
        await steps()
    assert client.sent[LATE_WRITES_MAX:] == [("a", {"x": 2})]
