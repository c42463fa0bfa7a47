"""An etcd of three members in the event loop, behind the gRPC channels of the store.

It has the semantics that the store uses: revisions of whole transactions, compaction, watches with previous values and
progress notifications. Committed writes survive everything, as with Raft. Between client and member, and between
members, everything goes wrong that can: see `FAULTS`. Reads and writes see the newest commit; watches see what their
member has applied.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import grpc
import grpc.aio

from dray.rpc.pb.etcd import mvcc_pb2, rpc_pb2
from dray.store import etcd as etcd_module
from tests.simulation.faults import Faults

MEMBERS = ("one", "two", "three")
# Rates of what can go wrong, per call or per watch response.
FAULTS = {
    # The request does not arrive.
    "request_lost": 0.03,
    # It is executed, but the response is lost.
    "answer_lost": 0.04,
    # The client gets an error, and it is executed later.
    "late_write": 0.03,
    # No member answers until there is a new leader.
    "leader_lost": 0.006,
    # A member goes away for a while with all its connections.
    "member_down": 0.006,
    # A member hears nothing from the others: it applies nothing, and its clients get no answers.
    "member_apart": 0.006,
    "watch_broken": 0.02,
    "watch_slow": 0.05,
}
LATE_SECONDS_MAX = 1.5
DOWN_SECONDS_MAX = 3.0
# How long after a lost leader a member ends the watches that require one.
ELECTION_SECONDS = 1.0
PROGRESS_SECONDS = 2.0
WATCH_EVENTS_MAX = 20
IDLE_SECONDS_MAX = 0.4


def _error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details, debug_error_string=None
    )


def _unavailable(details: str) -> grpc.aio.AioRpcError:
    return _error(grpc.StatusCode.UNAVAILABLE, f"etcdserver: {details}")


@dataclass(slots=True)
class _Revision:
    """The changes of one transaction: the pair as written, or None with the key for a deletion."""

    number: int
    changes: list[tuple[bytes, Any]]


class KeyValues:
    """What all members agree on: the revisions, and the newest pair of each key."""

    def __init__(self) -> None:
        self.revision = 1
        self.compacted = 0
        # All of them for ever; what compactions have left follows from `compactions`.
        self.log: list[_Revision] = []
        # The newest revision at each compaction, and the one that it went to.
        self.compactions: list[tuple[int, int]] = []
        self._newest: dict[bytes, Any] = {}

    def header(self) -> Any:
        return rpc_pb2.ResponseHeader(revision=self.revision)

    def range(self, request: Any) -> Any:
        if request.revision > self.revision:
            raise _error(grpc.StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision")
        if request.revision and request.revision < self.compacted:
            raise _error(grpc.StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted")
        state = self._newest if request.revision in (0, self.revision) else self.state_at(request.revision)
        keys = sorted(key for key in state if _covers(request.key, request.range_end, key))
        response = rpc_pb2.RangeResponse(header=self.header(), count=len(keys))
        if request.count_only:
            return response
        cut = keys[: request.limit] if request.limit else keys
        response.more = len(cut) < len(keys)
        for key in cut:
            pair = response.kvs.add()
            pair.CopyFrom(state[key])
            if request.keys_only:
                pair.ClearField("value")
        return response

    def put(self, request: Any) -> Any:
        self._commit([(request.key, self._pair(request, self.revision + 1))])
        return rpc_pb2.PutResponse(header=self.header())

    def transact(self, request: Any) -> Any:
        succeeded = all(map(self._holds, request.compare))
        operations = request.success if succeeded else request.failure
        changes: list[tuple[bytes, Any]] = []
        previous: dict[bytes, Any] = {}
        for operation in operations:
            if operation.HasField("request_put"):
                put = operation.request_put
                changes.append((put.key, self._pair(put, self.revision + 1)))
            elif operation.HasField("request_delete_range"):
                key = operation.request_delete_range.key
                if key in self._newest:
                    previous[key] = self._newest[key]
                    changes.append((key, None))
        if changes:
            self._commit(changes)
        response = rpc_pb2.TxnResponse(header=self.header(), succeeded=succeeded)
        for operation in operations:
            answer = response.responses.add()
            if operation.HasField("request_put"):
                answer.response_put.header.revision = self.revision
            elif operation.HasField("request_delete_range"):
                pair = previous.get(operation.request_delete_range.key)
                answer.response_delete_range.deleted = int(pair is not None)
                if pair is not None:
                    answer.response_delete_range.prev_kvs.add().CopyFrom(pair)
            else:
                answer.response_range.CopyFrom(self.range(operation.request_range))
        return response

    def compact(self, request: Any) -> Any:
        if request.revision <= self.compacted:
            raise _error(grpc.StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted")
        if request.revision > self.revision:
            raise _error(grpc.StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision")
        self.compacted = request.revision
        self.compactions.append((self.revision, request.revision))
        return rpc_pb2.CompactionResponse(header=self.header())

    def compacted_at(self, applied: int) -> int:
        """Return what a member that has applied so much has compacted to."""
        return max((target for issued, target in self.compactions if issued <= applied), default=0)

    def events(self, first: int, last: int, create: Any, *, starting: bool) -> list[tuple[int, list[Any]]]:
        """Return the events of a watch by revision, as a member that has applied `last` has them."""
        compacted = self.compacted_at(last)
        # Superseded pairs and deletions up to the compacted revision are gone. Before etcd 3.5.16 that includes a
        # deletion at the revision itself; here it is gone for watches that start there.
        gone_until = compacted if starting else compacted - 1
        kept = {(key, pair.mod_revision) for key, pair in self.state_at(compacted).items()}
        found = []
        for revision in self.log:
            if first <= revision.number <= last:
                events = [
                    self._event(revision.number, key, pair, compacted)
                    for key, pair in revision.changes
                    if _covers(create.key, create.range_end, key)
                    and (revision.number > gone_until or (key, revision.number) in kept)
                ]
                if events:
                    found.append((revision.number, events))
        return found

    def state_at(self, number: int) -> dict[bytes, Any]:
        state: dict[bytes, Any] = {}
        for revision in self.log:
            if revision.number > number:
                break
            for key, pair in revision.changes:
                if pair is None:
                    state.pop(key, None)
                else:
                    state[key] = pair
        return state

    def _event(self, number: int, key: bytes, pair: Any, compacted: int) -> Any:
        event = mvcc_pb2.Event()
        if pair is None:
            event.type = mvcc_pb2.Event.DELETE
            event.kv.key, event.kv.mod_revision = key, number
        else:
            event.kv.CopyFrom(pair)
        # The previous pair is read at the revision before, which may be compacted.
        if number - 1 >= compacted and (previous := self.state_at(number - 1).get(key)) is not None:
            event.prev_kv.CopyFrom(previous)
        return event

    def _pair(self, put: Any, revision: int) -> Any:
        old = self._newest.get(put.key)
        return mvcc_pb2.KeyValue(
            key=put.key,
            value=put.value,
            mod_revision=revision,
            create_revision=old.create_revision if old is not None else revision,
            version=old.version + 1 if old is not None else 1,
        )

    def _commit(self, changes: list[tuple[bytes, Any]]) -> None:
        self.revision += 1
        self.log.append(_Revision(self.revision, list(changes)))
        for key, pair in changes:
            if pair is None:
                del self._newest[key]
            else:
                self._newest[key] = pair

    def _holds(self, compare: Any) -> bool:
        pair = self._newest.get(compare.key)
        actual = pair.mod_revision if pair is not None else 0
        if compare.result == rpc_pb2.Compare.EQUAL:
            return bool(actual == compare.mod_revision)
        assert compare.result == rpc_pb2.Compare.LESS
        return bool(actual < compare.mod_revision)


def _covers(start: bytes, end: bytes, key: bytes) -> bool:
    if not end:
        return key == start
    return key >= start and (end == b"\0" or key < end)


@dataclass(eq=False)
class _Member:
    """One member; it has applied the log up to a revision."""

    name: str
    applied: int = 1
    # Until when it answers nobody, and until when it hears nothing from the others.
    down_until: float = 0.0
    apart_until: float = 0.0
    # In the order in which they began, so that a run can be repeated.
    streams: dict[_WatchStream, None] = field(default_factory=dict)


class FakeEtcd:
    """The members and their faults."""

    def __init__(self, rng: random.Random, faults: Faults) -> None:
        self.data = KeyValues()
        self._rng = rng
        self._faults = faults
        self._members = {name: _Member(name) for name in MEMBERS}
        self._leaderless_until = 0.0
        self._late: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    @contextmanager
    def reachable(self) -> Iterator[None]:
        """Stores that connect inside reach this etcd by the names of `MEMBERS`."""

        def channel(endpoint: str, _credentials: object) -> _Channel:
            return _Channel(self, self._members[endpoint])

        with mock.patch.object(etcd_module, "_channel", channel):
            yield

    async def call(self, member: _Member, method: str, request: Any) -> Any:
        """Answer a call of the KV or maintenance service, if nothing goes wrong."""
        self._faults.steps += 1
        await self._delay()
        self._break_something(member)
        await self._require(member)
        if method == "Status":
            return rpc_pb2.StatusResponse(header=self.data.header())
        perform: Callable[[Any], Any] = {
            "Range": self.data.range,
            "Put": self.data.put,
            "Txn": self.data.transact,
            "Compact": self.data.compact,
        }[method]
        # gRPC delivers a request at most once, so that none is done twice.
        names = ("request_lost", "answer_lost", *(("late_write",) if method == "Txn" else ()))
        fault = self._faults.choose(names, self._rng)
        if fault == "request_lost":
            raise _unavailable("request timed out")
        if fault == "late_write":
            self._perform_late(perform, request)
            raise _unavailable("request timed out, possibly due to previous leader failure")
        response = perform(request)
        await self._delay()
        if fault == "answer_lost" or self._is_down(member):
            raise _unavailable("connection error")
        return response

    async def _require(self, member: _Member) -> None:
        """Raise unless the member is there and can reach a leader."""
        if self._is_down(member):
            raise _unavailable("connection refused")
        if self._is_apart(member):
            await asyncio.sleep(self._rng.uniform(0.1, 1.0))
            if self._is_apart(member):
                raise _unavailable("no leader")
        await asyncio.sleep(max(self._leaderless_until - self._loop.time(), 0.0))

    def member(self, name: str) -> _Member:
        return self._members[name]

    def has_leader(self, member: _Member) -> bool:
        now = self._loop.time()
        return max(member.apart_until, self._leaderless_until) <= now

    def catch_up(self, member: _Member) -> None:
        """Let a member apply what it has heard of."""
        if not self._is_apart(member) and self._rng.random() < 0.7:
            member.applied = self.data.revision

    def heal(self) -> None:
        """Bring all members back."""
        self._leaderless_until = 0.0
        for member in self._members.values():
            member.down_until = member.apart_until = 0.0

    def _is_down(self, member: _Member) -> bool:
        return self._loop.time() < member.down_until

    def _is_apart(self, member: _Member) -> bool:
        return self._loop.time() < member.apart_until

    def _break_something(self, member: _Member) -> None:
        now, until = self._loop.time(), self._loop.time() + self._rng.uniform(0.2, DOWN_SECONDS_MAX)
        fault = self._faults.choose(("leader_lost", "member_down", "member_apart"), self._rng)
        if fault == "leader_lost":
            self._leaderless_until = now + self._rng.uniform(0.1, ELECTION_SECONDS)
        elif fault == "member_down":
            member.down_until = until
            for stream in tuple(member.streams):
                stream.fail(_unavailable("connection reset"))
        elif fault == "member_apart":
            member.apart_until = until

    def _perform_late(self, perform: Callable[[Any], Any], request: Any) -> None:
        async def later() -> None:
            await asyncio.sleep(self._rng.uniform(0.0, LATE_SECONDS_MAX))
            try:
                perform(request)
            except grpc.aio.AioRpcError:
                return

        task = asyncio.ensure_future(later())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def settle(self) -> None:
        """Wait for requests that are still on their way."""
        while self._late:
            await asyncio.gather(*self._late)

    async def _delay(self) -> None:
        await asyncio.sleep(self._rng.uniform(0.0, 0.004))

    async def responses(self, member: _Member, create: Any, *, require_leader: bool) -> AsyncIterator[Any]:
        """Yield the responses of a watch on a member until it breaks."""
        self._faults.steps += 1
        await self._delay()
        if self._is_down(member):
            raise _unavailable("connection refused")
        yield rpc_pb2.WatchResponse(header=rpc_pb2.ResponseHeader(revision=member.applied), created=True)
        following = create.start_revision or member.applied + 1
        found: list[tuple[int, list[Any]]]
        progress_at = self._loop.time() + PROGRESS_SECONDS
        leaderless_since: float | None = None
        idle_seconds, starting = 0.01, True
        while True:
            self.catch_up(member)
            applied = member.applied
            if following < (compacted := self.data.compacted_at(applied)):
                yield rpc_pb2.WatchResponse(canceled=True, compact_revision=compacted)
                return
            found = []
            if following <= applied:
                found = self.data.events(following, applied, create, starting=starting)
                starting = False
            for header, events in _parts(found, self._rng):
                if self._faults.happens("watch_slow", self._rng):
                    await asyncio.sleep(self._rng.uniform(0.0, 1.0))
                if self._faults.happens("watch_broken", self._rng):
                    raise _unavailable("connection reset")
                self._faults.steps += len(events)
                yield rpc_pb2.WatchResponse(header=rpc_pb2.ResponseHeader(revision=header), events=events)
                progress_at = self._loop.time() + PROGRESS_SECONDS
            following = max(following, applied + 1)
            if create.progress_notify and not found and self._loop.time() >= progress_at:
                yield rpc_pb2.WatchResponse(header=rpc_pb2.ResponseHeader(revision=applied))
                progress_at = self._loop.time() + PROGRESS_SECONDS
            leaderless_since = None if self.has_leader(member) else leaderless_since or self._loop.time()
            if require_leader and leaderless_since and self._loop.time() - leaderless_since > ELECTION_SECONDS:
                raise _unavailable("no leader")
            # A watch without events looks less and less often.
            idle_seconds = 0.01 if found else min(1.3 * idle_seconds, IDLE_SECONDS_MAX)
            await asyncio.sleep(self._rng.uniform(0.001, idle_seconds))


def _parts(found: Iterable[tuple[int, list[Any]]], rng: random.Random) -> Iterator[tuple[int, list[Any]]]:
    """Yield events in responses of whole revisions; the header is ahead of them, as of a watch that catches up."""
    found = list(found)
    while found:
        count = rng.randint(1, WATCH_EVENTS_MAX)
        part, found = found[:count], found[count:]
        yield max([part[-1][0], *(number for number, _ in found)]), [event for _, events in part for event in events]


class _WatchStream:
    """The client's end of a watch: one creation is written, and responses are read."""

    def __init__(self, etcd: FakeEtcd, member: _Member, *, require_leader: bool) -> None:
        self._etcd = etcd
        self._member = member
        self._require_leader = require_leader
        self._responses: AsyncIterator[Any] | None = None
        self._failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        member.streams[self] = None

    async def write(self, request: Any) -> None:
        self._responses = self._etcd.responses(
            self._member, request.create_request, require_leader=self._require_leader
        )

    def __aiter__(self) -> _WatchStream:
        return self

    async def __anext__(self) -> Any:
        assert self._responses is not None
        following = asyncio.ensure_future(anext(self._responses))
        try:
            await asyncio.wait({following, self._failed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not following.done():
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
        if following.cancelled():
            self._failed.result()
            raise StopAsyncIteration
        return following.result()

    def fail(self, error: Exception) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    def cancel(self) -> None:
        self._member.streams.pop(self, None)
        self._failed.cancel()
        if self._failed.done() and not self._failed.cancelled():
            self._failed.exception()


class _Channel:
    """What the generated stubs use of a `grpc.aio.Channel`."""

    def __init__(self, etcd: FakeEtcd, member: _Member) -> None:
        self._etcd = etcd
        self._member = member
        self._closed = False
        self._streams: dict[_WatchStream, None] = {}

    def unary_unary(self, method: str, **_: Any) -> Callable[..., Any]:
        name = method.rpartition("/")[2]

        async def call(request: Any, *, timeout: float) -> Any:  # noqa: ASYNC109 - as of gRPC
            if self._closed:
                raise grpc.aio.UsageError("the channel is closed")
            try:
                async with asyncio.timeout(timeout):
                    return await self._etcd.call(self._member, name, request)
            except TimeoutError:
                raise _error(grpc.StatusCode.DEADLINE_EXCEEDED, "deadline exceeded") from None

        return call

    def stream_stream(self, _method: str, **_: Any) -> Callable[..., _WatchStream]:
        def watch(*, metadata: Iterable[tuple[str, str]] = ()) -> _WatchStream:
            stream = _WatchStream(self._etcd, self._member, require_leader=("hasleader", "true") in tuple(metadata))
            self._streams[stream] = None
            return stream

        return watch

    async def close(self, _grace: float | None) -> None:
        self._closed = True
        for stream in self._streams:
            stream.fail(_error(grpc.StatusCode.CANCELLED, "Channel closed!"))
