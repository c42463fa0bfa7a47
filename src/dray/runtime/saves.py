"""Saves of one state by many: they follow each other, and those who wait for their turn share one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class SharedSave:
    """Calls `save`, which writes the whole state, so that no older state ever replaces a newer one.

    A save that begins after one asked for it is as good as one's own: of those who ask while one is under way, all
    have the next.
    """

    def __init__(self, save: Callable[[], Awaitable[None]]) -> None:
        self._save = save
        self._turn = asyncio.Lock()
        # The save that has not begun yet.
        self._next: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        """Return when a save that began after this call has ended, or raise what it raised."""
        if self._next is None:
            self._next = asyncio.create_task(self._take_turn(), name="save")
        # It is for others too: one who gives up does not end it.
        await asyncio.shield(self._next)

    async def _take_turn(self) -> None:
        async with self._turn:
            self._next = None
            await self._save()
