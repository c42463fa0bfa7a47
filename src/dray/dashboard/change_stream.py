"""The tables that the page shows and their changes, as one stream of JSON lines.

One stream, because browsers allow too few connections for many watches; rows, because objects are ten times as large.
It ends with an ERROR line if watching fails; the page shows the message and reconnects.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final

import msgspec
import orjson

from dray.api.document import Document
from dray.api.errors import APIError
from dray.api.types import Message
from dray.client.informer import Informer
from dray.client.interface import Client, ListOptions, Resource
from dray.client.shared_informers import EVERYTHING, SharedInformer
from dray.dashboard.cluster_view import (
    DEVICE_KINDS,
    KINDS,
    OUTLINE_KINDS,
    PICTURE_KINDS,
    PICTURE_TABLES,
    ClusterView,
)
from dray.dashboard.rows import CARD_COLUMNS, COLUMNS, STATE_LETTERS, Row
from dray.dashboard.summaries import DECODED, Summary, summarize
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.tasks import ChildTasks, TaskGroup
from dray.sim.cluster_reader import best_resources

_log = logging.getLogger(__name__)

# Lines that may wait for a slow reader; past it the stream ends and the page starts over.
BUFFERED_LINES_MAX: Final = 200_000
HEARTBEAT_SECONDS: Final = 15.0
# Lines are sent in chunks of about this size.
CHUNK_BYTES: Final = 256 * 1024
# A feed without readers is kept so long, and only if there are no more than so many: starting one takes seconds.
UNUSED_SECONDS_MAX: Final = 600.0
UNUSED_FEEDS_MAX: Final = 4
# The first change is sent at once, and those within this time after it together.
COALESCE_SECONDS: Final = 0.1
# A reader whose rights were withdrawn gets changes for this long; a watch would last for minutes.
RIGHTS_CHECK_SECONDS: Final = 30.0
# What the first picture needs; the other kinds are listed after it.
FIRST_KINDS: Final = DEVICE_KINDS | {"Node"}
# Devices are shown without their states if claims take longer to list: computing them twice delays the states.
OUTLINE_AFTER_SECONDS: Final = 1.5
# Changes that are applied, and pools and nodes that are computed, before other work of the process gets its turn: about
# 5 ms each.
APPLIED_AT_ONCE: Final = 200
REFRESHED_AT_ONCE: Final = 20
_DECODED_VERSION: Final = "v1"
_OTHER_TABLES: Final = tuple(table for table in COLUMNS if table not in PICTURE_TABLES)
# Rows of the largest tables fit into a few chunks each.
ROWS_PER_LINE: Final = 500


class LineBuffer:
    """Lines between a feed and one reader."""

    def __init__(self, lines_max: int = BUFFERED_LINES_MAX) -> None:
        self._lines: deque[bytes] = deque()
        self._lines_max = lines_max
        self._changed = asyncio.Event()
        self._error = ""

    def add(self, line: bytes) -> None:
        """Append a line; a buffer that is full fails."""
        if len(self._lines) >= self._lines_max:
            self.fail(f"the page is more than {self._lines_max} changes behind")
        if not self._error:
            self._lines.append(line)
            self._changed.set()

    def fail(self, message: str) -> None:
        """Drop what is buffered and end the stream with an error; the first error counts."""
        if not self._error:
            self._error = message
            self._lines.clear()
            self._lines.append(error_line(message))
            self._changed.set()

    async def next_chunk(self) -> bytes:
        """Wait for lines and return as many as fit into a chunk; a heartbeat after a while, nothing at the end."""
        if not self._lines and not self._error:
            self._changed.clear()
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                return heartbeat_line()
        parts: list[bytes] = []
        size = 0
        while self._lines and size < CHUNK_BYTES:
            parts.append(self._lines.popleft())
            size += len(parts[-1])
        return b"".join(parts)


async def list_problems(client: Client) -> Mapping[str, str]:
    """Return why the user cannot list kinds, by kind; an informer would retry forever."""
    served = best_resources(await client.resources())
    problems = await asyncio.gather(*(_list_problem(client, served.get(kind)) for kind in KINDS))
    return {kind: problem for kind, problem in zip(KINDS, problems, strict=True) if problem}


async def _list_problem(client: Client, resource: Resource[Document] | None) -> str:
    if resource is None:
        return "not served"
    try:
        await client.list(resource, options=ListOptions(limit=1))
    except APIError as error:
        return str(error)
    return ""


class ChangeFeed:
    """Keeps the tables of some kinds up to date, and passes changed rows to all readers, many at a time."""

    def __init__(self, client: Client, clock: Clock, kinds: frozenset[str]) -> None:
        self._client = client
        self._clock = clock
        self.kinds = kinds
        self.readers: set[LineBuffer] = set()
        # Whether watching has failed; its readers got the error, and new ones need a new feed.
        self.has_failed = False
        # When the last reader left.
        self.unused_since = clock.monotonic()
        self._view = ClusterView(are_states_known=False)
        self._changed = asyncio.Event()
        # Whether devices are shown before their states are known.
        self._is_outlined = False
        # Set when all nodes and devices have been sent with their states.
        self._pictured = asyncio.Event()
        # Changes that are not applied yet, by kind and object: at most one for each object.
        self._pending: dict[tuple[str, str], tuple[Summary | None, Summary | None]] = {}
        # Kinds that are not listed yet, and those whose rows have been sent.
        self._missing = set(kinds)
        self._sent: list[str] = []

    async def run(self) -> None:
        """Watch until cancelled. A failure ends the streams of all readers with an error."""
        try:
            await self._watch()
        except Exception as error:  # noqa: BLE001 - the stream's outer edge: every failure must reach the reader
            cause: BaseException = error
            while isinstance(cause, BaseExceptionGroup):
                cause = cause.exceptions[0]
            _log.warning("dashboard stream failed", extra=fields(error=cause))
            self.has_failed = True
            message = f"watching the cluster failed: {cause}" if isinstance(cause, APIError) else "internal error"
            for reader in self.readers:
                reader.fail(message)

    async def send_all(self, reader: LineBuffer) -> None:
        """Send all rows to a new reader, which gets changes from now on; a row may come twice, the newer one last."""
        self.readers.add(reader)
        sent = list(self._sent)
        await self._send_tables(reader, PICTURE_TABLES)
        for kind in sent:
            if kind in PICTURE_KINDS:
                reader.add(synced_line(kind))
        await self._send_tables(reader, _OTHER_TABLES)
        for kind in sent:
            if kind not in PICTURE_KINDS:
                reader.add(synced_line(kind))

    async def _send_tables(self, reader: LineBuffer, tables: Sequence[str]) -> None:
        for table in tables:
            known = self._view.tables[table]
            keys = list(known)
            for start in range(0, len(keys), ROWS_PER_LINE):
                rows = {key: known[key] for key in keys[start : start + ROWS_PER_LINE] if key in known}
                reader.add(rows_line(table, rows, ()))
                await asyncio.sleep(0)

    async def _watch(self) -> None:
        served = best_resources(await self._client.resources())
        async with TaskGroup("dashboard informers") as group:
            group.spawn(self._follow(), "changes")
            group.spawn(self._outline(), "outline")
            for kind in sorted(self.kinds):
                group.spawn(self._watch_kind(kind, served[kind], group), kind)
            await group.wait()

    async def _watch_kind(self, kind: str, resource: Resource[Document], group: TaskGroup) -> None:
        header = {"apiVersion": resource.group_version.api_version, "kind": resource.kind}

        def summary(obj: Document | Message) -> Summary:
            return summarize(kind, header | obj if isinstance(obj, dict) else obj)

        def on_change(old: Summary | None, new: Summary | None) -> None:
            key = kind, (new or old).metadata.key  # type: ignore[union-attr]
            applied = self._pending[key][0] if key in self._pending else old
            if applied is None and new is None:
                del self._pending[key]
            else:
                self._pending[key] = applied, new
            self._changed.set()

        if kind not in FIRST_KINDS:
            await self._pictured.wait()
        # Spreads the load of retries, and guards nothing.
        rng = random.Random(random.SystemRandom().random())  # noqa: S311
        cached: Informer[Summary] = Informer(EVERYTHING, rng)
        informer = SharedInformer(self._client, _decoded(kind, resource), cached, self._clock, transform=summary)
        informer.add_handler(on_change)
        group.spawn(informer.run(), f"informer {kind}")
        await informer.wait_for_sync()
        self._missing.discard(kind)
        self._changed.set()

    async def _outline(self) -> None:
        await self._clock.sleep(OUTLINE_AFTER_SECONDS)
        self._is_outlined = True
        self._changed.set()

    async def _follow(self) -> None:
        while True:
            # Only these are applied completely in this pass.
            listed = self.kinds - self._missing
            await self._apply_pending()
            # Devices without their classes would be computed twice.
            needed = self.kinds & (OUTLINE_KINDS if self._is_outlined else DEVICE_KINDS)
            if self.kinds & DEVICE_KINDS <= listed:
                self._view.set_states_known()
            while self._view.is_picture_stale and needed <= listed:
                await self._refresh_some()
                self._send(PICTURE_TABLES)
            self._send(PICTURE_TABLES)
            if needed <= listed:
                self._announce(listed & PICTURE_KINDS)
            if self.kinds & FIRST_KINDS <= listed:
                while self._view.is_stale:
                    self._view.refresh(APPLIED_AT_ONCE)
                    await asyncio.sleep(0)
                self._send(_OTHER_TABLES)
                self._announce(listed)
                self._pictured.set()
            if not self._missing:
                await asyncio.sleep(COALESCE_SECONDS)
            await self._changed.wait()
            self._changed.clear()

    async def _refresh_some(self) -> None:
        """Compute at most as many pools and nodes as one line can have; other work of the process gets its turn."""
        for _ in range(ROWS_PER_LINE // REFRESHED_AT_ONCE):
            if not self._view.is_picture_stale:
                return
            self._view.refresh(REFRESHED_AT_ONCE)
            await asyncio.sleep(0)

    async def _apply_pending(self) -> None:
        # Those that come meanwhile get their turn in the next pass.
        pending, self._pending = self._pending, {}
        for number, ((kind, _), (old, new)) in enumerate(pending.items()):
            self._view.apply(kind, old, new)
            if number % APPLIED_AT_ONCE == APPLIED_AT_ONCE - 1:
                await asyncio.sleep(0)

    def _announce(self, listed: frozenset[str]) -> None:
        for kind in KINDS:
            if kind in listed and kind not in self._sent:
                self._sent.append(kind)
                self._broadcast(synced_line(kind))

    def _send(self, tables: Sequence[str]) -> None:
        for table, (changed, removed) in self._view.changes(tables).items():
            items = list(changed.items())
            for start in range(0, len(items), ROWS_PER_LINE):
                self._broadcast(rows_line(table, dict(items[start : start + ROWS_PER_LINE]), ()))
            if removed:
                self._broadcast(rows_line(table, {}, removed))

    def _broadcast(self, line: bytes) -> None:
        for reader in self.readers:
            reader.add(line)


class SharedFeeds:
    """The feeds of a process: one for all users that may list the same kinds, kept for a while after the last reader.

    A user may list a kind in the whole cluster or does not get its rows. This is checked with the user's own client for
    every reader, and again and again while it reads; the watches themselves are those of the process.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._feeds: dict[frozenset[str], tuple[ChangeFeed, asyncio.Task[Any]]] = {}

    async def stream(self, user: Client, watcher: Client, tasks: ChildTasks) -> AsyncGenerator[bytes, None]:
        """Yield all rows that the user may read, then all changes, until the reader leaves or watching fails.

        The watcher is the client of the process, which may list at least what the user may.
        """
        reader = LineBuffer()
        feed: ChangeFeed | None = None
        children: list[asyncio.Task[Any]] = []
        try:
            problems = await list_problems(user)
            reader.add(columns_line())
            for kind, problem in problems.items():
                reader.add(unavailable_line(kind, problem))
            feed = self._feed(readable(problems), watcher, tasks)
            children.append(tasks.spawn(feed.send_all(reader), "dashboard rows"))
            children.append(tasks.spawn(self._check_rights(user, feed, reader), "dashboard rights"))
        except APIError as error:
            reader.fail(f"watching the cluster failed: {error}")
        try:
            while chunk := await reader.next_chunk():
                yield chunk
        finally:
            for child in children:
                child.cancel()
            if feed is not None:
                feed.readers.discard(reader)
                feed.unused_since = self._clock.monotonic()
                tasks.spawn(self._close_unused(feed), "dashboard feed")

    async def prepare(self, client: Client, tasks: ChildTasks) -> None:
        """Start the feed of a client before its first reader comes; a failure is reported to that reader."""
        try:
            self._feed(readable(await list_problems(client)), client, tasks)
        except APIError as error:
            _log.info("dashboard not prepared", extra=fields(error=error))

    async def _check_rights(self, user: Client, feed: ChangeFeed, reader: LineBuffer) -> None:
        while True:
            await self._clock.sleep(RIGHTS_CHECK_SECONDS)
            try:
                problems = await list_problems(user)
            except APIError as error:
                reader.fail(f"checking your permissions failed: {error}")
                return
            if readable(problems) != feed.kinds:
                reader.fail("what you may read has changed")
                return

    def _feed(self, kinds: frozenset[str], watcher: Client, tasks: ChildTasks) -> ChangeFeed:
        known = self._feeds.get(kinds)
        if known is not None:
            feed, task = known
            if not feed.has_failed and not task.done():
                return feed
        feed = ChangeFeed(watcher, self._clock, kinds)
        self._feeds[kinds] = feed, tasks.spawn(feed.run(), "dashboard watch")
        return feed

    async def _close_unused(self, feed: ChangeFeed) -> None:
        """Stop a feed that nobody has read for a while."""
        if len(self._feeds) <= UNUSED_FEEDS_MAX:
            await self._clock.sleep(UNUSED_SECONDS_MAX)
        found = self._feeds.get(feed.kinds)
        if feed.readers or found is None or found[0] is not feed:
            return
        # Another reader has come and left meanwhile: the task of that one will close it.
        if len(self._feeds) <= UNUSED_FEEDS_MAX and self._clock.monotonic() - feed.unused_since < UNUSED_SECONDS_MAX:
            return
        del self._feeds[feed.kinds]
        found[1].cancel()


