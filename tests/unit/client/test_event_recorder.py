"""Events: counting, combining, spam, and the writes they become."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import cast

import msgspec
import pytest

from dray.api.document import Document, GroupVersionKind
from dray.api.errors import ServiceUnavailableError
from dray.client import event_recorder
from dray.client.event_recorder import (
    NORMAL,
    QUEUE_LENGTH_MAX,
    WARNING,
    WRITERS,
    CreateEvent,
    EventCorrelator,
    EventRecord,
    EventRecorder,
    ObjectReference,
    PatchEvent,
    Source,
)
from dray.client.in_process import in_process_client
from dray.client.interface import Client
from dray.lib.clock import VirtualClock
from tests.fake_local_server import FakeLocalServer, fail

POD = GroupVersionKind("", "v1", "Pod")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
REGARDING = ObjectReference(POD, "default", "a", "uid-a", "7")


def event(message: str = "no", regarding: ObjectReference = REGARDING) -> EventRecord:
    return EventRecord(regarding, WARNING, "Failed", message)


def test_the_same_event_raises_its_count_by_a_patch() -> None:
    correlator = EventCorrelator(Source("kubelet", "node-1"))
    first = correlator.correlate(event(), NOW)
    assert isinstance(first, CreateEvent)
    assert first.document["count"] == 1
    assert first.document["involvedObject"]["apiVersion"] == "v1"
    assert first.document["source"] == {"component": "kubelet", "host": "node-1"}
    later = NOW + timedelta(seconds=5)
    second = correlator.correlate(event(), later)
    assert isinstance(second, PatchEvent)
    assert second.name == first.document["metadata"]["name"]
    assert second.body == {"message": "no", "count": 2, "lastTimestamp": "2026-01-01T00:00:05Z"}
    assert second.fallback.document["firstTimestamp"] == "2026-01-01T00:00:00Z"


def test_the_tenth_similar_event_is_combined() -> None:
    correlator = EventCorrelator(Source("test"))
    for number in range(9):
        assert isinstance(correlator.correlate(event(f"message {number}"), NOW), CreateEvent)
    combined = correlator.correlate(event("message 9"), NOW)
    assert isinstance(combined, CreateEvent)
    assert combined.document["message"] == "(combined from similar events): message 9"
    again = correlator.correlate(event("message 10"), NOW)
    assert isinstance(again, PatchEvent)
    assert again.body["message"] == "(combined from similar events): message 10"
    assert again.body["count"] == 2
    # One that is among the last nine is still counted by itself.
    known = correlator.correlate(event("message 8"), NOW)
    assert isinstance(known, PatchEvent)
    assert known.body == {"message": "message 8", "count": 2, "lastTimestamp": "2026-01-01T00:00:00Z"}
    # A container of the Pod is part of the same group.
    other = msgspec.structs.replace(REGARDING, field_path="spec.containers{b}")
    assert isinstance(correlator.correlate(event("message 11", other), NOW), PatchEvent)


def test_similar_events_far_apart_are_not_combined() -> None:
    correlator = EventCorrelator(Source("test"))
    for number in range(10):
        correlator.correlate(event(f"message {number}"), NOW)
    later = correlator.correlate(event("later"), NOW + timedelta(seconds=601))
    assert isinstance(later, CreateEvent)
    assert later.document["message"] == "later"


def test_a_source_may_record_25_events_at_once_and_then_one_per_5_minutes() -> None:
    correlator = EventCorrelator(Source("test"))
    sent = [correlator.correlate(event(), NOW) is not None for _ in range(30)]
    assert sent == [True] * 25 + [False] * 5
    assert correlator.correlate(event(), NOW + timedelta(seconds=299)) is None
    counted = correlator.correlate(event(), NOW + timedelta(seconds=301))
    assert isinstance(counted, PatchEvent)
    assert counted.body["count"] == 32
    # Each type has a rate of its own.
    normal = EventRecord(REGARDING, NORMAL, "Started", "yes")
    assert correlator.correlate(normal, NOW + timedelta(seconds=302)) is not None
    # Another object has a rate of its own; another version of the same object does not.
    assert correlator.correlate(event(regarding=ObjectReference(POD, "default", "b", "uid-b")), NOW) is not None
    newer = ObjectReference(POD, "default", "a", "uid-a", "8")
    assert correlator.correlate(event(regarding=newer), NOW + timedelta(seconds=302)) is None


async def test_events_are_written_and_survive_an_unavailable_server() -> None:
    server = FakeLocalServer()
    server.before = fail(2, ServiceUnavailableError("down"), verb="create", resource="events")
    clock = clock_here()
    recorder = EventRecorder(in_process_client(server, user="test"), clock, Source("test"))
    task = asyncio.create_task(recorder.run())
    pod = {"metadata": {"name": "a", "namespace": "default", "uid": "u"}}
    recorder.event(POD, pod, WARNING, "Failed", "no")
    recorder.event(POD, pod, WARNING, "Failed", "no")
    flushed = asyncio.create_task(recorder.flush())
    async with asyncio.timeout(5):
        while not flushed.done():
            clock.advance(1)
            await asyncio.sleep(0)
    (event,) = server.all("events")
    assert (event["count"], event["reason"], event["involvedObject"]["uid"]) == (2, "Failed", "u")
    # The server forgets events; recording again writes a new one.
    server.remove("", "events", event["metadata"]["name"], "default")
    recorder.event(POD, pod, WARNING, "Failed", "no")
    await asyncio.wait_for(recorder.flush(), 5)
    assert [item["count"] for item in server.all("events")] == [3]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def clock_here() -> VirtualClock:
    return VirtualClock(asyncio.get_running_loop().create_future)


class SlowClient:
    """Blocks writes until released; records those in flight."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.all_write = asyncio.Event()
        self.go_on = asyncio.Event()

    async def create(self, _resource: object, document: Document, *_: object) -> Document:
        self.begun.append(document["message"])
        if len(self.begun) == WRITERS:
            self.all_write.set()
        await self.go_on.wait()
        return document


