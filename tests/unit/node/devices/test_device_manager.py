"""Assignments are saved before a container starts, also when saving fails at first."""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path

import pytest

from dray.node.checkpoint_file import CheckpointFile
from dray.node.devices import checkpoint
from dray.node.devices.device_manager import DeviceManager, NodePods
from dray.node.plugins.handler import Plugin
from dray.node.resource_manager import ResourceError
from dray.rpc.dra_services import DEVICE_PLUGIN
from dray.runtime.metrics import Metrics
from dray.runtime.system import SystemClock
from dray.runtime.tasks import TaskGroup
from tests.simulation.faults import Faults
from tests.simulation.node_plugins import FAULTS, RESOURCE, DevicePlugin, Driver, reachable_plugins
from tests.simulation.node_simulation import Node, _pod

PLUGIN = Plugin(DEVICE_PLUGIN, RESOURCE, "/plugin", ("v1beta1",), "/plugin-reg")


async def test_an_assignment_that_could_not_be_saved_is_saved_before_the_container_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, faults = random.Random(1), Faults(**dict.fromkeys(FAULTS, 0.0))
    pod = _pod("pod-1", (), 1)
    manager = DeviceManager(
        str(tmp_path), NodePods(Node(), admitted_before=frozenset({"pod-1"})), SystemClock(), Metrics()
    )
    plugin, driver = DevicePlugin(rng, faults, ["widget-0"]), Driver(rng, faults, lambda _: (), lambda _: ())
    with reachable_plugins(driver, plugin, lambda _: None):
        async with TaskGroup("test") as group:
            manager.plugin_handler.group = group
            await manager.plugin_handler.register(PLUGIN)
            async with asyncio.timeout(5):
                while manager.node_resources().allocatable.get(RESOURCE) != "1":  # noqa: ASYNC110 - what is waited for has no event
                    await asyncio.sleep(0)
            with monkeypatch.context() as patch:
                patch.setattr(CheckpointFile, "replace", _full)
                with pytest.raises(ResourceError, match="No space left"):
                    await manager.prepare(pod)
            await manager.prepare(pod)
            assert manager.container_options(pod, "main").envs == {"WIDGETS": "widget-0"}
            await group.cancel()
    saved = checkpoint.decode((tmp_path / checkpoint.FILE_NAME).read_bytes())
    assert [(key.pod_uid, key.container) for key, _ in saved.assigned] == [("pod-1", "main")]


def _full(_self: CheckpointFile, _content: bytes) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
