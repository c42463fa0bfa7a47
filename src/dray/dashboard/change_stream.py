"""The objects that the page shows, as one stream of JSON lines: browsers allow too few connections for many watches.

The stream ends with an ERROR line if watching fails; the page shows the message and reconnects.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, Final

import orjson

from dray.api.document import Document
from dray.api.errors import APIError
from dray.client.interface import Client, ListOptions, Resource
from dray.client.shared_informers import SharedInformerFactory
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.tasks import ChildTasks, TaskGroup
from dray.sim.cluster_reader import best_resources
from dray.sim.snapshot import in_hub_version

_log = logging.getLogger(__name__)

KINDS: Final = (
    "Namespace",
    "Node",
    "DeviceClass",
    "DeviceTaintRule",
    "ResourceSlice",
    "ResourceClaim",
    "Pod",
    "ResourceQuota",
    "Event",
)
# Lines that may wait for a slow reader; past it the stream ends and the page starts over.
BUFFERED_LINES_MAX: Final = 200_000
HEARTBEAT_SECONDS: Final = 15.0
# Lines are sent in chunks of about this size.
CHUNK_BYTES: Final = 256 * 1024
# Fields that the page does not use, which make up most of the bytes.
_NODE_STATUS_DROPPED: Final = ("images", "volumesInUse", "volumesAttached", "daemonEndpoints")
_METADATA_DROPPED: Final = ("managedFields", "selfLink")


async def stream_changes(client: Client, clock: Clock) -> AsyncGenerator[bytes, None]:
    """Yield all objects, then all changes, until the reader leaves or watching fails."""
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
    async with TaskGroup("dashboard informers") as group:
        group.spawn(informers.run(), "informers")
        for kind in KINDS:
            resource = served.get(kind)
            problem = "not served" if resource is None else await _list_problem(client, resource)
            if resource is None or problem:
                buffer.add(unavailable_line(kind, problem))
                continue
            group.spawn(_watch_kind(informers, kind, resource, buffer), kind)
        await group.wait()


async def _list_problem(client: Client, resource: Resource[Document]) -> str:
    """Return why the user cannot list the kind; an informer would retry forever."""
    try:
        await client.list(resource, options=ListOptions(limit=1))
    except APIError as error:
        return str(error)
    return ""


async def _watch_kind(
    informers: SharedInformerFactory, kind: str, resource: Resource[Document], buffer: LineBuffer
) -> None:
    api_version = resource.group_version.api_version

    def on_change(old: Any, new: Any) -> None:
        document = old if new is None else new
        buffer.add(change_line(kind, api_version, document, deleted=new is None))

    informer = informers.informer(resource)
    await informer.wait_for_sync()
    informer.add_handler(on_change)
    buffer.add(synced_line(kind))


# --- Lines. ---


def change_line(kind: str, api_version: str, document: Document, *, deleted: bool) -> bytes:
    """Return the current state of an object, or its last state before it was deleted."""
    reduced = _reduced(kind, in_hub_version({"apiVersion": api_version, "kind": kind, **document}))
    return _line({"type": "DELETED" if deleted else "APPLIED", "kind": kind, "object": reduced})


def synced_line(kind: str) -> bytes:
    """Mark that all existing objects of the kind have been sent."""
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


def _reduced(kind: str, document: Document) -> Document:
    reduced = {**document, "metadata": _without(document["metadata"], _METADATA_DROPPED)}
    if kind == "Node" and reduced.get("status"):
        reduced["status"] = _without(reduced["status"], _NODE_STATUS_DROPPED)
    return reduced


def _without(value: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: item for name, item in value.items() if name not in names}
