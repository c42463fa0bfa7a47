"""Writes the status of devices to their claims, in the background.

Reports for one claim are combined and written with one patch. The patch names the version of the claim that it is based
on, so that the reports of other drivers are never lost; a conflict is retried. A report is dropped, with an error, when
the server rejects it or when it could not be written for ten minutes; without one when the claim was deleted, replaced,
or no longer has the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dray.api.devices import results_in
from dray.api.document import UID, Document, NamespacedName
from dray.api.errors import APIError, BadRequestError, InvalidError, NotFoundError
from dray.api.types.resource_v1 import NetworkDeviceData
from dray.api.validation.resource_claim_status import DeviceID, device_id
from dray.client.controller import Controller
from dray.client.interface import Client, Patch, PatchType, WriteOptions
from dray.client.resources import RESOURCE_CLAIMS
from dray.driver.claims import AllocatedDevice, Claim, PreparedClaim
from dray.driver.device_status import (
    DeviceCondition,
    DeviceStatus,
    DeviceStatusError,
    device_status,
    id_of,
    merge_statuses,
)
from dray.lib.clock import Clock

# Claims with reports that are not written yet; a node has a few hundred Pods.
CLAIMS_MAX: Final = 4096
# How long to try: an API server may be down, or a role may be missing, for a while.
TRY_SECONDS_MAX: Final = 600.0
_CLAIMS: Final = RESOURCE_CLAIMS.unstructured


class StatusNotReportedError(Exception):
    """A report that was given up."""


@dataclass(slots=True)
class _Pending:
    key: NamespacedName
    # When the first of the reports was made.
    since: float
    changes: dict[DeviceID, DeviceStatus] = field(default_factory=dict)


class StatusReporter:
    """The pending reports of one driver; `report` must be called in the event loop."""

    def __init__(self, client: Client, driver: str, clock: Clock, on_error: Callable[[Exception], None]) -> None:
        self._client = client
        self._driver = driver
        self._clock = clock
        self._on_error = on_error
        self._pending: dict[UID, _Pending] = {}
        self._controller: Controller[UID] = Controller("device status", self._reconcile, clock)

    def check(
        self,
        device: AllocatedDevice,
        conditions: Iterable[DeviceCondition],
        data: Mapping[str, Any] | None,
        network: NetworkDeviceData | None,
    ) -> DeviceStatus:
        """Return the change to report; raises `DeviceStatusError`. May be called in any thread."""
        if len(self._pending) >= CLAIMS_MAX:
            raise DeviceStatusError(f"the status of {CLAIMS_MAX} claims waits to be written")
        return device_status(id_of(self._driver, device), conditions, data, network, self._clock.now())

    def report(self, claim: Claim | PreparedClaim, device: AllocatedDevice, status: DeviceStatus) -> None:
        """Write the change soon."""
        pending = self._pending.setdefault(claim.uid, _Pending(claim.key, self._clock.monotonic()))
        key = id_of(self._driver, device)
        pending.changes[key] = pending.changes.get(key, DeviceStatus()).updated(status)
        self._controller.queue.add(claim.uid)

    @property
    def is_settled(self) -> bool:
        """Whether all reports are written or dropped."""
        return not self._pending

    async def run(self) -> None:
        """Write reports until cancelled."""
        await self._controller.run()

    async def _reconcile(self, uid: UID) -> None:
        pending = self._pending.get(uid)
        if pending is None:
            return
        changes = dict(pending.changes)
        try:
            await self._write(uid, pending.key, changes)
        except NotFoundError:
            pass
        except (InvalidError, BadRequestError) as error:
            self._give_up(pending.key, error)
        except APIError as error:
            if self._clock.monotonic() - pending.since < TRY_SECONDS_MAX:
                raise
            self._give_up(pending.key, error)
        # Reports that were made meanwhile stay.
        pending.changes = {key: value for key, value in pending.changes.items() if changes.get(key) is not value}
        pending.since = self._clock.monotonic()
        if not pending.changes:
            del self._pending[uid]

    async def _write(self, uid: UID, key: NamespacedName, changes: Mapping[DeviceID, DeviceStatus]) -> None:
        claim = await self._client.get(_CLAIMS, key.name, key.namespace)
        status: Document = claim.get("status") or {}
        allocated = {device_id(item) for item in results_in(claim)}
        wanted = {device: change for device, change in changes.items() if device in allocated}
        existing = status.get("devices") or []
        merged = merge_statuses(existing, wanted, self._clock.now())
        if claim["metadata"]["uid"] != uid or merged == existing:
            return
        version = claim["metadata"]["resourceVersion"]
        body = {"metadata": {"uid": uid, "resourceVersion": version}, "status": {"devices": merged}}
        options = WriteOptions(subresource="status")
        await self._client.patch(_CLAIMS, key.name, key.namespace, Patch(PatchType.MERGE, body), options)

    def _give_up(self, key: NamespacedName, error: Exception) -> None:
        self._on_error(StatusNotReportedError(f"claim {key}: status of devices not reported: {error}"))
