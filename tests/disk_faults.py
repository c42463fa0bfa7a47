"""Disks that are slow or full, for stores on SQLite."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dray.store.sqlite import SQLiteStore


@contextmanager
def slow_disk(store: SQLiteStore) -> Iterator[None]:
    """Nothing is committed inside."""
    gate = threading.Event()
    store._writer.submit_task(lambda _: gate.wait())
    try:
        yield
    finally:
        gate.set()


@contextmanager
def full_disk() -> Iterator[None]:
    """No file may grow past its first pages, as when the disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
