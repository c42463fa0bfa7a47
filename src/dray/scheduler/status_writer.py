"""Writes the statuses of Pods in the background: one write of a Pod at a time, and the newest of those not sent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from dray.api.document import Document
from dray.api.errors import APIError
from dray.api.types.core_v1 import Pod
from dray.client.interface import Client, Patch, PatchType, WriteOptions
from dray.client.resources import PODS
from dray.runtime.logs import fields
from dray.runtime.tasks import ChildTasks

_log = logging.getLogger(__name__)

# Concurrent writes.
WRITES_MAX: Final = 64
# Of these, writes that can wait: under load most are obsolete before they are sent.
LATE_WRITES_MAX: Final = 2
_STATUS: Final = WriteOptions(subresource="status")

# Returns the Pod and the status when they are sent; None if there is nothing to write any more.
LateStatus = Callable[[], "tuple[Pod, Document] | None"]


class _Write:
    """A write that was sent, or is going to be."""

    __slots__ = ("ended", "is_late", "pod", "status")

    def __init__(
        self, pod: Pod, status: Document, ended: asyncio.Event | None = None, *, is_late: bool = False
    ) -> None:
        self.pod = pod
        self.status = status
        # Set when it has ended; created for those who wait for it.
        self.ended = ended
        self.is_late = is_late


class StatusWriter:
    """The writes of one scheduler."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._tasks = ChildTasks("pod conditions")
        # All by uid of the Pod, in the order of the calls.
        self._unsent: dict[str, _Write] = {}
        self._late: dict[str, LateStatus] = {}
        self._sent: dict[str, _Write] = {}
        self._late_sent = 0

    async def run(self) -> None:
        """Supervise the writes until cancelled."""
        await self._tasks.supervise()

    def pending(self, uid: str) -> Document | None:
        """Return the fields that are being written, or are going to be; None if there are none."""
        sent, unsent = self._sent.get(uid), self._unsent.get(uid)
        if sent is None:
            return None if unsent is None else unsent.status
        return sent.status if unsent is None else sent.status | unsent.status

    def write(self, pod: Pod, status: Document) -> None:
        """Write some fields of the status; they replace those that were not sent."""
        uid = pod.metadata.uid or ""
        earlier = self._unsent.get(uid)
        self._late.pop(uid, None)
        write = _Write(pod, status) if earlier is None else _Write(pod, earlier.status | status, earlier.ended)
        self._unsent[uid] = write
        self._start()

    def write_late(self, uid: str, status: LateStatus) -> None:
        """Write a status when there is nothing more important to write, if there still is one then."""
        self._late[uid] = status
        self._start()

    async def settle(self, uid: str) -> None:
        """Forget what was not sent about a Pod that is being bound; return when nothing is being written."""
        self._late.pop(uid, None)
        if uid in self._sent:
            # It may not have been observed, so that what follows it is needed.
            await self.wait(uid)
        else:
            self._unsent.pop(uid, None)

    async def wait(self, uid: str) -> None:
        """Return when nothing is being written about a Pod, or going to be."""
        while (write := self._unsent.get(uid) or self._sent.get(uid)) is not None:
            if write.ended is None:
                write.ended = asyncio.Event()
            await write.ended.wait()

    def _start(self) -> None:
        if len(self._tasks) < WRITES_MAX:
            self._tasks.spawn(self._write_all(), "pod conditions")

    async def _write_all(self) -> None:
        """Write until nothing is left that can be sent now; who sends the rest takes what follows it."""
        while (write := self._next()) is not None:
            uid = write.pod.metadata.uid or ""
            self._sent[uid] = write
            self._late_sent += write.is_late
            try:
                await self._send(write.pod, write.status)
            finally:
                del self._sent[uid]
                self._late_sent -= write.is_late
                if write.ended is not None:
                    write.ended.set()

    def _next(self) -> _Write | None:
        for uid in self._unsent:
            if uid not in self._sent:
                return self._unsent.pop(uid)
        while self._late_sent < LATE_WRITES_MAX:
            late = next((uid for uid in self._late if uid not in self._sent), None)
            if late is None:
                return None
            found = self._late.pop(late)()
            if found is not None:
                return _Write(*found, is_late=True)
        return None

    async def _send(self, pod: Pod, status: Document) -> None:
        name, namespace = pod.metadata.name or "", pod.metadata.namespace or ""
        body: dict[str, Any] = {"metadata": {"uid": pod.metadata.uid}, "status": status}
        try:
            await self._client.patch(PODS, name, namespace, Patch(PatchType.STRATEGIC, body), _STATUS)
        except APIError as error:
            # The next attempt writes it again; a deleted Pod needs none.
            _log.info("condition not written", extra=fields(pod=f"{namespace}/{name}", error=error))
