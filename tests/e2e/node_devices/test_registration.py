"""Both ways of registering, both orders, and who is refused."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Sequence

import grpc.aio
import pytest

from dray.driver.device_plugin import Device
from dray.lib.clock import Clock
from dray.node.devices.device_manager import DeviceSettings
from dray.node.plugins.plugin_manager import PluginManager
from dray.rpc.dra_services import DEVICE_PLUGIN
from dray.rpc.pb.deviceplugin.v1beta1 import api_pb2 as pb
from dray.rpc.pb.deviceplugin.v1beta1.api_pb2_grpc import add_DevicePluginServicer_to_server
from dray.runtime.metrics import Metrics
from dray.runtime.system import SystemClock
from tests.e2e.node_devices.harness import Foo, node, plugin, raw_server, task, until
from tests.e2e.node_devices.servicer import Raw
from tests.unit.node.devices.builders import FOO, asking


async def refused(work: Awaitable[object]) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await work
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    return caught.value.details() or ""


@pytest.mark.behaviour("DP-01")
async def test_starting_removes_sockets_and_keeps_other_files(folder: str) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(os.path.join(folder, "stale.sock"))
    stale.close()
    for name in ("kubelet_internal_checkpoint", "notes"):
        os.close(os.open(os.path.join(folder, name), os.O_CREAT | os.O_WRONLY))
    async with node(folder):
        assert sorted(os.listdir(folder)) == ["kubelet.sock", "kubelet_internal_checkpoint", "notes"]
        assert os.stat(folder).st_mode & 0o777 == 0o750


@pytest.mark.behaviour("DP-03", "DP-04", "DP-14")
async def test_refused_registrations_are_reported_and_counted(folder: str) -> None:
    async with node(folder) as here:
        assert await refused(here.call_register(version="v1alpha")) == (
            'requested API version "v1alpha" is not supported by kubelet. Supported version is ["v1beta1"]'
        )
        assert await refused(here.call_register(resource_name="foo")) == 'the ResourceName "foo" is invalid'
        counted = "kubelet_device_plugin_registration_total"
        assert here.metrics.value(counted, {"resource_name": FOO}) == 1
        assert here.metrics.value(counted, {"resource_name": "foo"}) == 1


@pytest.mark.behaviour("DP-05", "N-62", "N-63")
async def test_plugins_are_replaced_in_pairs_without_a_gap(folder: str) -> None:
    async with node(folder) as here:
        seen: set[object] = set()
        here.devices.on_change(lambda _uids: seen.add(here.amounts()))
        async with plugin(folder, Foo("a", "b"), socket_name="one.sock"):
            await here.until_amounts(2, 2)
            seen.clear()
            async with plugin(folder, Foo("a", "b"), socket_name="two.sock") as second:
                await until(lambda: here.serves("two.sock"))
                assert not second.done()
                # It changes its mind: the first takes over.
            await until(lambda: here.serves("one.sock"))
            async with plugin(folder, Foo("a", "b"), socket_name="three.sock"):
                await until(lambda: here.serves("three.sock"))
                rejection = await here.admit(asking("u1"))
                assert rejection is None
        assert seen == {("2", "2")}
        await here.until_amounts(2, 0)


@pytest.mark.behaviour("DP-05", "N-62")
async def test_the_same_endpoint_is_refused_while_its_stream_is_open(folder: str) -> None:
    raw = Raw("a", "b")
    async with node(folder) as here, raw_server(f"{folder}/foo.sock", raw, add_DevicePluginServicer_to_server):
        await here.call_register()
        await here.until_amounts(2, 2)
        assert await refused(here.call_register()) == f"device plugin already connected: {folder}/foo.sock"
        first = raw.ends
        raw.ids, raw.ends = ("x",), asyncio.Event()
        first.set()
        await here.call_register()
        await here.until_amounts(1, 1)


@pytest.mark.behaviour("N-64")
async def test_a_second_plugin_without_options_changes_nothing(folder: str) -> None:
    first, second = Raw("a", "b"), Raw("x")
    second.refuse_options = True
    async with (
        node(folder) as here,
        raw_server(f"{folder}/foo.sock", first, add_DevicePluginServicer_to_server),
        raw_server(f"{folder}/two.sock", second, add_DevicePluginServicer_to_server),
    ):
        await here.call_register()
        await here.until_amounts(2, 2)
        text = await refused(here.call_register(endpoint="two.sock"))
        assert text.startswith("failed to get device plugin options")
        assert here.amounts() == ("2", "2")
        assert here.serves("foo.sock")


@pytest.mark.behaviour("DP-06")
async def test_a_plugin_may_listen_only_after_register_answered(folder: str) -> None:
    async with node(folder) as here:
        await here.call_register()
        async with raw_server(f"{folder}/foo.sock", Raw("a"), add_DevicePluginServicer_to_server):
            await here.until_amounts(1, 1)


@pytest.mark.behaviour("DP-07")
async def test_options_are_asked_for(folder: str) -> None:
    raw = Raw("a", options=pb.DevicePluginOptions(pre_start_required=True))
    async with node(folder) as here, raw_server(f"{folder}/foo.sock", raw, add_DevicePluginServicer_to_server):
        raw.refuse_options = True
        text = "failed to get device plugin options: rpc error: code = Internal desc = not now"
        assert await refused(here.call_register()) == text
        raw.refuse_options = False
        await here.call_register(options=pb.DevicePluginOptions(get_preferred_allocation_available=True))
        await here.until_amounts(1, 1)
        # What either says counts.
        both = pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)
        endpoint = here.devices.plugin_handler.get(FOO)
        assert endpoint is not None
        assert endpoint.options == both
        raw.options = pb.DevicePluginOptions()
        first, raw.ends = raw.ends, asyncio.Event()
        first.set()
        await here.call_register(options=pb.DevicePluginOptions(pre_start_required=True))
        endpoint = here.devices.plugin_handler.get(FOO)
        assert endpoint is not None
        assert endpoint.options == pb.DevicePluginOptions(pre_start_required=True)


@pytest.mark.behaviour("DP-55")
async def test_ids_may_be_as_long_as_plugins_make_them(folder: str) -> None:
    long = "d" * 64
    raw = Raw(long, "e" * 5000)
    async with node(folder) as here, raw_server(f"{folder}/foo.sock", raw, add_DevicePluginServicer_to_server):
        await here.call_register()
        await here.until_amounts(2, 2)
    # The SDK holds its plugins to the limit of the API.
    with pytest.raises(ValueError, match="63"):
        async with node(folder), plugin(folder, Foo(long)) as serving:
            await serving


@pytest.mark.behaviour("DP-09", "DP-10", "DP-36")
async def test_the_end_of_the_stream_stops_the_plugin_for_good(folder: str) -> None:
    raw = Raw("a", "b")
    async with (
        node(folder, settings=DeviceSettings(grace_seconds=3)) as here,
        raw_server(f"{folder}/foo.sock", raw, add_DevicePluginServicer_to_server),
    ):
        await here.call_register()
        await here.until_amounts(2, 2)
        endpoint = here.devices.plugin_handler.get(FOO)
        raw.ends.set()
        await here.until_amounts(2, 0)
        rejection = await here.admit(asking("u1"))
        assert rejection is not None
        assert "no healthy devices present; cannot allocate unhealthy devices vendor.com/foo" in rejection.message
        assert endpoint is not None
        with pytest.raises(Exception, match=r"endpoint .*/foo\.sock has been stopped"):
            await endpoint.allocate(["a"])
        here.changes.clear()
        await here.until_amounts(0, 0)
        await until(lambda: () in here.changes)
        # Nobody asks for a resource that was dropped any more: it is left to others.
        assert await here.admit(asking("u2")) is None
        assert here.held("u2") == []


class CountingPlugin(Foo):
    """Counts how often its devices are listed: once for each registration."""

    lists = 0

    async def devices(self) -> Sequence[Device]:
        self.lists += 1
        return await super().devices()


@pytest.mark.behaviour("DP-12")
async def test_by_the_plugin_watcher(folder: str) -> None:
    registry_folder = os.path.join(folder, "plugins_registry")
    clock: Clock = SystemClock()
    async with node(os.path.join(folder, "device-plugins")) as here:
        registry = PluginManager(registry_folder, {DEVICE_PLUGIN: here.devices.plugin_handler}, clock, Metrics())
        async with task(registry.run()):
            await until(lambda: os.path.isdir(registry_folder))
            served = CountingPlugin("a", "b")
            async with plugin(folder, served, registry_folder=registry_folder):
                await here.until_amounts(2, 2)
                assert await here.admit(asking("u1")) is None
                # A socket that is made again is a new plugin, which has what the old one had.
                before = served.lists
                os.remove(os.path.join(registry_folder, "vendor.com_foo.sock"))
                await until(lambda: served.lists > before)
                await here.until_amounts(2, 2)
            await here.until_amounts(2, 0)
            assert here.held("u1") == ["a"]


@pytest.mark.behaviour("DP-12")
async def test_the_watcher_refuses_names_that_are_no_resource(folder: str, caplog: pytest.LogCaptureFixture) -> None:
    registry_folder = os.path.join(folder, "plugins_registry")
    os.mkdir(registry_folder)
    async with node(os.path.join(folder, "device-plugins")) as here:
        registry = PluginManager(
            registry_folder, {DEVICE_PLUGIN: here.devices.plugin_handler}, SystemClock(), Metrics()
        )
        bad = Foo("a", resource="foo")
        async with task(registry.run()), plugin(folder, bad, registry_folder=registry_folder):
            await until(lambda: 'the ResourceName "foo" is invalid' in caplog.text)
            assert registry.plugins == ()


@pytest.mark.behaviour("DP-11")
async def test_registering_again_keeps_capacity_and_assignments(folder: str) -> None:
    async with node(folder) as here:
        async with plugin(folder, Foo("a", "b")):
            await here.until_amounts(2, 2)
            assert await here.admit(asking("u1")) is None
        await here.until_amounts(2, 0)
        async with plugin(folder, Foo("a", "b")):
            await here.until_amounts(2, 2)
            assert here.held("u1") == ["a"]
            assert await here.admit(asking("u2")) is None
            assert here.held("u2") == ["b"]


@pytest.mark.behaviour("DP-01")
async def test_a_plugin_of_the_sdk_comes_back_after_a_restart_of_the_node(folder: str) -> None:
    async with plugin(folder, Foo("a")):
        for _ in range(2):
            async with node(folder) as here:
                await here.until_amounts(1, 1)
