"""Registers device plugins, by both kinds of registration, and watches their devices.

Both orders are supported: Kubernetes' plugins listen before they call Register, those of KEP-3573 after its response.
Several plugins may serve a resource, each at its own socket: each is called about the devices that belong to it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Protocol

from dray.lib.clock import Clock
from dray.node.devices.endpoint import Endpoint, EndpointError
from dray.node.devices.inventory import ConnectedError, Inventory, Session
from dray.node.devices.servicer import RegistrationError, check_plugin
from dray.node.plugins.handler import Plugin, PluginError
from dray.rpc.liveness import is_greeted
from dray.rpc.pb.deviceplugin.v1beta1 import api_pb2 as pb
from dray.runtime.logs import fields
from dray.runtime.tasks import TaskGroup, pause

_log = logging.getLogger(__name__)

DIAL_TIMEOUT_SECONDS: Final = 10.0
# A plugin that has been replaced at its own path is noticed to be gone within this time.
REPLACE_WAIT_SECONDS: Final = 1.0
# Plugins that already listen are connected at once; for others Register returns after this time, and dialling goes on.
REGISTER_WAIT_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Liveness:
    """How often it is checked that a plugin's process answers, and how long it may take."""

    period_seconds: float = 10.0
    late_seconds: float = 20.0


DEFAULT_LIVENESS: Final = Liveness()


class OnDevices(Protocol):
    """Called with the devices of a resource whose health changed; `save` if the plugin reported them."""

    async def __call__(self, resource: str, ids: frozenset[str], *, save: bool) -> None:
        """Handle the change."""


# The reasons of the node's Warning events about plugins.
LISTED_TWICE: Final = "DeviceListedTwice"
NOT_USED: Final = "DevicePluginNotUsed"
# How many devices an event names.
NAMED_MAX: Final = 10


