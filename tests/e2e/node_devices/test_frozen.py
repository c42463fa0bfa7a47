"""Plugins that are slow or do not answer at all hold up nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dray.api.types.core_v1 import Pod
from dray.driver.device_plugin import Allocation
from dray.node.devices.device_manager import DeviceSettings
from dray.node.devices.plugin_handler import Liveness
from dray.node.resource_manager import Rejection, ResourceError
from tests.e2e.node_devices.harness import Foo, Node, node, plugin, task, until
from tests.fork_server import ForkedPopen
from tests.unit.node.devices.builders import BAR, FOO, asking, container, pod

PROGRAM = Path(__file__).parent / "plugin_process.py"
# A busy machine may take a second to greet; what is not greeted for a moment is used again right after.
QUICK = DeviceSettings(liveness=Liveness(0.05, 1.0))


@contextlib.contextmanager
def plugin_process(folder: str, control: Path) -> Iterator[subprocess.Popen[str]]:
    """A plugin with two devices as a process of its own."""
    arguments = [sys.executable, str(PROGRAM), folder, str(control), "a,b"]
    process = ForkedPopen(arguments, env={**os.environ, "PYTHONPATH": str(PROGRAM.parents[3])})
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def health(here: Node, item: Pod) -> list[str]:
    found = here.manager.container_resources(item, "main")
    return [str(one["health"]) for entry in found for one in entry["resources"]]


@pytest.mark.behaviour("DP-52", "DP-53")
async def test_a_frozen_plugin_is_noticed_and_holds_up_nobody(folder: str, tmp_path: Path) -> None:
    user, held_up = asking("u1"), asking("u2")
    async with node(folder, settings=QUICK) as here, plugin(folder, Foo("x", resource=BAR)):
        with plugin_process(folder, tmp_path) as process:
            await here.until_amounts(2, 2)
            await here.until_amounts(1, 1, BAR)
            assert await here.admit(user) is None
            (tmp_path / "in-allocate").unlink()
            (tmp_path / "hold").touch()
            async with task(here.admit(held_up)) as admission:
                await until((tmp_path / "in-allocate").exists)
                process.send_signal(signal.SIGSTOP)
                # Pods without devices, and with those of others, come and go.
                assert await here.admit(pod("u3")) is None
                assert await here.admit(asking("u4", resource=BAR)) is None
                assert here.manager.waits_for(held_up) == f"waiting for Allocate of the device plugin of {FOO}"
                # The plugin is found out: the call fails, and no further Pods come.
                rejection = await admission
            assert rejection is not None
            assert "the device plugin does not answer" in rejection.message
            await here.until_amounts(2, 0)
            assert here.manager.waits_for(held_up) == ""
            assert (here.held("u1"), here.held("u2")) == (["a"], [])
            # Who has a device keeps it, but cannot start without the plugin.
            assert health(here, user) == ["Unknown"]
            assert here.manager.check_health(user) is None
            with pytest.raises(ResourceError, match=f"the device plugin of {FOO} does not answer"):
                await here.manager.pre_start(user, "main")
            (tmp_path / "hold").unlink()
            process.send_signal(signal.SIGCONT)
            await here.until_amounts(2, 2)
            assert health(here, user) == ["Healthy"]
            await here.manager.pre_start(user, "main")
            assert await here.admit(asking("u5")) is None
            assert here.held("u5") == ["b"]


class Slow(Foo):
    """Allocates when it is told to, and notes how many calls overlap."""

    def __init__(self, *ids: str) -> None:
        super().__init__(*ids)
        self.go = asyncio.Event()
        self.calls = 0
        self.calls_max = 0
        self.asked = 0

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        self.asked += 1
        # Everyone wants the same ones.
        return sorted(available)[-size:]

    async def allocate(self, ids: Sequence[str]) -> Allocation:
        self.calls += 1
        self.calls_max = max(self.calls_max, self.calls)
        await self.go.wait()
        self.calls -= 1
        return await super().allocate(ids)


@pytest.mark.behaviour("DP-31", "DP-53")
async def test_pods_of_one_plugin_wait_for_each_other_and_have_devices_of_their_own(folder: str) -> None:
    foo = Slow("a", "b", "c")
    async with node(folder) as here, plugin(folder, foo):
        await here.until_amounts(3, 3)
        pods = [pod(f"u{number}", [container("main", {FOO: 1})], [container("init", {FOO: 1})]) for number in range(3)]
        async with asyncio.TaskGroup() as group:
            admissions = [group.create_task(here.admit(item)) for item in pods]
            await until(lambda: foo.calls == 1)
            # Each has its device reserved while it waits: a fourth Pod gets nothing.
            assert foo.asked == 3
            assert await here.admit(asking("u9")) == Rejection(
                "UnexpectedAdmissionError",
                f"Allocate failed due to requested number of devices unavailable for {FOO}. "
                "Requested: 1, Available: 0, which is unexpected",
            )
            foo.go.set()
        assert [item.result() for item in admissions] == [None] * 3
        assert foo.calls_max == 1
        assert sorted(name for item in pods for name in here.held(item.metadata.uid or "")) == ["a", "b", "c"]
        # Containers take over what init containers had.
        for item in pods:
            uid = item.metadata.uid or ""
            assert here.held(uid, "init") == here.held(uid, "main")


@pytest.mark.behaviour("DP-31")
async def test_a_pod_that_fails_in_the_middle_gives_everything_back(folder: str) -> None:
    foo = Foo("a", "b", "c")
    async with node(folder) as here, plugin(folder, foo), plugin(folder, Foo("x", resource=BAR)):
        await here.until_amounts(3, 3)
        await here.until_amounts(1, 1, BAR)
        # The second container asks for too much, and then the plugin fails after the first container.
        item = pod("u1", [container("one", {BAR: 1}), container("two", {FOO: 4})])
        assert await here.admit(item) is not None
        item = pod("u2", [container("one", {BAR: 1}), container("two", {FOO: 2})])
        foo.failure = "broken"
        rejection = await here.admit(item)
        assert rejection is not None
        assert "broken" in rejection.message
        foo.failure = ""
        assert await here.admit(pod("u3", [container("one", {BAR: 1}), container("two", {FOO: 3})])) is None
