"""The registered instances of DRA drivers, each with its client and the tasks that follow it.

During a rolling update two instances of a driver are registered: the newest connected one is used, and if none is
connected the newest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from dray.node.dra.driver_client import PluginClient
from dray.node.plugins.handler import Plugin, PluginError
from dray.runtime.tasks import TaskGroup, cancel_and_wait


class Connected(Protocol):
    """An instance of a driver."""

    @property
    def connected(self) -> bool:
        """Whether its socket answers."""


ConnectedT = TypeVar("ConnectedT", bound=Connected)
ClientT = TypeVar("ClientT", bound=PluginClient)


class Instances(Generic[ConnectedT]):
    """The instances of all drivers by endpoint, in the order of their registration. Pure."""

    def __init__(self) -> None:
        self._by_driver: dict[str, dict[str, ConnectedT]] = {}

    def add(self, driver: str, endpoint: str, value: ConnectedT) -> None:
        """Add an instance; raises `PluginError` if the endpoint is in use."""
        if self.find(driver, endpoint) is not None:
            raise PluginError(f"endpoint {endpoint} already registered for DRA driver plugin {driver}")
        self._by_driver.setdefault(driver, {})[endpoint] = value

    def find(self, driver: str, endpoint: str) -> ConnectedT | None:
        """Return the instance at the endpoint."""
        return self._by_driver.get(driver, {}).get(endpoint)

    def remove(self, driver: str, endpoint: str) -> ConnectedT | None:
        """Remove an instance and return it."""
        instances = self._by_driver.get(driver, {})
        value = instances.pop(endpoint, None)
        if not instances:
            self._by_driver.pop(driver, None)
        return value

    def get(self, driver: str) -> ConnectedT | None:
        """Return the instance to use."""
        newest_first = list(reversed(self._by_driver.get(driver, {}).values()))
        connected = (value for value in newest_first if value.connected)
        return next(connected, newest_first[0] if newest_first else None)

    def usable(self, driver: str) -> bool:
        """Whether any instance of the driver is connected."""
        return any(value.connected for value in self._by_driver.get(driver, {}).values())

    def values(self) -> tuple[ConnectedT, ...]:
        """Return every instance."""
        return tuple(value for driver in sorted(self._by_driver) for value in self._by_driver[driver].values())


@dataclass(slots=True)
class _Instance(Generic[ClientT]):
    client: ClientT
    tasks: tuple[asyncio.Task[Any], ...] = ()

    @property
    def connected(self) -> bool:
        return self.client.connected


class DriverRegistry(Generic[ClientT]):
    """The clients of all registered instances; instances can be added while it is `running`."""

    def __init__(self) -> None:
        self._instances: Instances[_Instance[ClientT]] = Instances()
        self._group: TaskGroup | None = None
        self._running = asyncio.Event()

    @asynccontextmanager
    async def running(self, name: str) -> AsyncIterator[TaskGroup]:
        """Accept instances, and yield the group of their tasks; on leaving, every connection is closed."""
        async with TaskGroup(name) as group:
            self._group = group
            self._running.set()
            try:
                yield group
            finally:
                self._group = None
                self._running.clear()
                for instance in self._instances.values():
                    await instance.client.close()

    async def wait_running(self) -> None:
        """Return when instances can be added."""
        await self._running.wait()

    async def add(self, client: ClientT, followers: Iterable[Coroutine[Any, Any, None]] = ()) -> None:
        """Add an instance, and run the followers and the watch of its connection until it is removed."""
        assert self._group is not None, "not running"
        instance = _Instance(client)
        work = (client.watch_state(), *followers)
        try:
            self._instances.add(client.driver, client.endpoint, instance)
        except Exception:
            for each in work:
                each.close()
            await client.close()
            raise
        instance.tasks = tuple(self._group.spawn(each, f"driver {client.driver}") for each in work)

    async def remove(self, plugin: Plugin) -> None:
        """Remove an instance; its pending calls fail and are retried with another one."""
        instance = self._instances.remove(plugin.name, plugin.endpoint)
        if instance is None:
            return
        await cancel_and_wait(instance.tasks)
        await instance.client.close()

    def get(self, driver: str) -> ClientT | None:
        """Return the client to use."""
        instance = self._instances.get(driver)
        return None if instance is None else instance.client

    def usable(self, driver: str) -> bool:
        """Whether any instance of the driver is connected."""
        return self._instances.usable(driver)
