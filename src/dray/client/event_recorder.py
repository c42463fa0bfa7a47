"""Records Events: a bounded queue, the correlation of equal and similar events, and the writes."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias, TypeVar
from zlib import crc32

import msgspec

from dray.api.document import Document, GroupVersionKind
from dray.api.errors import AlreadyExistsError, APIError, NotFoundError
from dray.api.timestamps import format_time
from dray.client.interface import Client, Patch, PatchType, WriteOptions
from dray.client.objects import key_of, resource_version_of, uid_of
from dray.client.resources import EVENTS
from dray.client.responses import is_retriable
from dray.client.workqueue import TokenBucket
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.tasks import TaskGroup

_log = logging.getLogger(__name__)

# As in client-go; more events are dropped, to bound memory.
QUEUE_LENGTH_MAX: Final = 1000
# Each write waits for the disk: a single writer could not keep up with a scheduler.
WRITERS: Final = 4
ATTEMPTS_MAX: Final = 12
RETRY_SECONDS: Final = 1.0
# More than the attempts of one event take.
FLUSH_SECONDS_MAX: Final = 30.0
NORMAL: Final = "Normal"
WARNING: Final = "Warning"
# With so many different messages, the newest is combined.
SIMILAR_MAX: Final = 10
SIMILAR_SECONDS: Final = 600.0
SPAM_BURST: Final = 25
SPAM_RATE_PER_SECOND: Final = 1 / 300
# Entries of each cache; the least recently used is evicted.
CACHE_MAX: Final = 4096
COMBINED_PREFIX: Final = "(combined from similar events): "
# The answer is not looked at.
_WRITE: Final = WriteOptions(read_only=True)
# The server's limit on a message.
MESSAGE_LENGTH_MAX: Final = 1024


class ObjectReference(msgspec.Struct, frozen=True, gc=False):
    """The object an event is regarding."""

    kind: GroupVersionKind
    namespace: str
    name: str
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""

    def document(self) -> Document:
        """Return the `involvedObject` field."""
        content = {
            "kind": self.kind.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "apiVersion": self.kind.api_version,
            "resourceVersion": self.resource_version,
        }
        if self.field_path:
            content["fieldPath"] = self.field_path
        if "" in content.values():
            return {name: value for name, value in content.items() if value}
        return content


def reference_to(kind: GroupVersionKind, obj: Any, *, field_path: str = "") -> ObjectReference:
    """Return a reference to a document or typed object of the kind."""
    namespace, name = key_of(obj)
    return ObjectReference(kind, namespace, name, uid_of(obj), resource_version_of(obj), field_path)


class Source(msgspec.Struct, frozen=True, gc=False):
    """The component that reports an event."""

    component: str
    host: str = ""

    def document(self) -> Document:
        """Return the `source` field."""
        return {"component": self.component, **({"host": self.host} if self.host else {})}


class EventRecord(msgspec.Struct, frozen=True):
    """One event to record; `type` is Normal or Warning."""

    regarding: ObjectReference
    type: str
    reason: str
    message: str
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    # What was done, and another object that has to do with it.
    action: str = ""
    related: ObjectReference | None = None


class CreateEvent(msgspec.Struct, frozen=True):
    """Write a new Event."""

    namespace: str
    document: Document


class PatchEvent(msgspec.Struct, frozen=True):
    """Increase the count of an earlier Event; `fallback` is written when that no longer exists."""

    namespace: str
    name: str
    body: Document
    fallback: CreateEvent


class _Observation(msgspec.Struct):
    """The Event last written for a key, as client-go's event logger keeps it."""

    name: str
    count: int
    first_timestamp: str


class _Similar(msgspec.Struct):
    """The messages of events that differ in nothing else, oldest first, and the time of the last event."""

    messages: tuple[str, ...]
    last: datetime


# Identifies events that are counted as one; all versions of an object share its keys.
_Key: TypeAlias = tuple[Hashable, ...]


