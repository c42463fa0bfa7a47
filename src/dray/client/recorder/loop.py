"""The event recorder's hand: a bounded queue of things to tell, and the writes that the correlator decides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final
from zlib import crc32

from dray.api.document import GroupVersion, GroupVersionKind
from dray.api.errors import AlreadyExistsError, APIError, NotFoundError
from dray.client.answers import is_retriable
from dray.client.events import Correlator, CreateEvent, Happening, ObjectReference, PatchEvent, Source, reference_to
from dray.client.interface import Client, Patch, PatchType, unstructured
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.tasks import TaskGroup

_log = logging.getLogger(__name__)

EVENTS: Final = unstructured(GroupVersion("", "v1"), "events", "Event")
# client-go's: more than this behind, news is dropped rather than memory filled.
QUEUE_LENGTH_MAX: Final = 1000
# Each write waits for the disk: one after the other, they could not keep up with a scheduler.
WRITERS: Final = 4
ATTEMPTS_MAX: Final = 12
RETRY_SECONDS: Final = 1.0
NORMAL: Final = "Normal"
WARNING: Final = "Warning"


class EventRecorder:
    """Tells what happens to objects, as core/v1 Events; `event` may be called from anywhere in the loop."""

    def __init__(self, client: Client, clock: Clock, source: Source) -> None:
        self._client = client
        self._clock = clock
        self._correlator = Correlator(source)
        # What is told of one object is always in the same queue, and so written in order.
        self._queues = tuple(asyncio.Queue[Happening]() for _ in range(WRITERS))
        self._waiting = 0

    def event(
        self,
        kind: GroupVersionKind,
        obj: Any,
        event_type: str,
        reason: str,
        message: str,
        *,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Tell something of an object; never waits and never fails."""
        self.tell(Happening(reference_to(kind, obj), event_type, reason, message, annotations or {}))

    def event_at(self, about: ObjectReference, event_type: str, reason: str, message: str) -> None:
        """Tell something of an object of which only the reference is at hand."""
        self.tell(Happening(about, event_type, reason, message))

    def tell(self, happening: Happening) -> None:
        """Queue one thing to tell; dropped, with a log line, when too many wait."""
        if self._waiting >= QUEUE_LENGTH_MAX:
            _log.warning("event dropped", extra=fields(object=happening.about.name, reason=happening.reason))
            return
        self._waiting += 1
        self._queues[_number_of(happening.about) % WRITERS].put_nowait(happening)

    async def run(self) -> None:
        """Write what is told until cancelled."""
        async with TaskGroup("events") as group:
            for number, queue in enumerate(self._queues):
                group.spawn(self._write_all(queue), f"writer {number}")
            await group.wait()

    async def flush(self) -> None:
        """Return when everything told so far has been written or given up; `run` must be running."""
        for queue in self._queues:
            await queue.join()

    async def _write_all(self, queue: asyncio.Queue[Happening]) -> None:
        while True:
            happening = await queue.get()
            self._waiting -= 1
            try:
                await self._write(happening)
            finally:
                queue.task_done()

    async def _write(self, happening: Happening) -> None:
        decision = self._correlator.tell(happening, self._clock.now())
        if decision is None:
            return
        for _ in range(ATTEMPTS_MAX):
            try:
                await self._perform(decision)
            except APIError as error:
                if not is_retriable(error):
                    _log.info("event refused", extra=fields(reason=happening.reason, error=str(error)))
                    return
                await self._clock.sleep(RETRY_SECONDS)
            else:
                return
        _log.warning("event given up", extra=fields(object=happening.about.name, reason=happening.reason))

    async def _perform(self, decision: CreateEvent | PatchEvent) -> None:
        if isinstance(decision, CreateEvent):
            await self._create(decision)
            return
        patch = Patch(PatchType.STRATEGIC, decision.body)
        try:
            await self._client.patch(EVENTS, decision.name, decision.namespace, patch)
        except NotFoundError:
            # It expired on the server meanwhile.
            await self._create(decision.fallback)

    async def _create(self, decision: CreateEvent) -> None:
        try:
            await self._client.create(EVENTS, decision.document, decision.namespace)
        except AlreadyExistsError:
            # An earlier attempt got through and only its answer was lost.
            return


def _number_of(about: ObjectReference) -> int:
    """The same for an object in every process, so that a simulation can be repeated."""
    return crc32(f"{about.namespace}/{about.name}".encode())
