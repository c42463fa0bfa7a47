"""What drivers said of their devices' health, and until when it counts.

Pure; time is an argument. A report is the complete list; a device that is left out of it, or whose report is older
than its timeout (30 s unless the driver says otherwise), is Unknown.
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
# Kubernetes' limit on `resourceHealth.message`; a cut text ends in dots.
MESSAGE_LENGTH_MAX: Final = 1024
_DOTS: Final = "..."
_NANOSECONDS: Final = 1_000_000_000


class Health(enum.StrEnum):
    """As `allocatedResourcesStatus` has it."""

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
    """A device's health and how long that counts without being said again."""

    health: Health = Health.UNKNOWN
    message: str = ""
    timeout_seconds: int = TIMEOUT_SECONDS

    @classmethod
    def reported(cls, health: Health, message: str, timeout_seconds: int) -> DeviceHealth:
        """As a driver reports it."""
        return cls(health, shorten(message), timeout_seconds if timeout_seconds > 0 else TIMEOUT_SECONDS)


@dataclass(frozen=True, slots=True)
class _Known:
    health: DeviceHealth
    updated: datetime

    def current(self, now: datetime) -> DeviceHealth:
        late = now - self.updated > timedelta(seconds=self.health.timeout_seconds)
        return DeviceHealth(timeout_seconds=self.health.timeout_seconds) if late else self.health


def shorten(message: str) -> str:
    """The message, cut to the length the API allows."""
    if len(message) <= MESSAGE_LENGTH_MAX:
        return message
    return message[: MESSAGE_LENGTH_MAX - len(_DOTS)] + _DOTS


class HealthCache:
    """The health of all devices; `changed` names those whose health is told differently from now on."""

    def __init__(self) -> None:
        self._known: dict[DeviceKey, _Known] = {}

    def get(self, key: DeviceKey, now: datetime) -> DeviceHealth:
        """The device's health now; Unknown when nothing counts."""
        known = self._known.get(key)
        return DeviceHealth() if known is None else known.current(now)

    def report(
        self, driver: str, devices: Mapping[tuple[str, str], DeviceHealth], now: datetime
    ) -> frozenset[DeviceKey]:
        """The driver's complete list; returns what changed. Devices left out keep their report until it expires."""
        changed = set()
        for (pool, device), health in devices.items():
            key = DeviceKey(driver, pool, device)
            if self.get(key, now) != health or key not in self._known:
                changed.add(key)
            self._known[key] = _Known(health, now)
        return frozenset(changed) | self.expire(now)

    def expire(self, now: datetime) -> frozenset[DeviceKey]:
        """Forget what no longer counts; returns the devices that are Unknown because of it."""
        late = [key for key, known in self._known.items() if known.current(now) is not known.health]
        for key in late:
            del self._known[key]
        return frozenset(late)

    def clear(self, driver: str) -> frozenset[DeviceKey]:
        """The driver's stream has ended: nothing it said counts any more."""
        gone = [key for key in self._known if key.driver == driver]
        for key in gone:
            del self._known[key]
        return frozenset(gone)

    def next_expiry(self) -> datetime | None:
        """When the next report expires."""
        return min(
            (known.updated + timedelta(seconds=known.health.timeout_seconds) for known in self._known.values()),
            default=None,
        )

    def encode(self) -> bytes:
        """As kubelet writes it to `dra_health_state`."""
        drivers: dict[str, dict[str, dict[str, Any]]] = {}
        for key in sorted(self._known):
            devices = drivers.setdefault(key.driver, {"Devices": {}})["Devices"]
            devices[f"{key.pool}/{key.device}"] = _to_wire(key, self._known[key])
        return orjson.dumps(drivers)

    def restore(self, content: bytes) -> None:
        """Take in an encoded cache; raises ValueError when it is damaged, which costs nothing but the health."""
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
