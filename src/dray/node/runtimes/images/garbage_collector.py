"""Removes unused images when the disk is nearly full."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final

from dray.lib.clock import Clock
from dray.node.runtimes.images.model import StoredImage
from dray.node.runtimes.images.store import ImageStore
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)

# kubelet's defaults.
COLLECT_SECONDS: Final = 300.0
USED_PERCENT_HIGH: Final = 85
USED_PERCENT_LOW: Final = 80
AGE_SECONDS_LEAST: Final = 120.0
# Parts of downloads and imports that a killed process left behind.
LEFTOVER_SECONDS: Final = 86_400.0


class ImageGarbageCollector:
    """Collects the images of one store; `warn` records a Warning event of the node, by reason and message."""

    def __init__(self, store: ImageStore, clock: Clock, warn: Callable[[str, str], None]) -> None:
        self._store = store
        self._clock = clock
        self._warn = warn

    async def run(self, in_use: Callable[[], Collection[str]]) -> None:
        """Collect until cancelled; `in_use` returns the images of all containers."""
        while True:
            await self._clock.sleep(COLLECT_SECONDS)
            try:
                await asyncio.to_thread(self.collect, in_use())
            except OSError as error:
                _log.warning("images cannot be collected", extra=fields(error=str(error)))
                self._warn("ImageGCFailed", str(error))

    def collect(self, in_use: Collection[str]) -> None:
        """Remove unused images if too little of the disk is free."""
        now = self._clock.now().timestamp()
        self._store.remove_leftovers(now - LEFTOVER_SECONDS)
        wanted = bytes_to_free(*self._store.disk())
        if wanted <= 0:
            return
        freed = 0
        for image in removable(self._store.all(), in_use, now):
            if freed >= wanted:
                break
            # Layers that other images have as well stay.
            freed += self._store.delete(image)
        if freed < wanted:
            text = (
                "Failed to garbage collect required amount of images. Attempted to free "
                f"{wanted} bytes, but only found {freed} bytes eligible to free."
            )
            self._warn("FreeDiskSpaceFailed", text)


def bytes_to_free(total: int, free: int) -> int:
    """Return how many bytes must go for the disk to be below the low threshold; 0 below the high one."""
    used = total - free
    return used - total * USED_PERCENT_LOW // 100 if used * 100 >= total * USED_PERCENT_HIGH and total else 0


def removable(images: Sequence[StoredImage], in_use: Collection[str], now: float) -> list[StoredImage]:
    """Return the images that may be removed, those longest unused first."""
    unused = [
        image
        for image in images
        if not {image.id, *image.names} & set(in_use) and now - image.last_used >= AGE_SECONDS_LEAST
    ]
    return sorted(unused, key=lambda item: (item.last_used, item.id))
