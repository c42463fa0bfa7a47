"""The cached health reports of drivers, and their expiry.

Pure; time is an argument. A device whose last report is older than its timeout (30 s unless the driver says otherwise)
is Unknown; so is one that the driver leaves out of its reports, when that time has passed.
"""

from __future__ import annotations

import enum
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


def shorten(message: str) -> str:
    """Truncate the message to the length that the API allows."""
    if len(message) <= MESSAGE_LENGTH_MAX:
        return message
    return message[: MESSAGE_LENGTH_MAX - len(_DOTS)] + _DOTS


class HealthCache:
    """The health of all devices; methods return the devices whose health changed."""

    def __init__(self) -> None:
        self._known: dict[DeviceKey, _Known] = {}

    def get(self, key: DeviceKey, now: datetime) -> DeviceHealth:
        """Return the device's health; Unknown without a valid report."""
        known = self._known.get(key)
        return DeviceHealth() if known is None else known.current(now)

    def report(
        self, driver: str, devices: Mapping[tuple[str, str], DeviceHealth], now: datetime
    ) -> frozenset[DeviceKey]:
        """Store a driver's complete list; return what changed. Missing devices keep their report until it expires."""
        changed = set()
        for (pool, device), health in devices.items():
            key = DeviceKey(driver, pool, device)
            if self.get(key, now) != health or key not in self._known:
                changed.add(key)
            self._known[key] = _Known(health, now)
        return frozenset(changed) | self.expire(now)

    def expire(self, now: datetime) -> frozenset[DeviceKey]:
        """Remove expired reports; return the devices that became Unknown."""
        late = [key for key, known in self._known.items() if known.current(now) is not known.health]
        for key in late:
            del self._known[key]
        return frozenset(late)

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
            self._known = dict(_from_wire(orjson.loads(content)))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"damaged health state: {error}") from error


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
