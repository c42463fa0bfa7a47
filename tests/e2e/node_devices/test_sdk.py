"""The SDK of device plugins, and the example made with it."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import grpc.aio
import pytest

from dray.driver.device_plugin import (
    Allocation,
    Device,
    DevicePlugin,
    HostDevice,
    Mount,
    Options,
    RegistrationRefusedError,
    serve,
)
from dray.node.devices.owners import ANNOTATION
from dray.node.resource_manager import Mount as NodeMount
from dray.node.resource_manager import RunOptions
from dray.rpc.pb.deviceplugin.v1beta1 import api_pb2 as pb
from dray.rpc.pb.deviceplugin.v1beta1.api_pb2_grpc import DevicePluginStub
from dray.rpc.sockets import connect
from tests.e2e.node_devices.harness import WAIT_SECONDS, Foo, node, plugin, until
from tests.unit.node.devices.builders import FOO, asking

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "device-plugin" / "host_devices.py"


class Full(DevicePlugin):
    """Plain methods, and everything that an answer may have."""

    resource_name = FOO

    def __init__(self) -> None:
        self.threads: list[str] = []

    def devices(self) -> Sequence[Device]:
        return [Device("a", numa_nodes=(1,))]

    def allocate(self, ids: Sequence[str]) -> Allocation:
        self.threads.append(threading.current_thread().name)
        return Allocation(
            envs={"A": "1"},
            mounts=[Mount("/in", "/out", read_only=True)],
            devices=[HostDevice("/dev/x", "/dev/y", "r")],
            annotations={"k": "v"},
            cdi_devices=["v.com/c=a"],
        )


@pytest.mark.behaviour("DP-32")
async def test_everything_an_answer_has_reaches_the_container(folder: str) -> None:
    served = Full()
    async with node(folder) as here, plugin(folder, served):
        await here.until_amounts(1, 1)
        item = asking("u1")
        assert await here.admit(item) is None
        options = here.manager.container_options(item, "main")
        assert options.annotations.pop(ANNOTATION)  # type: ignore[attr-defined]
        assert options == RunOptions(
            envs={"A": "1"},
            mounts=(NodeMount("/in", "/out", read_only=True),),
            devices=options.devices,
            annotations={"k": "v"},
            cdi_devices=("v.com/c=a",),
        )
        assert [(one.container_path, one.host_path, one.permissions) for one in options.devices] == [
            ("/dev/x", "/dev/y", "r")
        ]
        assert served.threads != [threading.main_thread().name]
        assert here.devices.container_devices("u1", "main")[0].numa_node == 1


async def test_calls_for_unknown_devices_are_refused(folder: str) -> None:
    async with node(folder) as here, plugin(folder, Foo("a")):
        await here.until_amounts(1, 1)
        async with connect(os.path.join(folder, "vendor.com_foo.sock")) as channel:
            stub: Any = DevicePluginStub(channel)
            request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=["a", "x"])])
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Allocate(request)
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.NOT_FOUND, "unknown device: x")


@pytest.mark.behaviour("DP-63")
async def test_a_plugin_that_the_node_refuses_ends_with_the_reason(folder: str) -> None:
    async with node(folder) as here:
        with pytest.raises(RegistrationRefusedError, match='the ResourceName "foo" is invalid'):
            await asyncio.wait_for(serve(Foo("a", resource="foo"), Options(folder=folder)), WAIT_SECONDS)
        assert os.listdir(folder) == ["kubelet.sock"]
        assert here.amounts("foo") == (None, None)


async def test_an_id_that_is_too_long_is_the_authors_mistake(folder: str) -> None:
    with pytest.raises(ValueError, match="must have 1 to 63 characters"):
        await serve(Foo("x" * 64), Options(folder=folder))


async def test_devices_that_cannot_be_listed_stay_as_they_were(folder: str, caplog: pytest.LogCaptureFixture) -> None:
    class Shaky(Foo):
        broken = False

        async def devices(self) -> Sequence[Device]:
            if self.broken:
                raise RuntimeError("bus error")
            return await super().devices()

    foo = Shaky("a")
    async with node(folder) as here, plugin(folder, foo):
        await here.until_amounts(1, 1)
        foo.broken = True
        await until(lambda: "bus error" in caplog.text)
        assert here.amounts() == ("1", "1")
        foo.broken = False
        foo.set(Device("a"), Device("b"))
        await here.until_amounts(2, 2)


@pytest.mark.behaviour("DP-63")
async def test_the_plugin_waits_for_a_node_that_comes_later(folder: str) -> None:
    async with plugin(folder, Foo("a")):
        await until(lambda: os.path.exists(os.path.join(folder, "vendor.com_foo.sock")))
        async with node(folder) as here:
            await here.until_amounts(1, 1)
    assert "vendor.com_foo.sock" not in os.listdir(folder)


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("host_devices", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_is_small() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 100


def test_a_device_whose_file_is_gone_is_unhealthy(tmp_path: Path) -> None:
    link = tmp_path / "null0"
    link.symlink_to("/dev/null")
    (tmp_path / "null1").write_text("no device")
    found = example().HostDevices("example.com/null", f"{tmp_path}/null*")
    names = [str(path).replace("/", "_") for path in (link, tmp_path / "null1")]
    assert list(found.devices()) == [Device(names[0]), Device(names[1], healthy=False)]
    link.unlink()
    assert list(found.devices()) == [Device(names[0], healthy=False), Device(names[1], healthy=False)]


async def test_the_example_runs(folder: str) -> None:
    arguments = ["--resource", "example.com/memory-files", "--pattern", "/dev/[nz]*[lo]", "--folder", folder]
    process = await asyncio.create_subprocess_exec(sys.executable, str(EXAMPLE), *arguments, "--poll-seconds", "0.1")
    resource = "example.com/memory-files"
    try:
        async with node(folder) as here:
            await until(lambda: int(here.amounts(resource)[1] or 0) >= 2)
            item = asking("u1", 1, resource)
            assert await here.admit(item) is None
            assert here.held("u1") == ["null"]
            options = here.manager.container_options(item, "main")
            assert options.envs == {"MEMORY_FILES_DEVICES": "/dev/null"}
            assert [one.host_path for one in options.devices] == ["/dev/null"]
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 30) == 0
            await until(lambda: here.amounts(resource)[1] == "0")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