class DevicePluginHandler:
    """The connected device plugins; updates the inventory. `warn` records an event of the node."""

    def __init__(
        self,
        inventory: Inventory,
        clock: Clock,
        on_devices: OnDevices,
        liveness: Liveness = DEFAULT_LIVENESS,
        warn: Callable[[str, str], None] = lambda _reason, _message: None,
    ) -> None:
        self._inventory = inventory
        self._clock = clock
        self._on_devices = on_devices
        self._liveness = liveness
        self._warn = warn
        # By resource and path, oldest first; the last one stays when it has stopped, until it is replaced.
        self._endpoints: dict[str, dict[str, Endpoint]] = {}
        # Set when a session has ended.
        self._ended = asyncio.Event()
        # Set by the owner while plugins can register.
        self.group: TaskGroup | None = None

    def owner(self, resource: str, device_id: str) -> Endpoint | None:
        """Return the plugin to which the device belongs; None while no plugin lists it that is or was connected.

        A device that nobody lists any more is for the newest plugin, once all have said what they have.
        """
        path = self._inventory.endpoint_of(resource, device_id)
        if path is not None:
            return self._endpoints.get(resource, {}).get(path)
        return self.get(resource) if self._inventory.all_listed(resource) else None

    def at(self, resource: str, path: str) -> Endpoint | None:
        """Return the plugin at the path."""
        return self._endpoints.get(resource, {}).get(path)

    def get(self, resource: str) -> Endpoint | None:
        """Return the newest plugin that serves the resource and answers, or else the newest, or who last did."""
        newest_first = list(reversed(self._endpoints.get(resource, {}).values()))
        return next((item for item in newest_first if item.usable), newest_first[0] if newest_first else None)

    async def stop(self) -> None:
        """Close the connections to all plugins."""
        for endpoint in [item for items in self._endpoints.values() for item in items.values()]:
            await endpoint.stop()

    async def connect(self, resource: str, path: str, options: pb.DevicePluginOptions) -> None:
        """Connect to a plugin that called Register; raises `RegistrationError`.

        A plugin without a socket is one that listens only when Register has returned.
        """
        await self._wait_until_free(resource, path)
        endpoint = Endpoint(resource, path, options)
        if await endpoint.dial(REGISTER_WAIT_SECONDS):
            await self._adopt(endpoint)
        elif os.path.lexists(path):  # noqa: ASYNC240 - one look at a file of the machine
            await self._dial_and_adopt(endpoint)
        else:
            self._spawn(self._connect_later(endpoint), f"dialling {path}")

    # The handler of plugins of type `DevicePlugin`.

    def validate(self, plugin: Plugin) -> None:
        """Raise `PluginError` if the version is not supported or the name is not an extended resource."""
        try:
            check_plugin(plugin.name, plugin.versions)
        except RegistrationError as error:
            raise PluginError(str(error)) from error

    async def register(self, plugin: Plugin) -> None:
        """Connect to a plugin that the plugin manager found."""
        if self.group is None:
            raise PluginError("device plugins cannot be registered yet")
        try:
            await self._wait_until_free(plugin.name, plugin.endpoint)
            await self._dial_and_adopt(Endpoint(plugin.name, plugin.endpoint))
        except RegistrationError as error:
            raise PluginError(str(error)) from error

    async def deregister(self, plugin: Plugin) -> None:
        """Close the connection to a plugin whose registration socket is gone."""
        endpoint = self._endpoints.get(plugin.name, {}).get(plugin.endpoint)
        if endpoint is not None:
            await endpoint.stop()

    # Internal.

    async def _connect_later(self, endpoint: Endpoint) -> None:
        try:
            await self._dial_and_adopt(endpoint)
        except RegistrationError as error:
            _log.warning("device plugin not used: %s", error, extra=fields(resource=endpoint.resource))
            self._warn(NOT_USED, f"the device plugin of {endpoint.resource} at {endpoint.path} is not used: {error}")

    async def _dial_and_adopt(self, endpoint: Endpoint) -> None:
        if not await endpoint.dial(DIAL_TIMEOUT_SECONDS):
            await endpoint.stop()
            raise RegistrationError(f"failed to dial device plugin at {endpoint.path}: context deadline exceeded")
        await self._adopt(endpoint)

    async def _adopt(self, endpoint: Endpoint) -> None:
        """Use the plugin, beside others of the resource."""
        resource = endpoint.resource
        try:
            await endpoint.fetch_options()
            session = self._inventory.opened(resource, endpoint.path)
        except (EndpointError, ConnectedError) as error:
            await endpoint.stop()
            raise RegistrationError(str(error)) from error
        others = self._endpoints.get(resource, {})
        before = others.get(endpoint.path)
        kept = {path: item for path, item in others.items() if item is not before and not item.stopped}
        self._endpoints[resource] = {**kept, endpoint.path: endpoint}
        self._spawn(self._follow(endpoint, session), f"device plugin {resource}")
        if before is not None:
            await before.stop()
        _log.info("device plugin registered", extra=fields(resource=resource, endpoint=endpoint.path))

    async def _wait_until_free(self, resource: str, path: str) -> None:
        """Return when no plugin at the path is connected; raises `RegistrationError` if one is and stays."""
        deadline = self._clock.monotonic() + REPLACE_WAIT_SECONDS
        while self._inventory.is_connected(resource, path):
            left = deadline - self._clock.monotonic()
            if left <= 0:
                raise RegistrationError(f"device plugin already connected: {path}")
            self._ended.clear()
            await pause(self._clock, self._ended, left)

    async def _follow(self, endpoint: Endpoint, session: Session) -> None:
        """Update the plugin's devices until its stream ends."""
        resource = endpoint.resource
        try:
            async with TaskGroup(f"device plugin {resource}") as group:
                group.spawn(self._watch_liveness(endpoint, session), f"liveness of {endpoint.path}")
                warned = False
                async for devices in endpoint.watch():
                    changed = self._inventory.update_devices(resource, session, devices)
                    if changed is not None:
                        await self._on_devices(resource, changed, save=True)
                    warned = warned or self._warn_of_rivals(endpoint, session)
        except EndpointError as error:
            _log.warning("%s", error, extra=fields(resource=resource))
        finally:
            changed = self._inventory.closed(resource, session, self._clock.monotonic())
            self._ended.set()
            endpoints = self._endpoints.get(resource, {})
            if endpoints.get(endpoint.path) is endpoint and len(endpoints) > 1:
                del endpoints[endpoint.path]
            if changed is not None:
                await self._on_devices(resource, changed, save=False)
            await endpoint.stop()

    def _warn_of_rivals(self, endpoint: Endpoint, session: Session) -> bool:
        """Record an event if the plugin lists devices that belong to another one; return whether it does."""
        rivals = self._inventory.listed_by_others(endpoint.resource, session)
        if rivals:
            shown = ", ".join([*list(rivals)[:NAMED_MAX], *(["..."] if len(rivals) > NAMED_MAX else [])])
            others = ", ".join(sorted(set(rivals.values())))
            self._warn(
                LISTED_TWICE,
                f"the device plugin of {endpoint.resource} at {endpoint.path} lists devices of the plugin at {others}, "
                f"which keeps them until it ends: {shown}",
            )
        return bool(rivals)

    async def _watch_liveness(self, endpoint: Endpoint, session: Session) -> None:
        """Suspend the session while the plugin's process does not answer."""

        def suspend() -> None:
            self._spawn(self._suspend(endpoint, session, suspended=True), f"suspension of {endpoint.path}")

        while True:
            await self._clock.sleep(self._liveness.period_seconds)
            if await is_greeted(endpoint.path, self._liveness.late_seconds, suspend):
                await self._suspend(endpoint, session, suspended=False)

    async def _suspend(self, endpoint: Endpoint, session: Session, *, suspended: bool) -> None:
        changed = self._inventory.suspend(endpoint.resource, session, suspended=suspended)
        if changed is None:
            return
        if suspended:
            endpoint.stall()
        else:
            endpoint.resume()
        text = "device plugin does not answer" if suspended else "device plugin answers again"
        _log.warning(text, extra=fields(resource=endpoint.resource, endpoint=endpoint.path))
        await self._on_devices(endpoint.resource, changed, save=False)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        if self.group is None:
            work.close()
        else:
            self.group.spawn(work, name)
