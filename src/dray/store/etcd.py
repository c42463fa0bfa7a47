"""The store on etcd v3, which several API servers may share.

Reads and writes go to etcd. One etcd watch per store feeds the hub, which serves all watches, so that thousands of
watches are one for etcd. A watch from a revision before the hub's history first reads older events with short etcd
watches. Revisions are those of etcd.

When connecting, the store writes a fence key. Reading older events always finds that event, or one that the hub has
published, and so ends without asking etcd for progress.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import grpc
import grpc.aio

from dray.rpc.pb.etcd import mvcc_pb2, rpc_pb2, rpc_pb2_grpc
from dray.runtime.tasks import ChildTasks
from dray.store.buffered_watch import BufferedWatch
from dray.store.etcd_guards import Guards
from dray.store.interface import (
    NO_GUARDS,
    Entry,
    Event,
    EventType,
    FutureRevisionError,
    GuardConflictError,
    KeyExistsError,
    KeyNotFoundError,
    Page,
    RevisionCompactedError,
    RevisionConflictError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    ValueTooLargeError,
)
from dray.store.state import CompactionPolicy, CompactionSchedule
from dray.store.watch_hub import EventHistory, WatchHub, covers

RECENT_EVENTS_MAX = 4096
RECENT_BYTES_MAX = 8 * 1024 * 1024
# etcd returns a range in one message; long lists are fetched in parts of this many keys.
LIST_KEYS_MAX = 2_000
REQUEST_SECONDS = 10.0
RETRY_SECONDS_MIN = 0.1
RETRY_SECONDS_MAX = 5.0

_COMPACTED_TEXT = "required revision has been compacted"
_FUTURE_TEXT = "required revision is a future revision"
_FULL_TEXT = "database space exceeded"
# By etcd's --max-request-bytes, or by the limit of its gRPC server, which is a little larger.
_TOO_LARGE_TEXTS = ("request is too large", "received message larger than max")
_UNAVAILABLE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)
# A member that has lost the others ends the watch, instead of keeping it open without events.
_REQUIRE_LEADER = (("hasleader", "true"),)
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Detects a dead peer on an idle connection; etcd accepts pings at most every 5 seconds.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TLSFiles:
    """PEM files for TLS to etcd; certificate and key only if it requires client certificates."""

    authority: Path
    certificate: Path | None = None
    key: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files."""
        return grpc.ssl_channel_credentials(
            root_certificates=self.authority.read_bytes(),
            private_key=self.key.read_bytes() if self.key else None,
            certificate_chain=self.certificate.read_bytes() if self.certificate else None,
        )


class _CompactedError(StoreError):
    """Etcd has compacted the requested revision; `compacted` is 0 when unknown."""

    def __init__(self, compacted: int) -> None:
        super().__init__(_COMPACTED_TEXT)
        self.compacted = compacted


class _FutureError(StoreError):
    """Etcd has not reached the requested revision."""


