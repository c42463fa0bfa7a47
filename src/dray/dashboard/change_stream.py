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

import orjson

from dray.api.document import Document
from dray.api.errors import APIError
from dray.client.interface import Client, ListOptions, Resource
from dray.client.shared_informers import SharedInformerFactory
from dray.dashboard.cluster_view import DEVICE_KINDS, KINDS, ClusterView
from dray.dashboard.rows import CARD_COLUMNS, COLUMNS, Row
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.tasks import ChildTasks, TaskGroup
from dray.sim.cluster_reader import best_resources
from dray.sim.snapshot import in_hub_version

_log = logging.getLogger(__name__)

# Lines that may wait for a slow reader; past it the stream ends and the page starts over.
BUFFERED_LINES_MAX: Final = 200_000
HEARTBEAT_SECONDS: Final = 15.0
# Lines are sent in chunks of about this size.
CHUNK_BYTES: Final = 256 * 1024
# A feed without readers is kept so long, and only if there are no more than so many: reloading takes a few seconds.
UNUSED_SECONDS_MAX: Final = 60.0
UNUSED_FEEDS_MAX: Final = 8
# Changes within this time are one line.
COALESCE_SECONDS: Final = 0.05
# What the first picture needs; the other kinds are listed after it.
FIRST_KINDS: Final = DEVICE_KINDS | {"Node"}
# Pools and nodes that are computed before other work of the process gets its turn: about 5 ms.
REFRESHED_AT_ONCE: Final = 20
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
    """Keeps the tables of one user up to date, and passes changed rows to all readers, many at a time."""

    def __init__(self, client: Client, clock: Clock, problems: Mapping[str, str]) -> None:
        self._client = client
        self._clock = clock
        self.problems = problems
        self.readers: set[LineBuffer] = set()
        # Whether watching has failed; its readers got the error, and new ones need a new feed.
        self.has_failed = False
        # When the last reader left.
        self.unused_since = 0.0
        self._view = ClusterView()
        self._changed = asyncio.Event()
        # Set when the rows of the kinds for the first picture have been sent.
        self._pictured = asyncio.Event()
        # Kinds that are not listed yet, and those listed since the last line.
        self._missing = set(KINDS) - problems.keys()
        self._listed: list[str] = []

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
        reader.add(columns_line())
        for kind, problem in self.problems.items():
            reader.add(unavailable_line(kind, problem))
        self.readers.add(reader)
        for table, known in self._view.tables.items():
            keys = list(known)
            for start in range(0, len(keys), ROWS_PER_LINE):
                rows = {key: known[key] for key in keys[start : start + ROWS_PER_LINE] if key in known}
                reader.add(rows_line(table, rows, ()))
                await asyncio.sleep(0)
        for kind in KINDS:
            if kind not in self._missing and kind not in self.problems and kind not in self._listed:
                reader.add(synced_line(kind))

    async def _watch(self) -> None:
        served = best_resources(await self._client.resources())
        informers = SharedInformerFactory(self._client, self._clock, random.SystemRandom())
        async with TaskGroup("dashboard informers") as group:
            group.spawn(informers.run(), "informers")
            group.spawn(self._follow(), "changes")
            for kind in sorted(self._missing):
                group.spawn(self._watch_kind(informers, kind, served[kind]), kind)
            await group.wait()

    async def _watch_kind(self, informers: SharedInformerFactory, kind: str, resource: Resource[Document]) -> None:
        header = {"apiVersion": resource.group_version.api_version, "kind": resource.kind}

        def in_hub(document: Any) -> Document | None:
            return None if document is None else in_hub_version({**header, **document})

        def on_change(old: Any, new: Any) -> None:
            self._view.apply(kind, in_hub(old), in_hub(new))
            self._changed.set()

        if kind not in FIRST_KINDS:
            await self._pictured.wait()
        informer = informers.informer(resource)
        await informer.wait_for_sync()
        informer.add_handler(on_change)
        self._missing.discard(kind)
        self._listed.append(kind)
        self._changed.set()

    async def _follow(self) -> None:
        # Without any of those kinds nothing would set it.
        if not self._missing & FIRST_KINDS:
            self._pictured.set()
        while True:
            await self._changed.wait()
            await asyncio.sleep(COALESCE_SECONDS if not self._missing else 0.0)
            self._changed.clear()
            listed = list(self._listed)
            # Devices without their classes and claims would be computed twice.
            while self._view.is_stale and not self._missing & DEVICE_KINDS:
                self._view.refresh(REFRESHED_AT_ONCE)
                self._send()
                await asyncio.sleep(0)
            self._send()
            for kind in listed:
                self._listed.remove(kind)
                self._broadcast(synced_line(kind))
            if not self._missing & FIRST_KINDS:
                self._pictured.set()

    def _send(self) -> None:
        for table, (changed, removed) in self._view.changes().items():
            items = list(changed.items())
            for start in range(0, len(items), ROWS_PER_LINE):
                self._broadcast(rows_line(table, dict(items[start : start + ROWS_PER_LINE]), ()))
            if removed:
                self._broadcast(rows_line(table, {}, removed))

    def _broadcast(self, line: bytes) -> None:
        for reader in self.readers:
            reader.add(line)


