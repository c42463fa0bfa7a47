"""What a restart of the node's side keeps, and what it does not."""

from __future__ import annotations

import json
import os

import pytest

from dray.api.document import Document
from dray.node.resource_manager import Rejection
from dray.runtime.files import replace_file
from tests.e2e.node_devices.harness import Foo, node, plugin
from tests.unit.node.devices.builders import FOO, Pods, asking

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


@pytest.mark.behaviour("DP-47")
async def test_after_a_reboot_pods_need_their_plugin(folder: str) -> None:
    pods = Pods()
    await run_two(folder, pods)
    async with node(folder, pods) as here:
        assert await here.admit(asking("u1")) == Rejection(
            "UnexpectedAdmissionError",
            "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices vendor.com/foo, "
            "which is unexpected",
        )
        async with plugin(folder, Foo("a", "b")):
            await here.until_amounts(2, 2)
            assert await here.admit(asking("u2")) is None
            assert here.held("u2") == ["b"]


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
        # Until all Pods are known nobody can say which are gone.
        assert await here.admit(asking("u3")) is not None
        ready[0] = True
        assert await here.admit(asking("u3")) is None
        assert here.held("u3") == ["a"]
        assert [item["PodUID"] for item in read(folder)["PodDeviceEntries"]] == ["u2", "u3"]


@pytest.mark.behaviour("DP-46", "DP-20")
async def test_a_damaged_checkpoint_is_as_none_but_the_node_is_not_new(folder: str) -> None:
    pods = Pods()
    await run_two(folder, pods)
    replace_file(os.path.join(folder, PATH), b"{}")
    async with node(folder, pods) as here:
        assert not here.devices.is_new
        assert here.held("u1") == []
        assert here.amounts() == (None, None)


@pytest.mark.behaviour("DP-20")
async def test_a_node_without_a_checkpoint_is_new(folder: str) -> None:
    async with node(folder) as here:
        assert here.devices.is_new


async def test_running_pods_survive_a_lost_checkpoint(folder: str) -> None:
    pods = Pods()
    await run_two(folder, pods)
    os.remove(os.path.join(folder, PATH))
    async with node(folder, pods, running=[("u1", "main")]) as here, plugin(folder, Foo("a", "b")):
        await here.until_amounts(2, 2)
        assert await here.admit(asking("u1")) is None
        assert here.held("u1") == []