class Endpoints:
    """Channels to the members of etcd; after a failure the next one is used."""

    def __init__(self, endpoints: Sequence[str], credentials: grpc.ChannelCredentials | None) -> None:
        if not endpoints:
            raise ValueError("at least one etcd endpoint is needed")
        self._channels = [_channel(endpoint, credentials) for endpoint in endpoints]
        self._kv = [rpc_pb2_grpc.KVStub(channel) for channel in self._channels]
        self._watch = [rpc_pb2_grpc.WatchStub(channel) for channel in self._channels]
        self._maintenance = [rpc_pb2_grpc.MaintenanceStub(channel) for channel in self._channels]
        self._at = 0

    async def call(self, method: str, request: object) -> Any:
        """Make a KV call. A read tries every member; a write, which must not be repeated, only the current one."""
        attempts = len(self._channels) if method == "Range" else 1
        return await self._answered(self._kv, method, request, attempts=attempts)

    async def read_within(self, request: object, timeout_seconds: float) -> Any:
        """Read from the first member that responds; all of them together have the time given."""
        attempts = len(self._channels)
        return await self._answered(
            self._kv, "Range", request, attempts=attempts, timeout_seconds=timeout_seconds / attempts
        )

    async def status(self, timeout_seconds: float | None = None) -> Any:
        """Return the status of the first member that responds, which becomes the current one."""
        request, attempts = rpc_pb2.StatusRequest(), len(self._channels)
        each_seconds = timeout_seconds / attempts if timeout_seconds else REQUEST_SECONDS
        return await self._answered(
            self._maintenance, "Status", request, attempts=attempts, timeout_seconds=each_seconds
        )

    async def watch(self, create: Any) -> AsyncGenerator[Any, None]:
        """Yield the responses of one etcd watch, including the confirmation of its creation."""
        stream = self._watch[self._at].Watch(metadata=_REQUIRE_LEADER)
        try:
            await stream.write(rpc_pb2.WatchRequest(create_request=create))
            async for response in stream:
                if response.compact_revision:
                    raise _CompactedError(response.compact_revision)
                if response.canceled:
                    raise StoreUnavailableError(f"etcd ended a watch: {response.cancel_reason}")
                yield response
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from error
        except asyncio.InvalidStateError as error:
            raise StoreUnavailableError("the connection to etcd was closed") from error
        finally:
            stream.cancel()
        raise StoreUnavailableError("etcd ended a watch")

    async def close(self) -> None:
        """Close all connections; calls in progress fail."""
        for channel in self._channels:
            await channel.close(None)

    async def _answered(
        self,
        stubs: Sequence[Any],
        method: str,
        request: object,
        *,
        attempts: int,
        timeout_seconds: float = REQUEST_SECONDS,
    ) -> Any:
        for remaining in reversed(range(attempts)):
            try:
                return await getattr(stubs[self._at], method)(request, timeout=timeout_seconds)
            except grpc.aio.AioRpcError as error:
                translated = self._translated(error)
                if not remaining or not isinstance(translated, StoreUnavailableError):
                    raise translated from error
            except grpc.aio.UsageError as error:
                raise StoreUnavailableError("the connection to etcd is closed") from error
        raise AssertionError("at least one attempt is made")

    def _translated(self, error: grpc.aio.AioRpcError) -> StoreError:
        details = error.details() or ""
        if _COMPACTED_TEXT in details:
            return _CompactedError(0)
        if _FUTURE_TEXT in details:
            return _FutureError(details)
        if _FULL_TEXT in details:
            return StoreFullError(f"etcd: {details}")
        if any(text in details for text in _TOO_LARGE_TEXTS):
            return ValueTooLargeError(f"etcd: {details}")
        if error.code() in _UNAVAILABLE:
            self._at = (self._at + 1) % len(self._channels)
            return StoreUnavailableError(f"etcd does not answer: {details}")
        return StoreError(f"etcd: {error.code().name}: {details}")


