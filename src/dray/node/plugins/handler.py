"""The interface between the plugin manager and the handlers of plugin types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Plugin:
    """The registration info of a plugin; `endpoint` is never empty."""

    type: str
    name: str
    endpoint: str
    versions: tuple[str, ...]
    # The registration socket, unique among plugins.
    socket_path: str


class PluginError(Exception):
    """A plugin that cannot be used; the message is sent to it."""


class PluginHandler(Protocol):
    """Registers plugins of one type.

    Calls for one socket are sequential: validate, register, deregister. A plugin whose registration failed is not
    deregistered. `deregister` must not fail.
    """

    def validate(self, plugin: Plugin) -> None:
        """Raise `PluginError` if the plugin can never be used."""

    async def register(self, plugin: Plugin) -> None:
        """Start to use the plugin; raises `PluginError`."""

    async def deregister(self, plugin: Plugin) -> None:
        """Stop using the plugin."""
