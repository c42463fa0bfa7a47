"""Benchmarks of the stores: durable creates, reads, watch fan-out and start-up.

`python bench/store.py` prints a table; `rows()` returns it as data.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dray.runtime.tasks import TaskGroup
from dray.store.interface import Store, Watch
from dray.store.memory import MemoryStore
from dray.store.sqlite import SQLiteStore

VALUE = os.urandom(1024)
Row = dict[str, Any]


def row(name: str, value: float, unit: str, **parameters: object) -> Row:
    """Return one row of the table."""
    return {"name": name, "value": round(value, 3), "unit": unit, "parameters": parameters}


async def create_many(store: Store, *, prefix: str, total: int, writers: int) -> float:
    """Create keys with concurrent writers and return the seconds taken."""
    numbers = iter(range(total))

    async def write() -> None:
        for number in numbers:
            await store.create(f"{prefix}object-{number:07}", VALUE)

    start = time.perf_counter()
    await asyncio.gather(*(write() for _ in range(writers)))
    return time.perf_counter() - start


async def creates(store: Store, label: str) -> list[Row]:
    """Measure the create rate by number of writers."""
    found = []
    for writers, total in ((1, 1_000), (64, 20_000), (512, 20_000)):
        seconds = await create_many(store, prefix=f"/registry/core/{writers}/ns/", total=total, writers=writers)
        found.append(row("create", total / seconds, "per second", store=label, writers=writers, value_bytes=1024))
    return found


async def reads(store: Store, label: str) -> list[Row]:
    """Measure lists of 20,000 objects, at the current and at older revisions."""
    prefix = "/registry/core/64/"
    found = []
    start = time.perf_counter()
    page = await store.list_page(prefix)
    found.append(row("list", 1000 * (time.perf_counter() - start), "ms", store=label, objects=len(page.entries)))
    entry = page.entries[0]
    for _ in range(100):
        entry = await store.update(entry.key, VALUE, expected_revision=entry.revision)
    start = time.perf_counter()
    await store.list_page(prefix, limit=500, revision=page.revision)
    elapsed = 1000 * (time.perf_counter() - start)
    found.append(row("page of 500, 100 revisions ago", elapsed, "ms", store=label, objects=len(page.entries)))
    start = time.perf_counter()
    await store.list_page(prefix, limit=500, revision=page.revision - 19_000)
    elapsed = 1000 * (time.perf_counter() - start)
    found.append(row("page of 500, 19,100 revisions ago", elapsed, "ms", store=label, objects=len(page.entries)))
    return found


async def idle_watchers(store: Store, label: str) -> list[Row]:
    """Measure creates with 10,000 watchers of other prefixes."""
    revision = await store.revision()
    watches = [await store.watch(f"/registry/core/idle/ns-{n}/", after_revision=revision) for n in range(10_000)]
    seconds = await create_many(store, prefix="/registry/core/busy/ns/", total=5_000, writers=64)
    for watch in watches:
        await watch.aclose()
    return [row("create with idle watchers", 5_000 / seconds, "per second", store=label, watchers=len(watches))]


async def fan_out(store: Store, label: str) -> list[Row]:
    """Measure the delivery of events to 100 watchers of one prefix."""
    revision = await store.revision()
    watchers, total = 100, 2_000

    async def drain(watch: Watch) -> None:
        seen = 0
        async for batch in watch:
            seen += len(batch)
            if seen == total:
                return

    watches = [await store.watch("/registry/core/fan/", after_revision=revision) for _ in range(watchers)]
    start = time.perf_counter()
    async with TaskGroup("watchers") as group:
        for watch in watches:
            group.spawn(drain(watch), "drain")
        await create_many(store, prefix="/registry/core/fan/ns/", total=total, writers=64)
        await group.wait()
    seconds = time.perf_counter() - start
    return [row("watch events", watchers * total / seconds, "per second", store=label, watchers=watchers)]


async def startup(path: Path) -> list[Row]:
    """Measure opening a file of 50,000 objects."""
    store = await SQLiteStore.open(path)
    await create_many(store, prefix="/registry/core/pods/ns/", total=50_000, writers=512)
    await store.close()
    start = time.perf_counter()
    store = await SQLiteStore.open(path)
    elapsed = 1000 * (time.perf_counter() - start)
    await store.close()
    return [row("open with checks", elapsed, "ms", store="sqlite", objects=50_000, value_bytes=1024)]


@asynccontextmanager
async def opened(label: str, directory: Path) -> AsyncIterator[Store]:
    """Open a store for the time of the block."""
    store: Store = MemoryStore() if label == "memory" else await SQLiteStore.open(directory / "bench.db")
    try:
        yield store
    finally:
        await store.close()


async def rows() -> list[Row]:
    """Return all measurements."""
    found: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        for label in ("memory", "sqlite"):
            async with opened(label, Path(name)) as store:
                for measure in (creates, reads, idle_watchers, fan_out):
                    found += await measure(store, label)
        found += await startup(Path(name) / "startup.db")
    return found


def main() -> None:
    """Print the table."""
    for each in asyncio.run(rows()):
        print(f"{each['name']:36} {each['value']:>14,.1f} {each['unit']:12} {each['parameters']}")


if __name__ == "__main__":
    main()
