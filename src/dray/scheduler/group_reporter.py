"""Writes the condition of PodGroups in the background."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from typing import Final

from dray.api.document import Document, NamespacedName
from dray.api.errors import APIError, ConflictError, is_refusal
from dray.api.pod_groups import INITIALLY_SCHEDULED, SCHEDULED
from dray.api.timestamps import format_time
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.client.interface import Client, Patch, PatchType, WriteOptions
from dray.client.objects import key_of
from dray.client.resources import POD_GROUPS
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.tasks import ChildTasks
from dray.scheduler.pod_groups import PodGroups

_log = logging.getLogger(__name__)

# Concurrent writes of conditions.
WRITES_MAX: Final = 16
# The time between writes of one condition while the server does not respond.
RETRY_SECONDS: Final = 1.0
_STATUS: Final = WriteOptions(subresource="status")


class GroupReporter:
    """One per scheduler."""

    def __init__(self, client: Client, clock: Clock, pod_groups: PodGroups) -> None:
        self._client = client
        self._clock = clock
        self._pod_groups = pod_groups
        self._slots = asyncio.Semaphore(WRITES_MAX)
        # The last write of each group's condition, and its reason and message.
        self._writing: dict[NamespacedName, asyncio.Task[None]] = {}
        self._written: dict[NamespacedName, tuple[str, str, str]] = {}
        self.writes = ChildTasks("pod group conditions")

    def set_condition(self, group: PodGroup, reason: str, message: str) -> None:
        """Start writing the condition, if it differs; one that is True never changes."""
        key, uid = key_of(group), group.metadata.uid or ""
        known = self._written.get(key) if key in self._writing else None
        if known is not None and known[0] == uid and (known[1] == SCHEDULED or known[1:] == (reason, message)):
            return
        current = self._pod_groups.get(key) or group
        if plan_condition(current, reason, message, self._clock.now()) is None:
            return
        self._written[key] = (uid, reason, message)
        previous = self._writing.get(key)
        task = self.writes.spawn(self._write(current, reason, message, previous), f"condition of {key}")
        self._writing[key] = task
        task.add_done_callback(lambda done: self._done(key, done))

    def _done(self, key: NamespacedName, task: asyncio.Task[None]) -> None:
        if self._writing.get(key) is task:
            del self._writing[key]
            del self._written[key]

    async def _write(self, group: PodGroup, reason: str, message: str, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            await asyncio.wait((previous,))
        key = key_of(group)
        while (body := plan_condition(group, reason, message, self._clock.now())) is not None:
            async with self._slots:
                try:
                    patch = Patch(PatchType.STRATEGIC, body)
                    await self._client.patch(POD_GROUPS, key.name, key.namespace, patch, _STATUS)
                except APIError as failure:
                    _log.info("condition not written", extra=fields(group=str(key), error=failure))
                    if reason != SCHEDULED or self._is_final(failure, group):
                        # A rejected group is tried again, and writes it again; a deleted one needs none.
                        return
                else:
                    return
            # Nothing else would write that a group is scheduled.
            await self._clock.sleep(RETRY_SECONDS)

    def _is_final(self, failure: APIError, group: PodGroup) -> bool:
        """Return whether the write would fail again: a conflict does only if the group was deleted or replaced."""
        if not isinstance(failure, ConflictError):
            return is_refusal(failure)
        current = self._pod_groups.get(key_of(group))
        return current is None or current.metadata.uid != group.metadata.uid


def plan_condition(group: PodGroup, reason: str, message: str, now: datetime) -> Document | None:
    """Return the patch of the group's status; None if nothing changes."""
    status = "True" if reason == SCHEDULED else "False"
    old = next((item for item in group.status.conditions if item.type == INITIALLY_SCHEDULED), None)
    if old is not None and (old.status == "True" or (old.status, old.reason, old.message) == (status, reason, message)):
        return None
    changed = now
    if old is not None and old.status == status and old.last_transition_time is not None:
        changed = old.last_transition_time
    condition: Document = {
        "type": INITIALLY_SCHEDULED,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": format_time(changed),
    }
    if group.metadata.generation:
        condition["observedGeneration"] = group.metadata.generation
    return {"metadata": {"uid": group.metadata.uid}, "status": {"conditions": [condition]}}