class SharedFeeds:
    """The feeds of a process: one for each user, kept for a while after the last reader has left.

    Reloading a page, and a second tab, get all rows at once.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._feeds: dict[str, tuple[ChangeFeed, asyncio.Task[Any]]] = {}

    async def stream(self, user: str, client: Client, tasks: ChildTasks) -> AsyncGenerator[bytes, None]:
        """Yield all rows, then all changes, until the reader leaves or watching fails."""
        reader = LineBuffer()
        feed: ChangeFeed | None = None
        sender: asyncio.Task[Any] | None = None
        try:
            # What the user may list is checked for each reader: rights may have been withdrawn since the feed began.
            feed = self._feed(user, client, await list_problems(client), tasks)
            sender = tasks.spawn(feed.send_all(reader), "dashboard rows")
        except APIError as error:
            reader.fail(f"watching the cluster failed: {error}")
        try:
            while chunk := await reader.next_chunk():
                yield chunk
        finally:
            if feed is not None and sender is not None:
                sender.cancel()
                feed.readers.discard(reader)
                feed.unused_since = self._clock.monotonic()
                tasks.spawn(self._close_unused(user, feed), "dashboard feed")

    def _feed(self, user: str, client: Client, problems: Mapping[str, str], tasks: ChildTasks) -> ChangeFeed:
        known = self._feeds.get(user)
        if known is not None:
            feed, task = known
            if feed.problems == problems and not feed.has_failed and not task.done():
                return feed
        feed = ChangeFeed(client, self._clock, problems)
        self._feeds[user] = feed, tasks.spawn(feed.run(), "dashboard watch")
        return feed

    async def _close_unused(self, user: str, feed: ChangeFeed) -> None:
        """Stop a feed that nobody has read for a while, or that another one has replaced."""
        is_current = self._feeds.get(user, (None, None))[0] is feed
        if is_current and len(self._feeds) <= UNUSED_FEEDS_MAX:
            await self._clock.sleep(UNUSED_SECONDS_MAX)
        found = self._feeds.get(user)
        if feed.readers or found is None or found[0] is not feed:
            return
        # Another reader has come and left meanwhile: the task of that one will close it.
        if len(self._feeds) <= UNUSED_FEEDS_MAX and self._clock.monotonic() - feed.unused_since < UNUSED_SECONDS_MAX:
            return
        del self._feeds[user]
        found[1].cancel()


# --- Lines. ---


def columns_line() -> bytes:
    """Return the names of the values in rows; always the first line, with which the page starts anew."""
    return _line({"type": "COLUMNS", "tables": COLUMNS, "cards": CARD_COLUMNS})


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
