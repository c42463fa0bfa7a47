"""Two plugins of one resource that know nothing of each other, by their messages alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator

import grpc.aio
import pytest

from dray.node.devices.device_manager import DeviceSettings
from dray.rpc.pb.deviceplugin.v1beta1.api_pb2_grpc import add_DevicePluginServicer_to_server
from tests.e2e.node_devices.harness import Node, node, raw_server, until
from tests.e2e.node_devices.servicer import Raw, Speaking
from tests.unit.node.devices.builders import FOO, asking


@contextlib.asynccontextmanager
async def registered(here: Node, raw: Speaking, amounts: tuple[int, int]) -> AsyncIterator[grpc.aio.Server]:
    async with raw_server(f"{here.folder}/{raw.name}.sock", raw, add_DevicePluginServicer_to_server) as server:
        await here.call_register(endpoint=f"{raw.name}.sock")
        await here.until_amounts(*amounts)
        yield server


@pytest.mark.behaviour("DP-56")
async def test_a_second_plugin_neither_harms_the_first_nor_serves_its_devices(folder: str) -> None:
    one, two = Speaking("v1", "d0", "d1"), Speaking("v2")
    async with node(folder, settings=DeviceSettings(grace_seconds=1)) as here:
        running = asking("u1", 2)
        async with registered(here, one, (2, 2)):
            assert await here.admit(running) is None
            async with registered(here, two, (2, 2)) as second:
                # An empty list, and one of its own: nothing happens to the first one's Pod.
                assert here.manager.check_health(running) is None
                two.list("e0")
                await here.until_amounts(3, 3)
                other = asking("u2")
                assert await here.admit(other) is None
                assert (one.allocated, two.allocated) == ([["d0", "d1"]], [["e0"]])
                assert here.manager.check_health(running) is None
                await second.stop(None)
                await here.until_amounts(3, 2)
                assert here.manager.check_health(running) is None
                assert here.devices.container_resources(other, "main") == [
                    {"name": FOO, "resources": [{"resourceID": "e0", "health": "Unknown"}]}
                ]
                await here.until_amounts(2, 2)
            # Nobody gets what only the plugin that is gone had.
            rejection = await here.admit(asking("u3"))
            assert rejection is not None
            assert two.allocated == [["e0"]]


@pytest.mark.behaviour("DP-56")
async def test_a_container_takes_devices_of_one_plugin_if_one_has_enough(folder: str) -> None:
    one = Speaking("one", "d0", pre_start_required=True)
    two = Speaking("two", "e0", "e1", get_preferred_allocation_available=True)
    async with node(folder) as here, registered(here, one, (1, 1)), registered(here, two, (3, 3)):
        assert await here.admit(asking("u2", 2)) is None
        assert (one.allocated, two.allocated) == ([], [["e0", "e1"]])
        await here.manager.release(here.pods.items["u2"])
        here.pods.remove("u2")
        # Together they have enough: each is called about its own.
        wide = asking("u3", 3)
        assert await here.admit(wide) is None
        assert (one.allocated, two.allocated[1:]) == ([["d0"]], [["e0", "e1"]])
        assert dict(here.manager.container_options(wide, "main").envs) == {
            "SHARED": "one",
            "one": "d0",
            "two": "e0,e1",
        }
        await here.manager.pre_start(wide, "main")
        assert (one.started, two.started) == ([["d0"]], [])


@pytest.mark.behaviour("DP-57")
async def test_the_first_plugin_keeps_a_device_that_two_list(folder: str) -> None:
    one, two = Speaking("one", "d0"), Speaking("two", "d0", "e0")
    warnings: list[tuple[str, str]] = []
    async with node(folder) as here:
        here.devices.on_warning(lambda reason, message: warnings.append((reason, message)))
        async with registered(here, two, (2, 2)), registered(here, one, (2, 2)) as first:
            await until(lambda: warnings)
            assert warnings == [
                (
                    "DeviceListedTwice",
                    f"the device plugin of {FOO} at {folder}/one.sock lists devices of the plugin at "
                    f"{folder}/two.sock, which keeps them until it ends: d0",
                )
            ]
            one.list("d0", unhealthy="x")
            two.list("e0", "d0")
            await here.until_amounts(3, 2)
            assert await here.admit(asking("u1", 2)) is None
            assert (one.allocated, two.allocated) == ([], [["d0", "e0"]])
            await first.stop(None)
            await here.until_amounts(3, 2)
        assert len(warnings) == 1


@pytest.mark.behaviour("DP-31", "DP-56")
async def test_a_plugin_that_ends_in_allocate_gives_nothing_and_is_called_again_when_it_is_back(folder: str) -> None:
    one = Speaking("one", "d0")
    async with node(folder) as here:
        one.dies = asyncio.Event()
        async with registered(here, one, (1, 1)) as server:
            admission = asyncio.create_task(here.admit(asking("u1")))
            await one.dies.wait()
            await server.stop(None)
            rejection = await admission
            assert rejection is not None
            assert "Unavailable" in rejection.message
        one.dies = None
        async with registered(here, one, (1, 1)):
            assert await here.admit(asking("u2")) is None
            assert one.allocated == [["d0"], ["d0"]]


@pytest.mark.behaviour("DP-02", "DP-58")
@pytest.mark.parametrize("endpoint", ["../out.sock", "/tmp/out.sock", "", ".", "link.sock", "x\0y"])
async def test_an_endpoint_outside_the_folder_is_refused(folder: str, endpoint: str) -> None:
    inner = os.path.join(folder, "device-plugins")
    async with node(inner) as here:
        os.symlink(f"{folder}/out.sock", f"{inner}/link.sock")
        async with raw_server(f"{folder}/out.sock", Raw("a"), add_DevicePluginServicer_to_server):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await here.call_register(endpoint=endpoint)
        assert caught.value.code() is grpc.StatusCode.UNKNOWN
        assert f"is not a socket in {inner}" in (caught.value.details() or "")
        assert here.amounts() == (None, None)


@pytest.mark.behaviour("DP-58")
async def test_a_socket_on_which_nobody_listens_is_refused(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dray.node.devices.plugin_handler.DIAL_TIMEOUT_SECONDS", 0.2)
    warnings: list[str] = []
    async with node(folder) as here:
        here.devices.on_warning(lambda reason, _message: warnings.append(reason))
        dead = socket.socket(socket.AF_UNIX)
        dead.bind(os.path.join(folder, "dead.sock"))
        dead.close()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await here.call_register(endpoint="dead.sock")
        assert caught.value.details() == (
            f"failed to dial device plugin at {folder}/dead.sock: context deadline exceeded"
        )
        # As the KEP has it, this one would listen after the answer; it does not, which is an event.
        await here.call_register(endpoint="never.sock")
        await until(lambda: warnings == ["DevicePluginNotUsed"])
