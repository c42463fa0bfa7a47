"""The status manager: writes Pod statuses and deletes terminated Pods; one write per Pod at a time."""

from __future__ import annotations

import logging
from typing import Final, Protocol

from dray.api.codec import to_document
from dray.api.document import Document
from dray.api.errors import ConflictError, NotFoundError
from dray.api.types.core_v1 import Pod
from dray.client.controller import Controller, Result
from dray.client.interface import Client, DeleteOptions, Patch, PatchType, WriteOptions
from dray.client.objects import key_of
from dray.client.resources import PODS
from dray.lib.clock import Clock
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)

WORKERS: Final = 4
_READY: Final = "Ready"
_STATUS: Final = WriteOptions(subresource="status")
_ADDRESS_LISTS: Final = ("hostIPs", "podIPs")


class ReportedPod(Protocol):
    """A Pod whose status is reported."""

    pod: Pod
    # The last status that was written, and the Pod's resource version after it.
    reported_status: Document | None
    reported_version: str
    # The last status that was sent; the request may be in progress.
    sent_status: Document | None
    # Whether another client has changed the readiness since.
    overwritten: bool
    # Whether the Pod is to be deleted once its status is written.
    delete_requested: bool

    @property
    def uid(self) -> str:
        """The Pod's UID."""

    def status(self) -> Document | None:
        """Return the status to write; None if it must not be changed."""


class StatusManager:
    """Reports the Pods of all nodes of a process."""

    def __init__(self, client: Client, clock: Clock, workers: int = WORKERS) -> None:
        self._client = client
        self._works: dict[str, ReportedPod] = {}
        self._controller: Controller[str] = Controller("pod_status", self._report, clock, workers=workers)

    def status_changed(self, work: ReportedPod) -> None:
        """Write the Pod's status if it has changed."""
        self._works[work.uid] = work
        self._controller.queue.add(work.uid)

    def pod_updated(self, work: ReportedPod) -> None:
        """Report the readiness again if a controller has changed it."""
        if not work.overwritten and is_overwritten(work.pod, work.sent_status, work.reported_version):
            work.overwritten = True
            self._controller.queue.add(work.uid)

    def remove(self, work: ReportedPod) -> None:
        """Stop reporting a Pod."""
        self._works.pop(work.uid, None)

    async def run(self) -> None:
        """Write until cancelled."""
        await self._controller.run()

    async def _report(self, uid: str) -> Result:
        work = self._works.get(uid)
        if work is None:
            return None
        try:
            await self._write(work)
            if work.delete_requested:
                await self._delete(work)
        except (NotFoundError, ConflictError) as error:
            # The Pod was deleted, or replaced by another of the same name; the informer reports it.
            _log.debug("status not written", extra=fields(pod=str(key_of(work.pod)), error=str(error)))
        return None

    async def _write(self, work: ReportedPod) -> None:
        status = work.status()
        if status is None or (status == work.reported_status and not work.overwritten):
            return
        key = key_of(work.pod)
        changes = status_patch(work.pod, status, work.reported_status)
        patch = Patch(PatchType.STRATEGIC, {"metadata": {"uid": work.uid}, "status": changes})
        work.sent_status, work.overwritten = status, False
        answer = await self._client.patch(PODS, key.name, key.namespace, patch, _STATUS)
        work.reported_status, work.reported_version = status, answer.metadata.resource_version or ""

    async def _delete(self, work: ReportedPod) -> None:
        key = key_of(work.pod)
        await self._client.delete(PODS, key.name, key.namespace, DeleteOptions(uid=work.uid, grace_period_seconds=0))


def status_patch(pod: Pod, status: Document, reported: Document | None) -> Document:
    """Return the status as a strategic merge patch, in which addresses that have changed replace the earlier ones.

    Merged by their address, they would be added instead.
    """
    known = to_document(pod.status) if reported is None else reported
    changed = [name for name in _ADDRESS_LISTS if status.get(name) and known.get(name, status[name]) != status[name]]
    return {**status, **{name: [*status[name], {"$patch": "replace"}] for name in changed}}


def is_overwritten(pod: Pod, sent: Document | None, reported_version: str) -> bool:
    """Return whether the Pod's readiness was changed after the last write; older versions are ignored."""
    version = pod.metadata.resource_version or ""
    if (
        sent is None
        or not (version.isdecimal() and reported_version.isdecimal())
        or int(version) <= int(reported_version)
    ):
        return False
    ours = next((item["status"] for item in sent.get("conditions") or () if item["type"] == _READY), None)
    theirs = next((item.status for item in pod.status.conditions if item.type == _READY), None)
    return ours is not None and theirs is not None and ours != theirs