def _channel(endpoint: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    target = endpoint.removeprefix("https://").removeprefix("http://")
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=_CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(target, credentials, options=_CHANNEL_OPTIONS)


class EtcdStore:
    """Implements `dray.store.interface.Store`; made by `connect`."""

    shared = True

    def __init__(self, endpoints: Endpoints, *, prefix: str, fence_revision: int, policy: CompactionPolicy) -> None:
        self._endpoints = endpoints
        self._prefix = prefix.encode()
        self._guards = Guards(self._prefix)
        history = EventHistory(fence_revision, events_max=RECENT_EVENTS_MAX, bytes_max=RECENT_BYTES_MAX)
        self._hub = WatchHub(fence_revision, history)
        self._schedule = CompactionSchedule(policy)
        # The revision that this store has compacted to; other servers may have compacted more.
        self._compacted = 0
        self._closed = False
        self._fed = asyncio.Event()
        # Why the watch of etcd was interrupted; None while it runs.
        self._feed_failure: str | None = None
        self._tasks = ChildTasks("etcd store")
        self._tasks.spawn(self._feed(), "etcd watch")

    @classmethod
    async def connect(
        cls,
        endpoints: Sequence[str],
        *,
        prefix: str = "",
        tls: TLSFiles | None = None,
        policy: CompactionPolicy | None = None,
    ) -> EtcdStore:
        """Connect and check that etcd responds; all keys go under `prefix`, such as "/dray"."""
        reached = Endpoints(endpoints, tls.credentials() if tls else None)
        try:
            await reached.status()
            await Guards(prefix.encode()).create_floor(reached.call)
            fence_revision = await _write_fence(reached, prefix.encode())
        except BaseException:
            await reached.close()
            raise
        store = cls(reached, prefix=prefix, fence_revision=fence_revision, policy=policy or CompactionPolicy())
        try:
            # The fence is the first event of the feed; from then on compactions cannot overtake it.
            await asyncio.wait_for(store._fed.wait(), REQUEST_SECONDS)
        except TimeoutError as error:
            await store.close()
            raise StoreUnavailableError("etcd does not answer a watch") from error
        return store

    def with_asynchronous_commit(self) -> None:
        """Return None: a write is ordered by etcd, and visible when it is committed."""

    async def revision(self) -> int:
        """Return the newest committed revision of this etcd."""
        request = rpc_pb2.RangeRequest(key=_fence_key(self._prefix), count_only=True)
        return int((await self._call("Range", request)).header.revision)

    async def compacted_revision(self) -> int:
        """Return the oldest revision that can be listed or watched from; 0 at first."""
        # The fence is newer than any compaction: a watch of it from the beginning either yields that event or is
        # refused with the compacted revision.
        self._check_open()
        create = rpc_pb2.WatchCreateRequest(key=_fence_key(self._prefix), start_revision=1)
        try:
            async with asyncio.timeout(REQUEST_SECONDS), aclosing(self._endpoints.watch(create)) as responses:
                async for response in responses:
                    if response.events:
                        break
        except _CompactedError as error:
            return error.compacted
        except TimeoutError as error:
            raise StoreUnavailableError("etcd does not answer a watch") from error
        return 0

    async def get(self, key: str) -> Entry | None:
        """Return the newest entry of the key, or None."""
        response = await self._call("Range", rpc_pb2.RangeRequest(key=self._to_etcd(key)))
        return self._entry(response.kvs[0]) if response.kvs else None

    async def create(self, key: str, value: bytes) -> Entry:
        """Write a key that must not exist."""
        put = rpc_pb2.RequestOp(request_put=rpc_pb2.PutRequest(key=self._to_etcd(key), value=value))
        response = await self._guarded(key, 0, [put])
        if not response.succeeded:
            raise KeyExistsError(key)
        revision = int(response.header.revision)
        return Entry(key, value, revision, revision)

    async def update(
        self, key: str, value: bytes, *, expected_revision: int, guards: Mapping[str, int] = NO_GUARDS
    ) -> Entry:
        """Replace the value if the key is still at `expected_revision` and no guard was written since its revision."""
        name = self._to_etcd(key)
        put = rpc_pb2.RequestOp(request_put=rpc_pb2.PutRequest(key=name, value=value))
        # Reading the key inside the transaction returns its create revision, without its value.
        read = rpc_pb2.RequestOp(request_range=rpc_pb2.RangeRequest(key=name, keys_only=True))
        response = await self._guarded(key, expected_revision, [put, read], guards)
        self._check_guard(response, key, expected_revision, guards)
        written = response.responses[1].response_range.kvs[0]
        return Entry(key, value, written.mod_revision, written.create_revision)

    async def delete(self, key: str, *, expected_revision: int) -> Entry:
        """Remove the key if it is still at `expected_revision`."""
        name = self._to_etcd(key)
        delete = rpc_pb2.RequestOp(request_delete_range=rpc_pb2.DeleteRangeRequest(key=name, prev_kv=True))
        response = await self._guarded(key, expected_revision, [delete])
        self._check_guard(response, key, expected_revision)
        previous = response.responses[0].response_delete_range.prev_kvs[0]
        return Entry(key, previous.value, response.header.revision, previous.create_revision)

    async def list_page(self, prefix: str, *, limit: int = 0, start_after: str = "", revision: int = 0) -> Page:
        """Return entries under the prefix in key order."""
        start, end = self._range(prefix, start_after)
        entries: list[Entry] = []
        while True:
            wanted = min(limit - len(entries), LIST_KEYS_MAX) if limit else LIST_KEYS_MAX
            request = rpc_pb2.RangeRequest(key=start, range_end=end, limit=wanted, revision=revision)
            response = await self._read_at(request)
            entries.extend(map(self._entry, response.kvs))
            revision = revision or response.header.revision
            if not response.more or len(entries) == limit:
                return Page(tuple(entries), revision, response.count - len(response.kvs))
            start = response.kvs[-1].key + b"\0"

    async def count(self, prefix: str) -> int:
        """Return the number of keys that begin with the prefix."""
        start, end = self._range(prefix, "")
        request = rpc_pb2.RangeRequest(key=start, range_end=end, count_only=True)
        return int((await self._call("Range", request)).count)

    async def watch(self, prefix: str, *, after_revision: int) -> BufferedWatch:
        """Watch the keys under `prefix` for events with revision > `after_revision`."""
        self._check_open()
        if after_revision < self._compacted:
            raise RevisionCompactedError(self._compacted, self._hub.revision)
        if after_revision > self._hub.revision:
            # The hub may be behind etcd, but never ahead.
            current = await self.revision()
            if after_revision > current:
                raise FutureRevisionError(after_revision, current)
        watch = BufferedWatch(self._hub, prefix, after_revision=after_revision, read_past=self._read_past)
        await watch.prepare()
        return watch

    async def compact(self, revision: int) -> None:
        """Remove the history before `revision`, for all users of this etcd."""
        try:
            if revision > self._compacted:
                await self._call("Compact", rpc_pb2.CompactionRequest(revision=revision))
        except _CompactedError:
            # Already compacted as far, perhaps by another server.
            return
        except _FutureError as error:
            raise FutureRevisionError(revision, await self.revision()) from error
        self._compacted = max(self._compacted, revision)

    async def maintain(self, now_seconds: float) -> None:
        """Compact as the policy demands, and delete the guards of the compacted time."""
        revision = await self.revision()
        due = self._schedule.due(now_seconds, revision=revision, compacted=self._compacted)
        if due:
            await self.compact(due)
            await self._guards.collect(self._call, due)

    async def check_health(self, timeout_seconds: float) -> None:
        """Read a key, as the leader of a majority of the members confirms."""
        self._check_open()
        request = rpc_pb2.RangeRequest(key=_fence_key(self._prefix), count_only=True)
        await self._endpoints.read_within(request, timeout_seconds)

    async def check_ready(self, timeout_seconds: float) -> None:
        """Raise if etcd does not answer, has raised an alarm, or if its watch is interrupted."""
        await self.check_health(timeout_seconds / 2)
        status = await self._endpoints.status(timeout_seconds / 2)
        if alarms := [str(error) for error in status.errors if "alarm" in error.lower()]:
            raise StoreUnavailableError(f"etcd reports {', '.join(alarms)}")
        if self._feed_failure is not None:
            raise StoreUnavailableError(f"the watch of etcd is interrupted: {self._feed_failure}")

    async def supervise(self) -> NoReturn:
        """Raise the failure of a task of the store, which is a bug. To be spawned in the supervisor's group."""
        await self._tasks.supervise()

    async def close(self) -> None:
        """End all watches and connections; calls in progress fail as unavailable."""
        if self._closed:
            return
        self._closed = True
        await self._tasks.aclose()
        self._hub.close()
        await self._endpoints.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailableError("the store is closed")

    async def _call(self, method: str, request: object) -> Any:
        self._check_open()
        return await self._endpoints.call(method, request)

    async def _guarded(
        self, key: str, expected_revision: int, operations: list[Any], guards: Mapping[str, int] = NO_GUARDS
    ) -> Any:
        """Write if the key has the expected revision (0: it does not exist) and the guards allow it, else read them."""
        name = self._to_etcd(key)
        unchanged = rpc_pb2.Compare(
            key=name, target=rpc_pb2.Compare.MOD, result=rpc_pb2.Compare.EQUAL, mod_revision=expected_revision
        )
        read = rpc_pb2.RequestOp(request_range=rpc_pb2.RangeRequest(key=name))
        request = rpc_pb2.TxnRequest(compare=[unchanged], success=operations, failure=[read])
        self._guards.extend(request, guards)
        try:
            return await self._call("Txn", request)
        except StoreFullError as full:
            await self._check_not_applied(name, expected_revision, full)
            raise

    async def _check_not_applied(self, name: bytes, expected_revision: int, full: StoreFullError) -> None:
        """Raise if a write may have been applied although etcd reports that it has no space.

        It checks its quota before it accepts a write, and again when it applies it. The second check does not prevent
        the write (etcd's server/etcdserver/apply/quota.go), and both give the same answer.
        """
        found = (await self._call("Range", rpc_pb2.RangeRequest(key=name, keys_only=True))).kvs
        if (found[0].mod_revision if found else 0) != expected_revision:
            raise StoreUnavailableError(f"{full}; the write may have been applied") from full

    def _check_guard(
        self, response: Any, key: str, expected_revision: int, guards: Mapping[str, int] = NO_GUARDS
    ) -> None:
        if response.succeeded:
            return
        found, *others = (item.response_range.kvs for item in response.responses)
        if not found:
            raise KeyNotFoundError(key)
        if found[0].mod_revision != expected_revision:
            raise RevisionConflictError(self._entry(found[0]))
        raise GuardConflictError(self._guards.written_since(guards, others))

    async def _read_at(self, request: Any) -> Any:
        try:
            return await self._call("Range", request)
        except _CompactedError as error:
            raise RevisionCompactedError(await self.compacted_revision(), await self.revision()) from error
        except _FutureError as error:
            raise FutureRevisionError(request.revision, await self.revision()) from error

    async def _read_past(self, prefix: str, after_revision: int) -> tuple[tuple[Event, ...], int]:
        """Read one response of an etcd watch over all keys; there is always an event up to the hub's floor."""
        create = self._watch_all(after_revision)
        try:
            async with asyncio.timeout(REQUEST_SECONDS), aclosing(self._endpoints.watch(create)) as responses:
                async for response in responses:
                    last = int(response.events[-1].kv.mod_revision) if response.events else 0
                    if last > after_revision:
                        events = self._events(response, after_revision)
                        return tuple(event for event in events if covers(prefix, event.entry.key)), last
        except _CompactedError as error:
            compacted = error.compacted or await self.compacted_revision()
            raise RevisionCompactedError(compacted, self._hub.revision) from error
        except TimeoutError as error:
            raise StoreUnavailableError("etcd does not answer a watch") from error
        raise StoreUnavailableError("etcd ended a watch")

    async def _feed(self) -> None:
        """Publish the events of an etcd watch in the hub until cancelled."""
        delay = RETRY_SECONDS_MIN
        while True:
            seen = self._hub.revision
            try:
                await self._feed_from(seen)
            except _CompactedError as error:
                self._feed_failure = str(error)
                await self._start_over(error)
            except StoreError as error:
                self._feed_failure = str(error)
                _log.warning("the watch of etcd was interrupted at revision %d: %s", self._hub.revision, error)
            except Exception as error:  # noqa: BLE001 - watches must not stop for good
                self._feed_failure = str(error)
                _log.exception("the watch of etcd was interrupted at revision %d", self._hub.revision)
            # The delay grows with each attempt that yielded no event.
            delay = RETRY_SECONDS_MIN if self._hub.revision > seen else min(2 * delay, RETRY_SECONDS_MAX)
            await asyncio.sleep(delay)

    async def _feed_from(self, revision: int) -> None:
        async with aclosing(self._endpoints.watch(self._watch_all(revision))) as responses:
            async for response in responses:
                self._feed_failure = None
                if response.created:
                    # Its revision may be ahead of events that follow.
                    continue
                # While a watch catches up, the header is ahead of the events. Without events it is a progress
                # notification of a watch that has caught up.
                seen = response.events[-1].kv.mod_revision if response.events else response.header.revision
                self._hub.publish(self._events(response, revision), seen)
                self._fed.set()

    async def _start_over(self, error: _CompactedError) -> None:
        """Restart after events were compacted before they were read: every watch has a gap and must end."""
        try:
            fence_revision = await _write_fence(self._endpoints, self._prefix)
        except StoreError as failure:
            _log.warning("etcd could not be reached: %s", failure)
            return
        self._hub.history.trim(fence_revision)
        self._hub.publish((), fence_revision)
        self._hub.end_all(RevisionCompactedError(error.compacted, fence_revision))

    def _watch_all(self, after_revision: int) -> Any:
        return rpc_pb2.WatchCreateRequest(
            key=self._prefix or b"\0",
            range_end=_range_end(self._prefix),
            # Not the next revision: etcd 3.5 lets a watch start at the compacted revision, where it may silently
            # miss a deletion. The last known event is requested again and dropped.
            start_revision=max(after_revision, 1),
            progress_notify=True,
            prev_kv=True,
        )

    def _events(self, response: Any, after_revision: int) -> list[Event]:
        root = self._prefix + b"/"
        return [
            self._event(event)
            for event in response.events
            if event.kv.mod_revision > after_revision and event.kv.key.startswith(root)
        ]

    def _event(self, event: Any) -> Event:
        previous = self._entry(event.prev_kv) if event.HasField("prev_kv") else None
        if event.type == mvcc_pb2.Event.PUT:
            if previous is None and event.kv.version > 1:
                raise _CompactedError(0)
            return Event(EventType.PUT, self._entry(event.kv), previous)
        if previous is None:
            raise _CompactedError(0)
        gone = Entry(previous.key, previous.value, event.kv.mod_revision, previous.create_revision)
        return Event(EventType.DELETE, gone, previous)

    def _entry(self, pair: Any) -> Entry:
        key = pair.key[len(self._prefix) :].decode()
        return Entry(key, pair.value, pair.mod_revision, pair.create_revision)

    def _to_etcd(self, key: str) -> bytes:
        if not key.startswith("/"):
            raise ValueError(f'key {key!r} does not begin with "/"')
        return self._prefix + key.encode()

    def _range(self, prefix: str, start_after: str) -> tuple[bytes, bytes]:
        first = self._to_etcd(prefix or "/")
        start = self._prefix + start_after.encode() + b"\0" if start_after >= prefix and start_after else first
        return start, _range_end(first)


def _fence_key(prefix: bytes) -> bytes:
    # No "/" after the prefix, so it is none of the store's keys.
    return prefix + b"!fence"


async def _write_fence(endpoints: Endpoints, prefix: bytes) -> int:
    response = await endpoints.call("Put", rpc_pb2.PutRequest(key=_fence_key(prefix)))
    return int(response.header.revision)


def _range_end(prefix: bytes) -> bytes:
    """Return the range end of all keys that begin with the prefix, as etcd defines it."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else b"\0"
