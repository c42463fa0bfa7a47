"""From registration to a container's options, over real sockets."""

from __future__ import annotations

import pytest

from dray.driver.device_plugin import Device
from dray.node.interface import HostDevice, Rejection
from tests.e2e.node_devices.harness import Foo, node, plugin
from tests.unit.node.devices.builders import asking


@pytest.mark.behaviour("DP-01", "DP-02", "DP-08", "DP-16", "DP-22", "DP-24")
async def test_a_container_gets_devices(folder: str) -> None:
    foo = Foo("a", "b", Device("c", healthy=False))
    async with node(folder) as here, plugin(folder, foo):
        await here.until_amounts(3, 2)
        assert await here.admit(asking("u1", 2)) is None
        assert foo.allocated == [["a", "b"]]
        options = here.manager.container_options(here.pods.items["u1"], "main")
        assert options.envs == {"FOO": "a,b"}
        assert options.devices == (HostDevice("/dev/a", "/dev/a", "rw"), HostDevice("/dev/b", "/dev/b", "rw"))
        assert await here.admit(asking("u2")) == Rejection(
            "UnexpectedAdmissionError",
            "Allocate failed due to requested number of devices unavailable for vendor.com/foo. "
            "Requested: 1, Available: 0, which is unexpected",
        )
        await here.manager.release(here.pods.items["u1"])
        assert await here.admit(asking("u3")) is None
        assert here.held("u3") == ["a"]