def _decoded(kind: str, resource: Resource[Any]) -> Resource[Any]:
    """Return the resource with the type of its objects, if the server has the version that the type is of."""
    type_ = DECODED.get(kind)
    if type_ is None or resource.version != _DECODED_VERSION:
        return resource
    return msgspec.structs.replace(resource, type=type_)


def readable(problems: Mapping[str, str]) -> frozenset[str]:
    """Return the kinds that can be listed."""
    return frozenset(kind for kind in KINDS if kind not in problems)


# --- Lines. ---


def columns_line() -> bytes:
    """Return the names of the values in rows; always the first line, with which the page starts anew."""
    states = {letter: state for state, letter in STATE_LETTERS.items()}
    return _line({"type": "COLUMNS", "tables": COLUMNS, "cards": CARD_COLUMNS, "states": states})


def rows_line(table: str, rows: Mapping[str, Row], removed: Sequence[str]) -> bytes:
    """Return new and changed rows by key, and the keys of removed ones."""
    return _line({"type": "ROWS", "table": table, "rows": rows, "removed": removed})


def synced_line(kind: str) -> bytes:
    """Mark that the rows of all existing objects of the kind have been sent."""
    return _line({"type": "SYNCED", "kind": kind})


def unavailable_line(kind: str, message: str) -> bytes:
    """Report that the user may not list the kind, or that the server does not serve it."""
    return _line({"type": "UNAVAILABLE", "kind": kind, "message": message})


def error_line(message: str) -> bytes:
    """Report why the stream ends; always the last line."""
    return _line({"type": "ERROR", "message": message})


def heartbeat_line() -> bytes:
    """Show that the connection is alive while nothing changes."""
    return _line({"type": "HEARTBEAT"})


def _line(value: Document) -> bytes:
    return orjson.dumps(value) + b"\n"
