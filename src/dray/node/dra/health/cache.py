"""The cached health reports of drivers, and their expiry.

Pure; time is an argument. A device whose last report is older than its timeout (30 s unless the driver says otherwise)
is Unknown; so is one that the driver leaves out of its reports, when that time has passed. The cache is bounded for
each driver: the devices are whatever it names in its reports.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import orjson

from dray.api.timestamps import format_time, parse_time

FILE_NAME: Final = "dra_health_state"
TIMEOUT_SECONDS: Final = 30
# Kubernetes' limit of `resourceHealth.message`; a truncated message ends with dots.
MESSAGE_LENGTH_MAX: Final = 1024
# Kubernetes' limit of devices with a health for one driver.
DEVICES_MAX: Final = 16384
# Kubernetes' limits of pool and device names; longer ones cannot be in a slice.
POOL_NAME_LENGTH_MAX: Final = 253
DEVICE_NAME_LENGTH_MAX: Final = 63
_DOTS: Final = "..."
_NANOSECONDS: Final = 1_000_000_000


class Health(enum.StrEnum):
    """The health values of `allocatedResourcesStatus`."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, order=True)
class DeviceKey:
    """A device of the node."""

    driver: str
    pool: str
    device: str


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """The health of a device, and how long the report is valid."""

    health: Health = Health.UNKNOWN
    message: str = ""
    timeout_seconds: int = TIMEOUT_SECONDS

    @classmethod
    def reported(cls, health: Health, message: str, timeout_seconds: int) -> DeviceHealth:
        """Return the health that a driver reported."""
        return cls(health, shorten(message), timeout_seconds if timeout_seconds > 0 else TIMEOUT_SECONDS)


@dataclass(frozen=True, slots=True)
class _Known:
    health: DeviceHealth
    updated: datetime

    def current(self, now: datetime) -> DeviceHealth:
        late = now - self.updated > timedelta(seconds=self.health.timeout_seconds)
        return DeviceHealth(timeout_seconds=self.health.timeout_seconds) if late else self.health


@dataclass(frozen=True, slots=True)
class Update:
    """The effect of a report: the devices whose health changed, and the number of devices that were not stored."""

    changed: frozenset[DeviceKey]
    ignored: int = 0


def shorten(message: str) -> str:
    """Truncate the message to the length that the API allows."""
    if len(message) <= MESSAGE_LENGTH_MAX:
        return message
    return message[: MESSAGE_LENGTH_MAX - len(_DOTS)] + _DOTS


class HealthCache:
    """The health of all devices."""

    def __init__(self) -> None:
        self._known: dict[DeviceKey, _Known] = {}

    def get(self, key: DeviceKey, now: datetime) -> DeviceHealth:
        """Return the device's health; Unknown without a valid report."""
        known = self._known.get(key)
        return DeviceHealth() if known is None else known.current(now)

    def report(self, driver: str, devices: Mapping[tuple[str, str], DeviceHealth], now: datetime) -> Update:
        """Store a driver's report. Devices that it leaves out keep their health until it expires."""
        expired = self.expire(now)
        free = DEVICES_MAX - sum(key.driver == driver for key in self._known)
        changed, ignored = set(), 0
        for (pool, device), health in devices.items():
            key = DeviceKey(driver, pool, device)
            if key not in self._known:
                if not free or not is_storable(key):
                    ignored += 1
                    continue
                free -= 1
            if self.get(key, now) != health or key not in self._known:
                changed.add(key)
            self._known[key] = _Known(health, now)
        return Update(frozenset(changed) | expired, ignored)

    def expire(self, now: datetime) -> frozenset[DeviceKey]:
        """Remove expired reports; return the devices that became Unknown by it, not those that were reported so."""
        late = {key: known.health for key, known in self._known.items() if known.current(now) is not known.health}
        for key in late:
            del self._known[key]
        return frozenset(key for key, health in late.items() if health.health is not Health.UNKNOWN or health.message)

    def clear(self, driver: str) -> frozenset[DeviceKey]:
        """Remove the reports of a driver whose stream has ended; return its devices."""
        gone = [key for key in self._known if key.driver == driver]
        for key in gone:
            del self._known[key]
        return frozenset(gone)

    def next_expiry(self) -> datetime | None:
        """Return when the next report expires."""
        return min(
            (known.updated + timedelta(seconds=known.health.timeout_seconds) for known in self._known.values()),
            default=None,
        )

    def encode(self) -> bytes:
        """Return the content of `dra_health_state`, in kubelet's format."""
        drivers: dict[str, dict[str, dict[str, Any]]] = {}
        for key in sorted(self._known):
            devices = drivers.setdefault(key.driver, {"Devices": {}})["Devices"]
            devices[f"{key.pool}/{key.device}"] = _to_wire(key, self._known[key])
        return orjson.dumps(drivers)

    def restore(self, content: bytes) -> None:
        """Restore an encoded cache; raises ValueError if it is damaged."""
        try:
            self._known = _bounded(_from_wire(orjson.loads(content)))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"damaged health state: {error}") from error


def is_storable(key: DeviceKey) -> bool:
    """Whether pool and device have names that a slice can have."""
    return len(key.pool) <= POOL_NAME_LENGTH_MAX and len(key.device) <= DEVICE_NAME_LENGTH_MAX


def _bounded(entries: Iterable[tuple[DeviceKey, _Known]]) -> dict[DeviceKey, _Known]:
    counts: Counter[str] = Counter()
    known: dict[DeviceKey, _Known] = {}
    for key, value in entries:
        if counts[key.driver] < DEVICES_MAX and is_storable(key):
            counts[key.driver] += 1
            known[key] = value
    return known


def _to_wire(key: DeviceKey, known: _Known) -> dict[str, Any]:
    return {
        "PoolName": key.pool,
        "DeviceName": key.device,
        "Health": known.health.health.value,
        "LastUpdated": format_time(known.updated),
        "HealthCheckTimeout": known.health.timeout_seconds * _NANOSECONDS,
        "Message": known.health.message,
    }


def _from_wire(drivers: Mapping[str, Any]) -> Iterable[tuple[DeviceKey, _Known]]:
    for driver, state in drivers.items():
        for item in state["Devices"].values():
            timeout = int(item.get("HealthCheckTimeout") or 0) // _NANOSECONDS
            health = DeviceHealth.reported(Health(item["Health"]), item.get("Message") or "", timeout)
            yield (
                DeviceKey(driver, item["PoolName"], item["DeviceName"]),
                _Known(health, parse_time(item["LastUpdated"])),
            )
