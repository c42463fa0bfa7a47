"""A driver's entries in `ResourceClaim.status.devices`: validation, and merging into those that exist. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dray.api.codec import to_document
from dray.api.document import Document, copy_document
from dray.api.field_errors import Path
from dray.api.timestamps import format_time
from dray.api.types.resource_v1 import NetworkDeviceData
from dray.api.validation.resource_claim_status import DeviceID, device_id, validate_device_status
from dray.driver.claims import AllocatedDevice


class DeviceStatusError(ValueError):
    """A status that the API server would reject."""


@dataclass(frozen=True, slots=True)
class DeviceCondition:
    """A condition of a device, e.g. a binding condition; the SDK sets the time of its last transition."""

    type: str
    is_true: bool
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """What to change in a device's entry: conditions are merged by type, None leaves data or network as they are."""

    conditions: Mapping[str, DeviceCondition] = field(default_factory=dict)
    data: Any = None
    network: NetworkDeviceData | None = None

    def updated(self, later: DeviceStatus) -> DeviceStatus:
        """Return both changes as one; the later one takes precedence."""
        return DeviceStatus(
            {**self.conditions, **later.conditions},
            self.data if later.data is None else later.data,
            self.network if later.network is None else later.network,
        )


def id_of(driver: str, device: AllocatedDevice) -> DeviceID:
    """Return the device's key in allocation results and `status.devices`."""
    return driver, device.pool, device.name, device.share_id or ""


def device_status(
    device: DeviceID,
    conditions: Iterable[DeviceCondition],
    data: Mapping[str, Any] | None,
    network: NetworkDeviceData | None,
    now: datetime,
) -> DeviceStatus:
    """Return a validated change; raises `DeviceStatusError`."""
    status = DeviceStatus({item.type: item for item in conditions}, None if data is None else dict(data), network)
    entry = _merged(_new_entry(device), status, now)
    errors = validate_device_status(entry, Path("devices"), {device})
    if errors:
        raise DeviceStatusError("; ".join(map(str, errors)))
    return status


def merge_statuses(
    existing: Sequence[Document], changes: Mapping[DeviceID, DeviceStatus], now: datetime
) -> list[Document]:
    """Return `status.devices` with the changes; entries of others, and fields that are not known, are kept."""
    result = [copy_document(item) for item in existing]
    positions = {device_id(item): index for index, item in enumerate(result)}
    for device, status in changes.items():
        position = positions.get(device)
        if position is None:
            result.append(_merged(_new_entry(device), status, now))
        else:
            result[position] = _merged(result[position], status, now)
    return result


def _new_entry(device: DeviceID) -> Document:
    driver, pool, name, share_id = device
    return {"driver": driver, "pool": pool, "device": name, **({"shareID": share_id} if share_id else {})}


def _merged(entry: Document, status: DeviceStatus, now: datetime) -> Document:
    conditions: dict[str, Document] = {item["type"]: item for item in entry.get("conditions") or ()}
    for name, item in status.conditions.items():
        conditions[name] = _condition(item, conditions.get(name), now)
    merged = dict(entry)
    if conditions:
        merged["conditions"] = list(conditions.values())
    if status.data is not None:
        merged["data"] = status.data
    if status.network is not None:
        merged["networkData"] = to_document(status.network)
    return merged


def _condition(item: DeviceCondition, known: Document | None, now: datetime) -> Document:
    status = "True" if item.is_true else "False"
    changed = known is None or known.get("status") != status
    time = format_time(now) if changed or known is None else known.get("lastTransitionTime") or format_time(now)
    return {
        **(known or {}),
        "type": item.type,
        "status": status,
        "reason": item.reason,
        "message": item.message,
        "lastTransitionTime": time,
    }
