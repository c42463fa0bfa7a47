"""What a restart of the node's side keeps, and what it does not."""

from __future__ import annotations

import json
import os

import pytest

from dray.api.document import Document
from dray.node.devices.device_manager import DeviceSettings
from dray.node.resource_manager import Rejection, ResourceError
from dray.runtime.files import replace_file
from tests.e2e.node_devices.harness import Foo, node, plugin, until
from tests.unit.node.devices.builders import FOO, Pods, asking, container, pod

PATH = "kubelet_internal_checkpoint"


def read(folder: str) -> Document:
    with open(os.path.join(folder, PATH)) as file:
        data: Document = json.load(file)["Data"]
    return data


async def run_two(folder: str, pods: Pods) -> None:
    """Two Pods with a device each, then the agent stops."""
    async with node(folder, pods) as here, plugin(folder, Foo("a", "b")):
        await here.until_amounts(2, 2)
        for uid in ("u1", "u2"):
            assert await here.admit(asking(uid)) is None


def damage(folder: str) -> None:
    """Write garbage over the checkpoint and the one before."""
    for name in os.listdir(folder):
        if PATH in name:
            replace_file(os.path.join(folder, name), b"{}")


def remove(folder: str) -> None:
    """Remove the checkpoint and the one before."""
    for name in os.listdir(folder):
        if PATH in name:
            os.remove(os.path.join(folder, name))


@pytest.mark.behaviour("DP-44")
async def test_the_checkpoint_follows(folder: str) -> None:
    async with node(folder) as here, plugin(folder, Foo("a", "b")):
        await here.until_amounts(2, 2)
        assert await here.admit(asking("u1")) is None
        data = read(folder)
        assert data["RegisteredDevices"] == {FOO: ["a", "b"]}
        assert [(item["PodUID"], item["DeviceIDs"]) for item in data["PodDeviceEntries"]] == [("u1", {"-1": ["a"]})]
        await here.manager.release(asking("u1"))
        assert read(folder)["PodDeviceEntries"] == []


@pytest.mark.behaviour("DP-45", "DP-47")
async def test_running_pods_are_admitted_without_their_plugin(folder: str) -> None:
    pods = Pods()
    await run_two(folder, pods)
    async with node(folder, pods, running=[("u1", "main"), ("u2", "main")]) as here:
        assert here.amounts() == ("0", "0")
        for uid in ("u1", "u2"):
            assert await here.admit(asking(uid)) is None
        assert (here.held("u1"), here.held("u2")) == (["a"], ["b"])
        assert here.manager.container_options(asking("u1"), "main").envs == {"FOO": "a"}
        async with plugin(folder, Foo("a", "b", "c")) as _:
            await here.until_amounts(3, 3)
            assert await here.admit(asking("u3")) is None
            assert here.held("u3") == ["c"]


@pytest.mark.behaviour("DP-47", "DP-51")
async def test_containers_that_must_start_wait_for_their_plugin(folder: str) -> None:
    pods = Pods()
    await run_two(folder, pods)
    # Neither container runs: one has ended, or the machine was booted again.
    async with node(folder, pods) as here:
        assert await here.admit(asking("u1")) is None
        with pytest.raises(ResourceError) as caught:
            await here.manager.pre_start(asking("u1"), "main")
        text = "waiting for the device plugin of vendor.com/foo to register"
        assert (caught.value.reason, caught.value.message) == ("Failed", text)
        # A Pod that was not admitted before cannot have devices now.
        assert await here.admit(asking("u3")) == Rejection(
            "UnexpectedAdmissionError",
            "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices vendor.com/foo, "
            "which is unexpected",
        )
        async with plugin(folder, Foo("a", "b")):
            await here.until_amounts(2, 2)
            await here.manager.pre_start(asking("u1"), "main")
            assert here.held("u1") == ["a"]


@pytest.mark.behaviour("DP-47")
async def test_an_init_container_that_has_completed_is_not_admitted_again(folder: str) -> None:
    item = pod("u1", [container("main", {FOO: 1})], [container("init", {FOO: 1})])
    pods = Pods()
    async with node(folder, pods) as here, plugin(folder, Foo("a")):
        await here.until_amounts(1, 1)
        assert await here.admit(item) is None
    # Also without the checkpoint.
    for path in (PATH, ""):
        async with node(folder, pods, running=[("u1", "main"), ("u1", "init")], admitted_before=["u1"]) as here:
            assert await here.admit(item) is None
            await here.manager.prepare(item)
        if path:
            remove(folder)


@pytest.mark.behaviour("DP-47", "DP-34")
async def test_without_the_checkpoint_an_admitted_pod_gets_devices_when_its_container_starts(folder: str) -> None:
    pods = Pods()
    await run_two(folder, pods)
    remove(folder)
    async with node(folder, pods, admitted_before=["u1"]) as here, plugin(folder, Foo()):
        await here.until_amounts(0, 0)
        assert await here.admit(asking("u1")) is None
        assert here.held("u1") == []
        with pytest.raises(ResourceError, match="no devices found allocated in local cache for pod u1"):
            here.manager.container_options(asking("u1"), "main")
        assert await here.admit(asking("u2")) is not None


