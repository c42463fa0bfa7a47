"""Takes in device plugins, by either way of registration, and follows the devices they tell of.

Both orders work: Kubernetes' plugins listen before they call Register, those of KEP-3573 once it has answered. A
resource is served by one plugin; another endpoint is refused while that one's stream lives.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from dray.lib.clock import Clock
from dray.node.devices.endpoint import Endpoint, EndpointError
from dray.node.devices.inventory import Inventory, Session, TakenError
from dray.node.devices.servicer import RegistrationError, check_plugin
from dray.node.plugins.handler import Plugin, PluginError
from dray.runtime.logs import fields
from dray.runtime.tasks import TaskGroup

_log = logging.getLogger(__name__)

DIAL_TIMEOUT_SECONDS: Final = 10.0
# Plugins that listen already are found at once; for the others Register answers after this time, dialling goes on.
REGISTER_WAIT_SECONDS: Final = 1.0


class OnDevices(Protocol):
    """Hears of a resource's devices whose health is another; `save` when the plugin told of them."""

    async def __call__(self, resource: str, ids: frozenset[str], *, save: bool) -> None:
        """Take it in."""


class DevicePluginHandler:
    """The connected plugins; changes the inventory as they come, tell of devices, and go."""

    def __init__(self, inventory: Inventory, clock: Clock, on_devices: OnDevices) -> None:
        self._inventory = inventory
        self._clock = clock
        self._on_devices = on_devices
        # By resource; one that has stopped stays until the next.
        self._endpoints: dict[str, Endpoint] = {}
        # Set while plugins can register; its owner runs it.
        self.group: TaskGroup | None = None

    def get(self, resource: str) -> Endpoint | None:
        """The plugin that serves the resource or last did."""
        return self._endpoints.get(resource)

    async def stop(self) -> None:
        """Give up all plugins."""
        for endpoint in self._endpoints.values():
            await endpoint.stop()

    async def connect(self, resource: str, path: str) -> None:
        """Take in a plugin that called Register; raises `RegistrationError`."""
        self._check_free(resource, path)
        endpoint = Endpoint(resource, path)
        if await endpoint.dial(REGISTER_WAIT_SECONDS):
            await self._adopt(endpoint)
        else:
            self._spawn(self._connect_later(endpoint), f"dialling {path}")

    # The handler of plugins of type `DevicePlugin`.

    def validate(self, plugin: Plugin) -> None:
        """Raise when the plugin speaks another version or its name is no extended resource."""
        try:
            check_plugin(plugin.name, plugin.versions)
        except RegistrationError as error:
            raise PluginError(str(error)) from error

    async def register(self, plugin: Plugin) -> None:
        """Use a plugin found by its socket in the registration folder."""
        if self.group is None:
            raise PluginError("device plugins cannot be registered yet")
        try:
            self._check_free(plugin.name, plugin.endpoint)
            await self._dial_and_adopt(Endpoint(plugin.name, plugin.endpoint))
        except RegistrationError as error:
            raise PluginError(str(error)) from error

    async def deregister(self, plugin: Plugin) -> None:
        """The plugin's registration socket is gone: it is not used any more."""
        endpoint = self._endpoints.get(plugin.name)
        if endpoint is not None and endpoint.path == plugin.endpoint:
            await endpoint.stop()

    # Inside.

    async def _connect_later(self, endpoint: Endpoint) -> None:
        try:
            await self._dial_and_adopt(endpoint)
        except RegistrationError as error:
            _log.warning("device plugin not used: %s", error, extra=fields(resource=endpoint.resource))

    async def _dial_and_adopt(self, endpoint: Endpoint) -> None:
        if not await endpoint.dial(DIAL_TIMEOUT_SECONDS):
            await endpoint.stop()
            raise RegistrationError("failed to dial device plugin: context deadline exceeded")
        await self._adopt(endpoint)

    async def _adopt(self, endpoint: Endpoint) -> None:
        """Use the plugin from now on, in place of one before."""
        resource = endpoint.resource
        try:
            await endpoint.fetch_options()
            session = self._inventory.opened(resource, endpoint.path)
        except (EndpointError, TakenError) as error:
            await endpoint.stop()
            raise RegistrationError(str(error)) from error
        before = self._endpoints.get(resource)
        self._endpoints[resource] = endpoint
        self._spawn(self._follow(endpoint, session), f"device plugin {resource}")
        if before is not None:
            await before.stop()
        _log.info("device plugin registered", extra=fields(resource=resource, endpoint=endpoint.path))

    def _check_free(self, resource: str, path: str) -> None:
        try:
            self._inventory.check_free(resource, path)
        except TakenError as error:
            raise RegistrationError(str(error)) from error

    async def _follow(self, endpoint: Endpoint, session: Session) -> None:
        """Take in the plugin's devices until its stream ends, which is its end."""
        resource = endpoint.resource
        try:
            async for devices in endpoint.watch():
                changed = self._inventory.told(resource, session, devices)
                if changed is not None:
                    await self._on_devices(resource, changed, save=True)
        except EndpointError as error:
            _log.warning("%s", error, extra=fields(resource=resource))
        finally:
            changed = self._inventory.closed(resource, session, self._clock.monotonic())
            if changed is not None:
                await self._on_devices(resource, changed, save=False)
            await endpoint.stop()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        if self.group is None:
            work.close()
        else:
            self.group.spawn(work, name)
