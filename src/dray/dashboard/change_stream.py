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
# Changes within this time are one line.
COALESCE_SECONDS: Final = 0.05
# Pools and nodes that are computed before other work of the process gets its turn: about 5 ms.
REFRESHED_AT_ONCE: Final = 20
# Rows of the largest tables fit into a few chunks each.
ROWS_PER_LINE: Final = 500


async def stream_changes(client: Client, clock: Clock) -> AsyncGenerator[bytes, None]:
    """Yield all rows, then all changes, until the reader leaves or watching fails."""
    buffer = LineBuffer()
    # Not a task group: while the generator is suspended, its consumer would be cancelled in place of this body.
    tasks = ChildTasks("dashboard stream")
    tasks.spawn(_fill(buffer, client, clock), "watch")
    try:
        while chunk := await buffer.next_chunk():
            yield chunk
    finally:
        await tasks.aclose()


class LineBuffer:
    """Lines between the informers and one reader."""

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


async def _fill(buffer: LineBuffer, client: Client, clock: Clock) -> None:
    """Watch until cancelled. A failure ends the reader's stream with an error, so it never waits for a dead task."""
    try:
        await _watch_kinds(buffer, client, clock)
    except Exception as error:  # noqa: BLE001 - the stream's outer edge: every failure must reach the reader
        cause: BaseException = error
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        _log.warning("dashboard stream failed", extra=fields(error=cause))
        buffer.fail(f"watching the cluster failed: {cause}" if isinstance(cause, APIError) else "internal error")


async def _watch_kinds(buffer: LineBuffer, client: Client, clock: Clock) -> None:
    served = best_resources(await client.resources())
    informers = SharedInformerFactory(client, clock, random.SystemRandom())
    feed = _Feed(buffer)
    buffer.add(columns_line())
    async with TaskGroup("dashboard informers") as group:
        group.spawn(informers.run(), "informers")
        group.spawn(feed.run(), "feed")
        problems = await asyncio.gather(*(_list_problem(client, served.get(kind)) for kind in KINDS))
        for kind, problem in zip(KINDS, problems, strict=True):
            if problem:
                feed.unavailable(kind, problem)
            else:
                group.spawn(_watch_kind(informers, kind, served[kind], feed), kind)
        await group.wait()


async def _list_problem(client: Client, resource: Resource[Document] | None) -> str:
    """Return why the user cannot list the kind; an informer would retry forever."""
    if resource is None:
        return "not served"
    try:
        await client.list(resource, options=ListOptions(limit=1))
    except APIError as error:
        return str(error)
    return ""


async def _watch_kind(informers: SharedInformerFactory, kind: str, resource: Resource[Document], feed: _Feed) -> None:
    header = {"apiVersion": resource.group_version.api_version, "kind": resource.kind}

    def in_hub(document: Any) -> Document | None:
        return None if document is None else in_hub_version({**header, **document})

    informer = informers.informer(resource)
    await informer.wait_for_sync()
    informer.add_handler(lambda old, new: feed.apply(kind, in_hub(old), in_hub(new)))
    feed.synced(kind)


class _Feed:
    """Applies changes to the tables and passes the changed rows on, many at a time."""

    def __init__(self, buffer: LineBuffer) -> None:
        self._buffer = buffer
        self._view = ClusterView()
        self._changed = asyncio.Event()
        # Kinds that are not listed yet, and those listed since the last line.
        self._missing = set(KINDS)
        self._listed: list[str] = []

    def apply(self, kind: str, old: Document | None, new: Document | None) -> None:
        self._view.apply(kind, old, new)
        self._changed.set()

    def unavailable(self, kind: str, message: str) -> None:
        self._buffer.add(unavailable_line(kind, message))
        self._missing.discard(kind)
        self._changed.set()

    def synced(self, kind: str) -> None:
        self._missing.discard(kind)
        self._listed.append(kind)
        self._changed.set()

    async def run(self) -> None:
        """Pass changes on until cancelled."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(COALESCE_SECONDS if not self._missing else 0.0)
            self._changed.clear()
            listed, self._listed = self._listed, []
            # Devices without their classes and claims would be computed twice.
            while self._view.is_stale and not self._missing & DEVICE_KINDS:
                self._view.refresh(REFRESHED_AT_ONCE)
                self._send()
                await asyncio.sleep(0)
            self._send()
            for kind in listed:
                self._buffer.add(synced_line(kind))

    def _send(self) -> None:
        for table, (changed, removed) in self._view.changes().items():
            items = list(changed.items())
            for start in range(0, len(items), ROWS_PER_LINE):
                self._buffer.add(rows_line(table, dict(items[start : start + ROWS_PER_LINE]), ()))
            if removed:
                self._buffer.add(rows_line(table, {}, removed))


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
