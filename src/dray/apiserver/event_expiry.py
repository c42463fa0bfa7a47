"""Deletes Events a fixed time after their last write, as kube-apiserver does with leases of etcd (`--event-ttl`).

It follows the Events of the store and deletes each at the revision that has expired, so that an Event which is written
at the same time stays. This is the same for every store. Several servers that share a store all do it, each with a
small delay of its own: the first one deletes, and the others observe that.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final

import orjson

from dray.apiserver.endpoint import KEY_ROOT
from dray.apiserver.expiry_queue import ExpiryQueue, Written, last_written
from dray.lib.clock import Clock
from dray.runtime.tasks import TaskGroup
from dray.store.interface import (
    Entry,
    EventType,
    KeyNotFoundError,
    RevisionCompactedError,
    RevisionConflictError,
    Store,
    StoreError,
    WatchOverflowError,
)

_LOG: Final = logging.getLogger("dray.apiserver.event_expiry")
EVENTS_PREFIX: Final = f"{KEY_ROOT}core/events/"
# kube-apiserver's default of --event-ttl.
EVENT_TTL_SECONDS: Final = 3600.0
# Expired Events are looked for this often in a time to live, and at least every 10 seconds.
CHECKS_PER_TTL: Final = 20
CHECK_SECONDS_MAX: Final = 10.0
# Deletions that share a commit, and the pause after them: at most 10,000 per second, so that others get their turn.
DELETE_BATCH: Final = 100
DELETE_PAUSE_SECONDS: Final = 0.01
LIST_PAGE: Final = 500
# The longest additional delay of one of several servers, as a share of the time to live and in seconds.
SHARED_DELAY_SHARE: Final = 0.05
SHARED_DELAY_SECONDS_MAX: Final = 60.0
RETRY_SECONDS: Final = 1.0


class EventExpiry:
    """Expires the Events of one store; spawn `run`."""

    def __init__(self, store: Store, clock: Clock, random_source: random.Random, ttl_seconds: float) -> None:
        self._store = store
        self._clock = clock
        delay = min(ttl_seconds * SHARED_DELAY_SHARE, SHARED_DELAY_SECONDS_MAX)
        self._queue = ExpiryQueue(ttl_seconds + (random_source.uniform(0, delay) if store.shared else 0.0))
        self._check_seconds = min(ttl_seconds / CHECKS_PER_TTL, CHECK_SECONDS_MAX)
        # Whether the last attempt to reach the store failed; logged once.
        self._failing = False

    async def run(self) -> None:
        """Expire Events until the store closes."""
        async with TaskGroup("event expiry") as group:
            group.spawn(self._expire(), "delete expired events")
            await self._follow()

    async def _follow(self) -> None:
        """Keep the queue equal to the Events of the store."""
        while True:
            try:
                await self._watch(await self._list())
            except (WatchOverflowError, RevisionCompactedError):
                continue
            except StoreError as error:
                self._report(error)
                await self._clock.sleep(RETRY_SECONDS)
            else:
                return

    async def _list(self) -> int:
        """Fill the queue from a list; return its revision."""
        revision, last, listed = 0, "", []
        while True:
            page = await self._store.list_page(EVENTS_PREFIX, limit=LIST_PAGE, start_after=last, revision=revision)
            listed += [(entry.key, self._written(entry)) for entry in page.entries]
            revision = page.revision
            if not page.remaining:
                break
            last = page.entries[-1].key
            # Thousands of Events are parsed; requests come first.
            await asyncio.sleep(0)
        self._queue.replace(listed)
        return revision

    async def _watch(self, revision: int) -> None:
        async with await self._store.watch(EVENTS_PREFIX, after_revision=revision) as stream:
            async for batch in stream:
                now_seconds = self._clock.monotonic()
                for event in batch:
                    if event.type is EventType.PUT:
                        self._queue.put(event.entry.key, event.revision, now_seconds)
                    else:
                        self._queue.remove(event.entry.key)

    def _written(self, entry: Entry) -> Written:
        now = self._clock.now()
        try:
            document = orjson.loads(entry.value)
        except orjson.JSONDecodeError:
            document = {}
        age_seconds = (now - last_written(document, now)).total_seconds()
        return Written(entry.revision, self._clock.monotonic() - age_seconds)

    async def _expire(self) -> None:
        while True:
            await self._clock.sleep(self._check_seconds)
            while expired := self._queue.due(self._clock.monotonic(), limit=DELETE_BATCH):
                outcomes = await asyncio.gather(*(self._delete(key, revision) for key, revision in expired))
                failed = [item for item, is_deleted in zip(expired, outcomes, strict=True) if not is_deleted]
                if failed:
                    self._queue.put_back(failed, self._clock.monotonic())
                    break
                self._failing = False
                await self._clock.sleep(DELETE_PAUSE_SECONDS)

    async def _delete(self, key: str, revision: int) -> bool:
        """Delete an expired Event; return False if that is to be tried again."""
        try:
            await self._store.delete(key, expected_revision=revision)
        except (KeyNotFoundError, RevisionConflictError):
            # Deleted by another server, or written since.
            return True
        except StoreError as error:
            self._report(error)
            return False
        return True

    def _report(self, error: StoreError) -> None:
        if not self._failing:
            _LOG.warning("cannot expire events, retrying: %s", error)
        self._failing = True
