"""Which service of a driver to speak, and which of its instances to use.

Pure. During a rolling update two instances of a driver are registered: the newest connected one is used, and when
none is connected the newest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from dray.node.plugins.handler import Plugin, PluginError

V1: Final = "v1.DRAPlugin"
V1BETA1: Final = "v1beta1.DRAPlugin"
SERVICES: Final = (V1, V1BETA1)


class Connected(Protocol):
    """An instance of a driver."""

    @property
    def connected(self) -> bool:
        """Whether its socket answers."""


I = TypeVar("I", bound=Connected)  # noqa: E741 - an instance


@dataclass(frozen=True, slots=True)
class _Instance(Generic[I]):
    endpoint: str
    value: I


def choose_service(plugin: Plugin) -> str:
    """The first service in the plugin's own order that we speak too."""
    text = f"invalid supported gRPC versions of DRA driver plugin {plugin.name} at endpoint {plugin.endpoint}: "
    if not plugin.versions:
        raise PluginError(f"{text}empty list of supported gRPC services (aka supported versions)")
    for service in plugin.versions:
        if service in SERVICES:
            return service
    raise PluginError(
        f"{text}none of services supported by the plugin ({_go_list(plugin.versions)}) "
        f"are supported by the kubelet ({_go_list(SERVICES)})"
    )


def _go_list(items: Sequence[str]) -> str:
    """As Go's %q writes a list of texts."""
    quoted = " ".join(f'"{item}"' for item in items)
    return f"[{quoted}]"


class Instances(Generic[I]):
    """The registered instances of all drivers, in the order of their registration."""

    def __init__(self) -> None:
        self._by_driver: dict[str, list[_Instance[I]]] = {}

    def add(self, driver: str, endpoint: str, value: I) -> None:
        """Note a new instance; one cannot take another's endpoint."""
        if self.find(driver, endpoint) is not None:
            raise PluginError(f"endpoint {endpoint} already registered for DRA driver plugin {driver}")
        self._by_driver.setdefault(driver, []).append(_Instance(endpoint, value))

    def find(self, driver: str, endpoint: str) -> I | None:
        """The instance at the endpoint."""
        found = (item.value for item in self._by_driver.get(driver, ()) if item.endpoint == endpoint)
        return next(found, None)

    def remove(self, driver: str, endpoint: str) -> I | None:
        """Forget an instance; returns it when it was known."""
        value = self.find(driver, endpoint)
        rest = [item for item in self._by_driver.get(driver, ()) if item.endpoint != endpoint]
        if rest:
            self._by_driver[driver] = rest
        else:
            self._by_driver.pop(driver, None)
        return value

    def get(self, driver: str) -> I | None:
        """The instance to use."""
        newest_first = [item.value for item in reversed(self._by_driver.get(driver, ()))]
        connected = (value for value in newest_first if value.connected)
        return next(connected, newest_first[0] if newest_first else None)

    def usable(self, driver: str) -> bool:
        """Whether any instance of the driver is connected."""
        return any(item.value.connected for item in self._by_driver.get(driver, ()))

    def values(self) -> tuple[I, ...]:
        """Every instance."""
        return tuple(item.value for driver in sorted(self._by_driver) for item in self._by_driver[driver])