async def test_objects_do_not_wait_for_each_other_and_an_objects_events_keep_their_order() -> None:
    client = SlowClient()
    recorder = EventRecorder(cast(Client, client), clock_here(), Source("test"))
    writing = asyncio.create_task(recorder.run())
    # Enough objects for every writer to have some.
    for number in range(100):
        regarding = ObjectReference(POD, "default", f"pod-{number}", f"uid-{number}")
        for step in ("first", "second"):
            recorder.record(event(f"{number} {step}", regarding))
    async with asyncio.timeout(10):
        await client.all_write.wait()
        client.go_on.set()
        await recorder.flush()
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    assert sorted(client.begun) == sorted(f"{number} {step}" for number in range(100) for step in ("first", "second"))
    for number in range(100):
        assert client.begun.index(f"{number} first") < client.begun.index(f"{number} second")


class BusyClient:
    """Records another event with each one that is written, until it is stopped."""

    def __init__(self) -> None:
        self.recorder = EventRecorder(cast(Client, self), clock_here(), Source("test"))
        self.written: list[str] = []
        self.stopped = False

    async def create(self, _resource: object, document: Document, *_: object) -> Document:
        self.written.append(document["involvedObject"]["name"])
        if not self.stopped:
            self.recorder.record(event("more", ObjectReference(POD, "default", f"more-{len(self.written)}")))
        await asyncio.sleep(0)
        return document


async def test_a_flush_waits_only_for_what_was_recorded_before() -> None:
    client = BusyClient()
    recorder = client.recorder
    writing = asyncio.create_task(recorder.run())
    for number in range(20):
        recorder.record(event("no", ObjectReference(POD, "default", f"before-{number}")))
    async with asyncio.timeout(10):
        assert await recorder.flush()
        assert {f"before-{number}" for number in range(20)} <= set(client.written)
        client.stopped = True
        assert await recorder.flush()
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    assert len(set(client.written)) == len(client.written)


async def test_each_flush_waits_for_its_own_events() -> None:
    client = SlowClient()
    recorder = EventRecorder(cast(Client, client), clock_here(), Source("test"), writers=1)
    writing = asyncio.create_task(recorder.run())
    recorder.record(event("first"))
    earlier = asyncio.create_task(recorder.flush())
    await asyncio.sleep(0)
    recorder.record(event("second", ObjectReference(POD, "default", "b", "uid-b")))
    later = asyncio.create_task(recorder.flush())
    abandoned = asyncio.create_task(recorder.flush())
    await asyncio.sleep(0)
    abandoned.cancel()
    client.go_on.set()
    async with asyncio.timeout(10):
        assert await earlier
        assert "first" in client.begun
        assert await later
    assert client.begun == ["first", "second"]
    assert await recorder.flush()
    writing.cancel()
    await asyncio.gather(writing, abandoned, return_exceptions=True)


async def test_a_flush_ends_after_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_recorder, "FLUSH_SECONDS_MAX", 0.01)
    client = SlowClient()
    recorder = EventRecorder(cast(Client, client), clock_here(), Source("test"))
    assert await recorder.flush(), "nothing was recorded"
    writing = asyncio.create_task(recorder.run())
    recorder.record(event("no"))
    async with asyncio.timeout(10):
        assert not await recorder.flush()
        client.go_on.set()
        while not await recorder.flush():
            pass
    assert client.begun == ["no"]
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)


async def test_who_falls_too_far_behind_drops_events(caplog: pytest.LogCaptureFixture) -> None:
    recorder = EventRecorder(cast(Client, SlowClient()), clock_here(), Source("test"))
    for number in range(QUEUE_LENGTH_MAX + 1):
        recorder.record(event("no", ObjectReference(POD, "default", f"pod-{number}")))
    assert [record.message for record in caplog.records] == ["event dropped"]


@pytest.mark.parametrize("woken", [False, True])
async def test_no_event_is_lost_when_the_writers_are_cancelled_and_started_again(woken: bool) -> None:
    server = FakeLocalServer()
    recorder = EventRecorder(in_process_client(server, user="test"), clock_here(), Source("test"))
    first = asyncio.create_task(recorder.run())
    await asyncio.sleep(0.01)
    if woken:
        # The writer has its event, but has not run since.
        recorder.record(event("1"))
    first.cancel()
    await asyncio.wait([first])
    if not woken:
        recorder.record(event("1"))
    second = asyncio.create_task(recorder.run())
    recorder.record(event("2"))
    assert await recorder.flush()
    second.cancel()
    await asyncio.wait([second])
    assert [request.body["message"] for request in server.requests if isinstance(request.body, dict)] == ["1", "2"]
