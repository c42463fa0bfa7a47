"""Plugins register over real sockets, fail, come back and go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dray.node.plugins.handler import Plugin, PluginError
from dray.node.plugins.plugin_manager import PluginManager
from dray.rpc.pb.plugin_registration.v1.api_pb2 import PluginInfo
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup
from tests.e2e.driver.cluster import CLOCK, Cluster, Node, short_folder, until
from tests.e2e.driver.servicer import FakeDriver


@pytest.mark.behaviour("SP-126", "SP-127")
async def test_sockets_that_appear_are_registered_and_hidden_ones_are_not(node: Node) -> None:
    folder = node.root / "plugins_registry"
    driver, hidden, nested = FakeDriver("a.example.com"), FakeDriver("b.example.com"), FakeDriver("c.example.com")
    async with (
        hidden.registered_at(folder / ".hidden.sock"),
        nested.registered_at(folder / "sub" / "any.sock"),
        driver.running(node.root),
    ):
        assert await driver.status() == (True, "")
        assert await nested.status() == (True, "")
        await until(lambda: node.drivers() == ["a.example.com", "c.example.com"])
        # An empty endpoint means the registration socket itself.
        assert [plugin.endpoint for plugin in node.plugins.plugins] == [
            str(node.root / "plugins/a.example.com/dra.sock"),
            str(folder / "sub/any.sock"),
        ]
    await until(lambda: node.drivers() == [])
    assert hidden.statuses.empty()


class Handler:
    """Notes what it is asked; fails a given number of times."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.validate_failures = self.register_failures = 0

    def validate(self, plugin: Plugin) -> None:
        self.notes.append(f"validate {plugin.name}")
        if self.validate_failures:
            self.validate_failures -= 1
            raise PluginError("not valid")

    async def register(self, plugin: Plugin) -> None:
        self.notes.append(f"register {plugin.name}")
        if self.register_failures:
            self.register_failures -= 1
            raise PluginError("not possible")

    async def deregister(self, plugin: Plugin) -> None:
        self.notes.append(f"deregister {plugin.name}")


@pytest.mark.behaviour("SP-126")
async def test_sockets_present_at_the_start_are_picked_up() -> None:
    handler, driver = Handler(), FakeDriver("d", kind="DevicePlugin")
    with short_folder() as folder:
        async with driver.registered_at(folder / "r" / "d.sock"), TaskGroup() as group:
            registry = PluginManager(str(folder / "r"), {"DevicePlugin": handler}, CLOCK, Metrics())
            group.spawn(registry.run(), "registry")
            assert await driver.status() == (True, "")
            await until(lambda: registry.plugins)
    assert handler.notes == ["validate d", "register d"]


@pytest.mark.behaviour("SP-128", "SP-131")
async def test_registration_failures_are_sent_to_the_plugin_and_retried() -> None:
    handler, driver = Handler(), FakeDriver("d")
    handler.validate_failures = handler.register_failures = 1
    unknown = FakeDriver("u", kind="CSIPlugin")
    with short_folder() as folder:
        path = folder / "u.sock"
        async with driver.registered_at(folder / "d.sock"), unknown.registered_at(path), TaskGroup() as group:
            registry = PluginManager(str(folder), {"DRAPlugin": handler}, CLOCK, Metrics())
            group.spawn(registry.run(), "registry")
            assert await driver.status() == (
                False,
                "RegisterPlugin error -- plugin validation failed with err: not valid",
            )
            assert await driver.status() == (
                False,
                "RegisterPlugin error -- plugin registration failed with err: not possible",
            )
            assert await driver.status() == (True, "")
            for _ in range(2):
                assert await unknown.status() == (
                    False,
                    f"RegisterPlugin error -- no handler registered for plugin type: CSIPlugin at socket {path}",
                )
            await until(lambda: registry.plugins)
    assert handler.notes == ["validate d", "validate d", "register d", "validate d", "register d"]


@pytest.mark.behaviour("SP-129")
async def test_a_plugin_that_cannot_be_notified_is_dropped_and_retried() -> None:
    handler, driver = Handler(), FakeDriver("d")
    driver.notify_failures = 1
    with short_folder() as folder:
        async with driver.registered_at(folder / "d.sock"), TaskGroup() as group:
            registry = PluginManager(str(folder), {"DRAPlugin": handler}, CLOCK, Metrics())
            group.spawn(registry.run(), "registry")
            assert await driver.status() == (True, "")
            await until(lambda: registry.plugins)
    assert handler.notes == ["validate d", "register d", "deregister d", "validate d", "register d"]


@pytest.mark.behaviour("SP-130")
async def test_a_socket_that_is_made_again_is_deregistered_then_registered() -> None:
    handler, driver = Handler(), FakeDriver("d")
    with short_folder() as folder:
        registry = PluginManager(str(folder), {"DRAPlugin": handler}, CLOCK, Metrics())
        async with TaskGroup() as group:
            group.spawn(registry.run(), "registry")
            for _ in range(2):
                async with driver.registered_at(folder / "d.sock"):
                    registry.rescan()
                    assert await driver.status() == (True, "")
            await until(lambda: len(handler.notes) == 6)
    assert handler.notes == ["validate d", "register d", "deregister d"] * 2


@pytest.mark.behaviour("SP-131")
async def test_the_metric_counts_wanted_and_registered_sockets(node: Node) -> None:
    path = node.root / "plugins_registry" / "test.example.com-reg.sock"

    def shown(state: str) -> float | None:
        wanted = {"socket_path": str(path), "state": state}
        families = [family for family in node.metrics.families() if family.name == "plugin_manager_total_plugins"]
        return next((value for family in families for _, labels, value in family.samples if labels == wanted), None)

    async with FakeDriver().running(node.root) as driver:
        await driver.status()
        await until(lambda: (shown("desired_state_of_world"), shown("actual_state_of_world")) == (1, 1))
    await until(lambda: (shown("desired_state_of_world"), shown("actual_state_of_world")) == (None, None))


@pytest.mark.behaviour("SP-127")
async def test_a_plugin_that_does_not_answer_in_time_is_tried_again(cluster: Cluster, node: Node) -> None:
    driver = FakeDriver()
    slow = asyncio.Event()
    answer = driver.GetInfo

    async def get_info(request: Any, context: Any) -> PluginInfo:
        if not slow.is_set():
            slow.set()
            await asyncio.Event().wait()
        return await answer(request, context)

    driver.GetInfo = get_info  # type: ignore[method-assign]
    async with driver.running(node.root):
        assert await driver.status() == (True, "")