class EventCorrelator:
    """Counts equal events, aggregates similar ones and limits the rate, for one source.

    Pure. The limits and their order are those of client-go: an equal event increases the count; from the tenth on that
    differs only in its message within 10 minutes they are aggregated; a source may record 25 events of each type of an
    object at once, then one per 5 minutes. Those in between are counted, too. Losing the state does no harm.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._source_document: Final = source.document()
        self._observations: OrderedDict[_Key, _Observation] = OrderedDict()
        self._similar: OrderedDict[_Key, _Similar] = OrderedDict()
        self._buckets: OrderedDict[_Key, TokenBucket] = OrderedDict()

    def correlate(self, event: EventRecord, now: datetime) -> CreateEvent | PatchEvent | None:
        """Return the write for the event; None when the source exceeds its rate for the object."""
        message, key = self._aggregate(event, now)
        observed = _touch(self._observations, key)
        time = format_time(now)
        if observed is None:
            observed = _Observation(_event_name(event, now), 0, time)
            _store(self._observations, key, observed)
        observed.count += 1
        if not self._within_rate(event, now):
            return None
        document = self._document(event, message, observed, time)
        create = CreateEvent(document["metadata"]["namespace"], document)
        if observed.count == 1:
            return create
        body = {"message": message, "count": observed.count, "lastTimestamp": time}
        return PatchEvent(create.namespace, observed.name, body, create)

    def _within_rate(self, event: EventRecord, now: datetime) -> bool:
        regarding = event.regarding
        key = (regarding.kind, regarding.namespace, regarding.name, regarding.uid, event.type)
        bucket = _touch(self._buckets, key)
        if bucket is None:
            bucket = TokenBucket(rate_per_second=SPAM_RATE_PER_SECOND, burst=SPAM_BURST)
            _store(self._buckets, key, bucket)
        return bucket.try_take(now.timestamp())

    def _aggregate(self, event: EventRecord, now: datetime) -> tuple[str, _Key]:
        """Return the message to write and the key under which the event is counted."""
        message = event.message[:MESSAGE_LENGTH_MAX]
        regarding = event.regarding
        group = (regarding.kind, regarding.namespace, regarding.name, regarding.uid, event.type, event.reason)
        similar = _touch(self._similar, group)
        if similar is None or (now - similar.last).total_seconds() > SIMILAR_SECONDS:
            similar = _Similar((), now)
            _store(self._similar, group, similar)
        similar.last = now
        if message not in similar.messages:
            if len(similar.messages) == SIMILAR_MAX - 1:
                similar.messages = (*similar.messages[1:], message)
                return f"{COMBINED_PREFIX}{message}"[:MESSAGE_LENGTH_MAX], group
            similar.messages = (*similar.messages, message)
        return message, (group, regarding.field_path, message)

    def _document(self, event: EventRecord, message: str, observed: _Observation, time: str) -> Document:
        namespace = event.regarding.namespace or "default"
        metadata: Document = {"name": observed.name, "namespace": namespace}
        if event.annotations:
            metadata["annotations"] = dict(event.annotations)
        document: Document = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": metadata,
            "involvedObject": event.regarding.document(),
            "reason": event.reason,
            "message": message,
            "source": dict(self._source_document),
            "firstTimestamp": observed.first_timestamp,
            "lastTimestamp": time,
            "count": observed.count,
            "type": event.type,
            "reportingComponent": self._source.component,
            "reportingInstance": self._source.host,
        }
        if event.action:
            document["action"] = event.action
        if event.related is not None:
            document["related"] = event.related.document()
        return document


def _event_name(event: EventRecord, now: datetime) -> str:
    """Return `<object>.<hexadecimal>`, unique by time and content, within the limit of a name."""
    content = f"{event.type}/{event.reason}/{event.message}/{event.regarding.uid}"
    microseconds = int(now.timestamp() * 1_000_000)
    return f"{event.regarding.name[:220]}.{microseconds:x}{crc32(content.encode()):08x}"


def _touch(cache: OrderedDict[K, V], key: K) -> V | None:
    """Return the cached value and mark it as most recently used."""
    value = cache.get(key)
    if value is not None:
        cache.move_to_end(key)
    return value


def _store(cache: OrderedDict[K, V], key: K, value: V) -> None:
    # Not a plain dict: finding its first entry passes over all that were removed before it.
    cache[key] = value
    if len(cache) > CACHE_MAX:
        cache.popitem(last=False)


class _Flush:
    """A wait for the events that some queues had when it began."""

    def __init__(self, queues: int) -> None:
        self._queues = queues
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def queue_done(self) -> None:
        """Count a queue whose events are written or dropped."""
        self._queues -= 1
        if not self._queues and not self.done.done():
            self.done.set_result(None)


class _WriterQueue:
    """The events of one writer in order, and those who wait until the events so far are written or dropped."""

    def __init__(self) -> None:
        # Those that wait.
        self._events: deque[EventRecord] = deque()
        # Done when there are events; None unless the writer waits.
        self._filled: asyncio.Future[None] | None = None
        # Events that wait or are being written.
        self.unwritten = 0
        # Events that are written or dropped.
        self._finished = 0
        # Each with the number of finished events that it waits for, in order.
        self._flushes: deque[tuple[int, _Flush]] = deque()

    def add(self, event: EventRecord) -> None:
        """Add an event, and wake the writer if it waits."""
        self.unwritten += 1
        self._events.append(event)
        if self._filled is not None:
            if not self._filled.done():
                self._filled.set_result(None)
            self._filled = None

    async def get(self) -> EventRecord:
        """Return the next event, as soon as there is one."""
        while not self._events:
            self._filled = asyncio.get_running_loop().create_future()
            await self._filled
        return self._events.popleft()

    def add_flush(self, flush: _Flush) -> None:
        """Tell a flush when the events that are unwritten now are finished."""
        self._flushes.append((self._finished + self.unwritten, flush))

    def event_finished(self) -> None:
        """Count an event that is written or dropped."""
        self._finished += 1
        while self._flushes and self._flushes[0][0] <= self._finished:
            self._flushes.popleft()[1].queue_done()


class EventRecorder:
    """Records core/v1 Events of objects. `event` never waits and never fails."""

    def __init__(self, client: Client, clock: Clock, source: Source, *, writers: int = WRITERS) -> None:
        self._client = client
        self._clock = clock
        self._correlator = EventCorrelator(source)
        # One writer for each queue. The events of one object are always in the same queue and so written in order.
        self._queues = tuple(_WriterQueue() for _ in range(writers))
        self._waiting = 0

    def event(
        self,
        kind: GroupVersionKind,
        obj: Any,
        event_type: str,
        reason: str,
        message: str,
        *,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Record an event of an object."""
        self.record(EventRecord(reference_to(kind, obj), event_type, reason, message, annotations or {}))

    def event_for(self, regarding: ObjectReference, event_type: str, reason: str, message: str) -> None:
        """Record an event of an object by its reference."""
        self.record(EventRecord(regarding, event_type, reason, message))

    def record(self, event: EventRecord) -> None:
        """Queue an event; it is dropped and logged when the queue is full."""
        if self._waiting >= QUEUE_LENGTH_MAX:
            _log.warning("event dropped", extra=fields(object=event.regarding.name, reason=event.reason))
            return
        queue = self._queues[_queue_index(event.regarding) % len(self._queues)]
        self._waiting += 1
        queue.add(event)

    async def run(self) -> None:
        """Write queued events until cancelled. Run it once: each queue must have only one writer."""
        async with TaskGroup("events") as group:
            for number, queue in enumerate(self._queues):
                group.spawn(self._write_all(queue), f"writer {number}")
            await group.wait()

    async def flush(self) -> bool:
        """Wait until every event that was recorded before the call is written or dropped; `run` must be running.

        Returns False if that takes too long.
        """
        busy = [queue for queue in self._queues if queue.unwritten]
        if not busy:
            return True
        flush = _Flush(len(busy))
        for queue in busy:
            queue.add_flush(flush)
        try:
            async with asyncio.timeout(FLUSH_SECONDS_MAX):
                await flush.done
        except TimeoutError:
            return False
        return True

    async def _write_all(self, queue: _WriterQueue) -> None:
        while True:
            event = await queue.get()
            self._waiting -= 1
            try:
                await self._write(event)
            finally:
                queue.unwritten -= 1
            queue.event_finished()

    async def _write(self, event: EventRecord) -> None:
        decision = self._correlator.correlate(event, self._clock.now())
        if decision is None:
            return
        for _ in range(ATTEMPTS_MAX):
            try:
                await self._perform(decision)
            except APIError as error:
                if not is_retriable(error):
                    _log.info("event refused", extra=fields(reason=event.reason, error=str(error)))
                    return
                await self._clock.sleep(RETRY_SECONDS)
            else:
                return
        _log.warning("event dropped after retries", extra=fields(object=event.regarding.name, reason=event.reason))

    async def _perform(self, decision: CreateEvent | PatchEvent) -> None:
        await (self._create(decision) if isinstance(decision, CreateEvent) else self._patch(decision))

    async def _patch(self, decision: PatchEvent) -> None:
        patch = Patch(PatchType.STRATEGIC, decision.body)
        try:
            await self._client.patch(EVENTS, decision.name, decision.namespace, patch, _WRITE)
        except NotFoundError:
            # It has expired on the server.
            await self._create(decision.fallback)

    async def _create(self, decision: CreateEvent) -> None:
        try:
            await self._client.create(EVENTS, decision.document, decision.namespace, _WRITE)
        except AlreadyExistsError:
            # An earlier attempt succeeded and only its response was lost.
            return


def _queue_index(regarding: ObjectReference) -> int:
    """Return a number that is the same for an object in every process, so that simulations can be repeated."""
    return crc32(f"{regarding.namespace}/{regarding.name}".encode())


K = TypeVar("K")
V = TypeVar("V")
