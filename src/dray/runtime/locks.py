"""Locks by key: whoever holds some keys excludes others that want any of them, and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager


class KeyedLocks:
    """One lock for each key in use."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        # How many hold or wait for the key; at none its lock is forgotten.
        self._users: dict[str, int] = {}

    @asynccontextmanager
    async def held(self, keys: Iterable[str]) -> AsyncIterator[None]:
        """Hold all keys; they are taken in order, so that two holders cannot wait for each other."""
        wanted = sorted(set(keys))
        for key in wanted:
            self._users[key] = self._users.get(key, 0) + 1
        try:
            async with AsyncExitStack() as stack:
                for key in wanted:
                    await stack.enter_async_context(self._locks.setdefault(key, asyncio.Lock()))
                yield
        finally:
            for key in wanted:
                self._users[key] -= 1
                if not self._users[key]:
                    del self._users[key]
                    self._locks.pop(key, None)