@pytest.mark.behaviour("DP-50")
async def test_a_container_that_starts_again_has_the_same_devices(folder: str) -> None:
    pods = Pods()
    await run_two(folder, pods)
    async with node(folder, pods, running=[("u2", "main")]) as here, plugin(folder, Foo("a", "b")):
        await here.until_amounts(2, 2)
        assert await here.admit(asking("u2")) is None
        for _ in range(2):
            assert here.manager.container_options(asking("u2"), "main").envs == {"FOO": "b"}
            await here.manager.pre_start(asking("u2"), "main")


@pytest.mark.behaviour("DP-49")
async def test_pods_deleted_meanwhile_give_their_devices_back(folder: str) -> None:
    pods = Pods()
    await run_two(folder, pods)
    pods.remove("u1")
    ready = [False]
    async with (
        node(folder, pods, ready=lambda: ready[0], running=[("u2", "main")]) as here,
        plugin(folder, Foo("a", "b")),
    ):
        await here.until_amounts(2, 2)
        assert await here.admit(asking("u2")) is None
        # Until all Pods are known, none counts as gone.
        assert await here.admit(asking("u3")) is not None
        ready[0] = True
        assert await here.admit(asking("u3")) is None
        assert here.held("u3") == ["a"]
        assert [item["PodUID"] for item in read(folder)["PodDeviceEntries"]] == ["u2", "u3"]


@pytest.mark.behaviour("DP-15", "NG-01")
async def test_with_the_gate_off_pods_keep_their_devices_and_no_others_come(folder: str) -> None:
    pods = Pods()
    await run_two(folder, pods)
    disabled = DeviceSettings(enabled=False, grace_seconds=0)
    async with node(folder, pods, disabled, running=[("u1", "main")], serves=False) as here:
        assert "kubelet.sock" not in os.listdir(folder)
        # The resource stays on the Node, as zero: Pods that ask for it do not fit.
        assert here.amounts() == ("0", "0")
        for uid in ("u1", "u2"):
            assert await here.admit(asking(uid)) is None
        assert (here.held("u1"), here.held("u2")) == (["a"], ["b"])
        # One runs on, the other cannot start.
        with pytest.raises(ResourceError) as caught:
            await here.manager.pre_start(asking("u2"), "main")
        text = "the feature gate DevicePlugins is disabled on this node, and the container has vendor.com/foo"
        assert (caught.value.reason, caught.value.message) == ("Failed", text)
        assert await here.admit(asking("u3")) is not None
        await here.manager.release(asking("u1"))
        assert [item["PodUID"] for item in read(folder)["PodDeviceEntries"]] == ["u2"]
    async with node(folder, pods) as here, plugin(folder, Foo("a", "b")):
        await here.until_amounts(2, 2)
        await here.manager.pre_start(asking("u2"), "main")


@pytest.mark.behaviour("DP-46", "DP-20")
async def test_a_damaged_checkpoint_is_as_none(folder: str) -> None:
    pods = Pods()
    await run_two(folder, pods)
    damage(folder)
    async with node(folder, pods) as here:
        assert here.devices.is_new
        assert here.held("u1") == []
        assert here.amounts() == (None, None)


@pytest.mark.behaviour("DP-46")
async def test_a_damaged_checkpoint_is_replaced_by_the_one_before(folder: str) -> None:
    pods = Pods()
    await run_two(folder, pods)
    replace_file(os.path.join(folder, PATH), b"{}")
    async with node(folder, pods, running=[("u1", "main")]) as here:
        assert not here.devices.is_new
        assert await here.admit(asking("u1")) is None
        assert here.held("u1") == ["a"]


@pytest.mark.behaviour("DP-46", "DP-51")
async def test_with_a_damaged_checkpoint_no_container_starts_again_without_its_device(folder: str) -> None:
    pods = Pods()
    await run_two(folder, pods)
    damage(folder)
    async with node(folder, pods, running=[("u1", "main")], admitted_before=["u1"]) as here:
        item = asking("u1")
        assert await here.admit(item) is None
        await here.manager.prepare(item)
        # It has crashed: which device it had is not known, and no plugin has registered yet.
        with pytest.raises(ResourceError, match="no devices found allocated in local cache for pod u1"):
            here.manager.container_options(item, "main")
        async with plugin(folder, Foo("a", "b")):
            await here.until_amounts(2, 2)
            with pytest.raises(ResourceError):
                here.manager.container_options(item, "main")
            await until(lambda: here.held("u1"))
            assert here.manager.container_options(item, "main").envs == {"FOO": here.held("u1")[0]}


@pytest.mark.behaviour("DP-20")
async def test_a_node_without_a_checkpoint_is_new(folder: str) -> None:
    async with node(folder) as here:
        assert here.devices.is_new


async def test_running_pods_survive_a_lost_checkpoint(folder: str) -> None:
    pods = Pods()
    await run_two(folder, pods)
    remove(folder)
    async with node(folder, pods, running=[("u1", "main")]) as here, plugin(folder, Foo("a", "b")):
        await here.until_amounts(2, 2)
        assert await here.admit(asking("u1")) is None
        assert here.held("u1") == []
