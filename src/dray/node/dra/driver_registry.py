"""Keeps the connections to registered instances, each with the tasks that follow it, until they are deregistered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dray.node.dra.driver_client import PluginClient
from dray.node.dra.drivers.choice import Instances
from dray.node.plugins.handler import Plugin
from dray.runtime.tasks import TaskGroup

C = TypeVar("C", bound=PluginClient)


@dataclass(slots=True)
class _Instance(Generic[C]):
    connection: C
    tasks: tuple[asyncio.Task[Any], ...] = ()

    @property
    def connected(self) -> bool:
        return self.connection.connected


class DriverRegistry(Generic[C]):
    """The instances of all drivers of a kind; they come and go only while it is `running`."""

    def __init__(self) -> None:
        self._instances: Instances[_Instance[C]] = Instances()
        self._group: TaskGroup | None = None
        self._running = asyncio.Event()

    @asynccontextmanager
    async def running(self, name: str) -> AsyncIterator[TaskGroup]:
        """Let instances come, and give their tasks' group for others; at the end every connection is closed."""
        async with TaskGroup(name) as group:
            self._group = group
            self._running.set()
            try:
                yield group
            finally:
                self._group = None
                self._running.clear()
                for instance in self._instances.values():
                    await instance.connection.close()

    async def wait_running(self) -> None:
        """Return when instances may come."""
        await self._running.wait()

    async def add(self, connection: C, followers: Iterable[Coroutine[Any, Any, None]] = ()) -> None:
        """Use the instance from now on, if it is connected, and keep the followers and its state going."""
        assert self._group is not None, "not running"
        instance = _Instance(connection)
        work = (connection.watch_state(), *followers)
        try:
            self._instances.add(connection.driver, connection.endpoint, instance)
        except Exception:
            for each in work:
                each.close()
            await connection.close()
            raise
        instance.tasks = tuple(self._group.spawn(each, f"driver {connection.driver}") for each in work)

    async def remove(self, plugin: Plugin) -> None:
        """Give up the instance; calls under way fail and are made again elsewhere."""
        instance = self._instances.remove(plugin.name, plugin.endpoint)
        if instance is None:
            return
        for task in instance.tasks:
            task.cancel()
        await asyncio.gather(*instance.tasks, return_exceptions=True)
        await instance.connection.close()

    def get(self, driver: str) -> C | None:
        """The connection to use."""
        instance = self._instances.get(driver)
        return None if instance is None else instance.connection

    def usable(self, driver: str) -> bool:
        """Whether any instance of the driver is connected."""
        return self._instances.usable(driver)
