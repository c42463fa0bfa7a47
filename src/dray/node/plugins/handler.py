"""The seam between plugin registration and what plugins are for: DRA drivers, device plugins, classic drivers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

DRA_PLUGIN: Final = "DRAPlugin"
DEVICE_PLUGIN: Final = "DevicePlugin"
# The classic API of cdi.k8s.io calls its drivers so.
RESOURCE_PLUGIN: Final = "ResourcePlugin"


@dataclass(frozen=True, slots=True)
class Plugin:
    """What a plugin said of itself; `endpoint` is never empty."""

    type: str
    name: str
    endpoint: str
    versions: tuple[str, ...]
    # The registration socket it was found at; two plugins never share one.
    socket_path: str


class PluginError(Exception):
    """A plugin that cannot be used; the text is told to it."""


class PluginHandler(Protocol):
    """Takes in plugins of one type.

    Calls for one socket come one after another: validate, register, deregister. A plugin whose registration failed
    is not deregistered. `deregister` must not fail.
    """

    def validate(self, plugin: Plugin) -> None:
        """Raise `PluginError` when the plugin could never be used."""

    async def register(self, plugin: Plugin) -> None:
        """Begin to use the plugin; raise `PluginError` when that is not possible now."""

    async def deregister(self, plugin: Plugin) -> None:
        """Stop using the plugin."""
