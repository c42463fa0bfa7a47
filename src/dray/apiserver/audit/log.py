"""Writes audit events to a file, one JSON object in a line, with rotation by size, number and age."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Final

import msgspec
import orjson

from dray.api.document import Document
from dray.api.raw_numbers import fragment
from dray.runtime.metrics import Metrics

# Events that wait for the disk. At 2 KiB each this is some 20 MB.
QUEUE_MAX: Final = 10_000
_BATCH_MAX: Final = 400
_MEGABYTE: Final = 1024 * 1024
_FILE_MODE: Final = 0o600


class AuditLogSettings(msgspec.Struct, frozen=True):
    """Where events go; zero means no limit."""

    # "-" is the standard output.
    path: str
    age_days_max: int = 0
    backups_max: int = 0
    size_megabytes_max: int = 0
    # Whether events are dropped and counted instead of delaying requests when the disk is slow.
    drops: bool = False


class AuditLog:
    """A bounded queue of events and its writer; `run` writes until it is cancelled."""

    def __init__(self, settings: AuditLogSettings, metrics: Metrics) -> None:
        self._settings = settings
        self._queue: asyncio.Queue[Document] = asyncio.Queue(QUEUE_MAX)
        self._file: IO[bytes] | None = None
        self._size = 0
        self._events = metrics.counter("apiserver_audit_event_total", "Audit events that were generated.")
        self._errors = metrics.counter(
            "apiserver_audit_error_total", "Audit events that were not written, by plugin.", ("plugin",)
        ).labels("log")

    def open(self) -> None:
        """Open the file; raises `OSError`."""
        if self._settings.path == "-":
            self._file = sys.stdout.buffer
            return
        path = Path(self._settings.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, _FILE_MODE), "ab")
        self._size = self._file.tell()

    async def add(self, event: Document) -> None:
        """Queue an event; waits while the queue is full, unless events are dropped."""
        self._events.inc()
        if not self._settings.drops:
            await self._queue.put(event)
            return
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            self._errors.inc()

    async def flush(self) -> None:
        """Wait until all queued events are written."""
        await self._queue.join()

    async def run(self) -> None:
        """Write queued events for ever."""
        try:
            while True:
                events = [await self._queue.get()]
                while len(events) < _BATCH_MAX and not self._queue.empty():
                    events.append(self._queue.get_nowait())
                await asyncio.to_thread(self._write, events)
                for _ in events:
                    self._queue.task_done()
        finally:
            # What was answered is recorded, also when the server stops.
            left = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
            self._write(left)
            self._close()

    def _write(self, events: Sequence[Document]) -> None:
        lines = [orjson.dumps(event, default=fragment) + b"\n" for event in events]
        try:
            for line in lines:
                self._rotate(len(line))
                assert self._file is not None
                self._file.write(line)
                self._size += len(line)
            if self._file is not None:
                self._file.flush()
        except OSError:
            # A full disk must not stop the cluster; the metric says that the log has gaps.
            self._errors.inc(len(lines))

    def _rotate(self, length: int) -> None:
        limit = self._settings.size_megabytes_max * _MEGABYTE
        if not limit or not self._size or self._size + length <= limit or self._settings.path == "-":
            return
        self._close()
        path = Path(self._settings.path)
        now = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        path.rename(_free_name(path, now))
        self._remove_old(path, now)
        self.open()

    def _remove_old(self, path: Path, now: datetime) -> None:
        backups = sorted(path.parent.glob(f"{path.stem}-*{path.suffix}"), key=lambda item: item.stat().st_mtime)
        kept = backups[-self._settings.backups_max :] if self._settings.backups_max else backups
        oldest = now - timedelta(days=self._settings.age_days_max) if self._settings.age_days_max else None
        for backup in backups:
            is_old = oldest is not None and datetime.fromtimestamp(backup.stat().st_mtime, UTC) < oldest
            if backup not in kept or is_old:
                with contextlib.suppress(OSError):
                    backup.unlink()

    def _close(self) -> None:
        if self._file is not None and self._settings.path != "-":
            self._file.close()
        self._file = None
        self._size = 0


def _free_name(path: Path, now: datetime) -> Path:
    stamp = now.strftime("%Y-%m-%dT%H-%M-%S.%f")[:-3]
    found, number = path.with_name(f"{path.stem}-{stamp}{path.suffix}"), 0
    while found.exists():
        number += 1
        found = path.with_name(f"{path.stem}-{stamp}.{number}{path.suffix}")
    return found
