"""Writes to a store as fast as it can until it is killed, telling on stdout what it tries and what is done."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from zlib import crc32

from dray.store.interface import Entry
from dray.store.sqlite import SQLiteStore

WRITERS = 16
KEYS_EACH = 5


def tell(kind: str, key: str, revision: int, checksum: int = 0) -> None:
    """One short line in one system call: a kill loses it whole or not at all."""
    os.write(1, f"{kind} {key} {revision} {checksum}\n".encode())


def acknowledge(kind: str, entry: Entry) -> None:
    """The write is done."""
    tell(kind, entry.key, entry.revision, crc32(entry.value))


async def write(store: SQLiteStore, writer: int, chance: random.Random) -> None:
    """Create, update and delete this writer's own keys."""
    keys = [f"/registry/core/pods/ns-{writer}/pod-{number}" for number in range(KEYS_EACH)]
    while True:
        key = chance.choice(keys)
        value = chance.randbytes(chance.choice([0, 10, 1000, 20_000]))[:200] * chance.choice([1, 10, 100])
        current = await store.get(key)
        tell("TRY", key, current.revision if current else 0)
        if current is None:
            acknowledge("PUT", await store.create(key, value))
        elif chance.random() < 0.3:
            acknowledge("DELETE", await store.delete(key, expected_revision=current.revision))
        else:
            acknowledge("PUT", await store.update(key, value, expected_revision=current.revision))


async def compact(store: SQLiteStore, chance: random.Random) -> None:
    """Compact again and again, so that kills fall into that too."""
    while True:
        await asyncio.sleep(0.005)
        revision = await store.revision()
        compacted = await store.compacted_revision()
        await store.compact(chance.randint(compacted, revision))


async def main(path: str, seed: int) -> None:
    """Run until killed."""
    chance = random.Random(seed)
    store = await SQLiteStore.open(path)
    tell("OPEN", "-", await store.revision())
    writers = [write(store, number, random.Random(chance.random())) for number in range(WRITERS)]
    await asyncio.gather(compact(store, chance), *writers)


def fork_writers(path: str) -> None:
    """Fork a writer for each seed on stdin, and report its exit code when it has ended.

    A fork is a process as any other and dies as one, but the modules are imported once for all.
    """
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            tell("PID", "-", os.getpid())
            asyncio.run(main(path, int(line)))
            os._exit(1)
        _, status = os.waitpid(child, 0)
        tell("END", "-", os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        asyncio.run(main(sys.argv[1], int(sys.argv[2])))
    else:
        fork_writers(sys.argv[1])
