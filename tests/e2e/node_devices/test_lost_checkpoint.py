"""Who has which devices is read from what runs when the checkpoint is lost. The plugin is written to the protocol."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dray.api.types.core_v1 import Pod
from dray.node.devices.owners import ANNOTATION
from dray.node.resource_manager import Rejection, ResourceError
from dray.node.runtimes.runtime import ContainerRecord, Exit
from dray.rpc.pb.deviceplugin.v1beta1.api_pb2_grpc import add_DevicePluginServicer_to_server
from tests.e2e.node_devices.harness import Node, node, raw_server, task, until
from tests.e2e.node_devices.servicer import Speaking
from tests.unit.node.devices.builders import Pods, asking, container, pod

PATH = "kubelet_internal_checkpoint"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
REFUSED = "requested number of devices unavailable for vendor.com/foo. Requested: 1, Available: 0"


@asynccontextmanager
async def plugin(here: Node, *ids: str) -> AsyncIterator[Speaking]:
    served = Speaking("FOO", *ids)
    async with raw_server(os.path.join(here.folder, "foo.sock"), served, add_DevicePluginServicer_to_server):
        await here.call_register()
        await until(lambda: here.amounts()[0] == str(len(ids)))
        yield served


def record(item: Pod, here: Node | None = None, *, name: str = "main", ended: bool = False) -> ContainerRecord:
    """The container of a Pod as the runtime has it; without the agent that started it, it is an older agent's."""
    annotations = {} if here is None else here.manager.container_options(item, name).annotations
    meta = item.metadata
    return ContainerRecord(
        f"{meta.uid}-{name}",
        meta.uid or "",
        meta.namespace or "",
        meta.name or "",
        name,
        0,
        "x",
        "",
        NOW,
        Exit(0, NOW) if ended else None,
        annotations,
    )


async def run_three(folder: str, pods: Pods) -> list[ContainerRecord]:
    """Pods with a, b and c of four devices; then the agent ends."""
    async with node(folder, pods) as here, plugin(here, "a", "b", "c", "d"):
        for uid in ("u1", "u2", "u3"):
            assert await here.admit(asking(uid)) is None
        assert [here.held(uid) for uid in ("u1", "u2", "u3")] == [["a"], ["b"], ["c"]]
        return [record(asking(uid), here) for uid in ("u1", "u2", "u3")]


def lose(folder: str, kind: str) -> None:
    for name in os.listdir(folder):
        if PATH in name and (kind != "newest damaged" or not name.startswith(".")):
            path = os.path.join(folder, name)
            if kind == "removed":
                os.remove(path)
            else:
                with open(path, "wb") as file:
                    file.write(b"\x00garbage" * 100)


@pytest.mark.behaviour("DP-59")
@pytest.mark.parametrize("kind", ["newest damaged", "all damaged", "removed"])
async def test_no_device_of_a_running_container_is_allocated_again(folder: str, kind: str) -> None:
    pods = Pods()
    found = await run_three(folder, pods)
    lose(folder, kind)
    async with node(folder, pods, found=found) as here, plugin(here, "a", "b", "c", "d") as served:
        assert await here.admit(asking("u4")) is None
        assert here.held("u4") == ["d"]
        assert await here.admit(asking("u5")) == Rejection(
            "UnexpectedAdmissionError", f"Allocate failed due to {REFUSED}, which is unexpected"
        )
        # The Pods that run keep what they have, also when their containers start again.
        for uid, device in (("u1", "a"), ("u2", "b"), ("u3", "c")):
            assert await here.admit(asking(uid)) is None
            assert here.held(uid) == [device]
            assert here.manager.container_options(asking(uid), "main").envs["FOO"] == device
        assert served.allocated == [["d"]]
        assert [reason for reason, _ in here.warnings] == ([] if kind == "removed" else ["DeviceCheckpointDamaged"])
    # What was rebuilt is in the checkpoint.
    async with node(folder, pods, running=[(uid, "main") for uid in ("u1", "u2", "u3", "u4")]) as here:
        assert [here.held(f"u{number}") for number in range(1, 5)] == [["a"], ["b"], ["c"], ["d"]]
        assert here.warnings == []


@pytest.mark.behaviour("DP-60")
async def test_nobody_gets_devices_until_all_pods_are_known(folder: str) -> None:
    pods, ready = Pods(), [False]
    found = await run_three(folder, pods)
    lose(folder, "all damaged")
    new = asking("u4")
    async with (
        node(folder, pods, found=found, ready=lambda: ready[0]) as here,
        plugin(here, "a", "b", "c", "d") as served,
        task(here.admit(new)) as admission,
    ):
        await until(lambda: here.manager.waits_for(new))
        assert here.manager.waits_for(new) == "waiting until it is known which devices the running containers have"
        # Pods without devices and Pods that run already do not wait.
        assert await here.admit(pod("plain", [container("main")])) is None
        assert await here.admit(asking("u1")) is None
        # The agent may be killed again before it knows: then it does not believe that nobody has a device.
        before = (Path(folder) / PATH).read_bytes()
        await here.devices._save()
        assert (Path(folder) / PATH).read_bytes() == before
        assert not admission.done()
        assert served.allocated == []
        ready[0] = True
        here.devices.rebuild_owners()
        async with asyncio.timeout(120):
            assert await admission is None
        assert here.held("u4") == ["d"]


@pytest.mark.behaviour("DP-60")
async def test_an_orphan_keeps_its_device_until_it_has_ended(folder: str) -> None:
    pods = Pods()
    found = await run_three(folder, pods)
    pods.remove("u2")
    pods.gone.add("u2")
    lose(folder, "all damaged")
    async with node(folder, pods, found=found) as here, plugin(here, "a", "b", "c", "d"):
        assert await here.admit(asking("u4")) is None
        assert here.held("u4") == ["d"]
        assert await here.admit(asking("u5")) is not None
        pods.gone.clear()
        assert await here.admit(asking("u5")) is None
        assert here.held("u5") == ["b"]


@pytest.mark.behaviour("DP-60")
async def test_an_orphan_of_which_nothing_tells_what_it_has_is_waited_for(folder: str) -> None:
    pods = Pods()
    await run_three(folder, pods)
    for uid in ("u1", "u2", "u3"):
        pods.remove(uid)
    pods.gone.add("u2")
    lose(folder, "all damaged")
    new = asking("u4")
    async with (
        node(folder, pods, found=[record(asking("u2"))]) as here,
        plugin(here, "a"),
        task(here.admit(new)) as admission,
    ):
        await until(lambda: here.manager.waits_for(new))
        pods.gone.clear()
        here.devices.rebuild_owners()
        async with asyncio.timeout(120):
            assert await admission is None
        assert here.held("u4") == ["a"]


@pytest.mark.behaviour("DP-61")
async def test_what_cannot_be_attributed_stays_reserved(folder: str) -> None:
    pods = Pods()
    found = await run_three(folder, pods)
    # The container of u3 is an older agent's.
    found[2] = record(asking("u3"))
    lose(folder, "all damaged")
    async with node(folder, pods, found=found) as here, plugin(here, "a", "b", "c", "d"):
        assert await here.admit(asking("u4")) is not None
        assert (here.held("u1"), here.held("u2"), here.held("u3")) == (["a"], ["b"], [])
        # The scheduler sends nobody.
        assert here.amounts() == ("4", "3")
        reasons = dict(here.warnings)
        assert reasons["DevicesNotAttributed"] == (
            "the devices of vendor.com/foo that Pods have are not known: default/pod-u3 (container main); until their "
            "containers have ended, no other device of the resource is allocated"
        )
        assert await here.admit(asking("u3")) is None
    # Also after another restart, which finds a good checkpoint.
    async with node(folder, pods, found=found) as here, plugin(here, "a", "b", "c", "d"):
        assert await here.admit(asking("u3")) is None
        assert await here.admit(asking("u4")) is not None
        # Its container starts again: what it had is free, and it gets a device that is known.
        with pytest.raises(ResourceError, match="no devices found allocated"):
            here.manager.container_options(asking("u3"), "main")
        await until(lambda: here.held("u3"))
        assert here.manager.container_options(asking("u3"), "main").envs["FOO"] in ("c", "d")
        await here.until_amounts(4, 4)
        assert await here.admit(asking("u4")) is None
        assert sorted(here.held("u3") + here.held("u4")) == ["c", "d"]


@pytest.mark.behaviour("DP-62")
@pytest.mark.parametrize("reported", [["c"], [], ["c", "d"]])
async def test_what_an_older_agents_container_has_is_read_from_its_pods_status(
    folder: str, reported: list[str]
) -> None:
    pods = Pods()
    found = await run_three(folder, pods)
    found[2] = record(asking("u3"))
    told = {"name": "vendor.com/foo", "resources": [{"resourceID": name} for name in reported]}
    status = {"containerStatuses": [{"name": "main", "allocatedResourcesStatus": [told]}]}
    running = pods.items["u3"] = pod("u3", [container("main", {"vendor.com/foo": 1})], status=status)
    is_enough = len(reported) == 1
    lose(folder, "all damaged")
    async with node(folder, pods, found=found) as here, plugin(here, "a", "b", "c", "d"):
        # The status is not overwritten as long as it is needed.
        assert here.devices.container_resources(running, "main") == [told if reported else {"name": "vendor.com/foo"}]
        assert (await here.admit(asking("u4")) is None) is is_enough
        assert here.devices.container_resources(running, "main") == (
            [{"name": "vendor.com/foo", "resources": [{"resourceID": "c", "health": "Healthy"}]}]
            if is_enough
            else [{"name": "vendor.com/foo", "resources": []}]
        )
        pods.remove("u4")
        assert here.held("u3") == (["c"] if is_enough else [])
        assert ("DevicesNotAttributed" in dict(here.warnings)) is not is_enough
    # Also after another restart, which finds a good checkpoint.
    async with node(folder, pods, found=found) as here, plugin(here, "a", "b", "c", "d") as served:
        assert await here.admit(running) is None
        assert (await here.admit(asking("u4")) is None) is is_enough
        if is_enough:
            assert served.allocated == [["d"]]
            # Its container starts again: the plugin is asked for the same device.
            with pytest.raises(ResourceError, match="no devices found allocated"):
                here.manager.container_options(running, "main")
            await until(lambda: served.allocated == [["d"], ["c"]])
            await until(lambda: not here.devices._missing(running, running.spec.containers[0]))
            assert here.manager.container_options(running, "main").envs["FOO"] == "c"


@pytest.mark.behaviour("DP-65")
@pytest.mark.parametrize(
    ("environment", "names", "known"),
    [
        ({"FOO": "c"}, (), True),
        ({"FOO_DEVICES": "x,c; y"}, (), True),
        ({}, ("vendor.com/foo=c",), True),
        ({}, ("/dev/foo/c",), True),
        # Not as many as it has, not the plugin's, or somebody else's.
        ({"FOO": "c,d"}, (), False),
        ({"OWN": "c", "DB_SERVICE_HOST": "d", "HOSTNAME": "c"}, (), False),
        ({"FOO": "a"}, (), False),
    ],
)
async def test_what_an_older_agents_container_has_is_read_from_its_configuration(
    folder: str, environment: dict[str, str], names: tuple[str, ...], known: bool
) -> None:
    pods = Pods()
    found = await run_three(folder, pods)
    found[2] = replace(record(asking("u3")), environment=environment, device_names=names)
    own = container("main", {"vendor.com/foo": 1}) | {"env": [{"name": "OWN", "value": "c"}]}
    pods.items["u3"] = pod("u3", [own])
    lose(folder, "all damaged")
    async with node(folder, pods, found=found) as here:
        here.devices.rebuild_owners()
        assert here.held("u3") == [], "the plugin has not listed its devices"
        async with plugin(here, "a", "b", "c", "d") as served:
            await here.until_amounts(4, 4 if known else 3)
            assert here.held("u3") == (["c"] if known else [])
            assert (await here.admit(asking("u4")) is None) is known
            assert served.allocated == ([["d"]] if known else [])
    # Also after another restart, which finds a good checkpoint.
    async with node(folder, pods, found=found) as here, plugin(here, "a", "b", "c", "d"):
        await here.until_amounts(4, 4 if known else 3)
        assert here.held("u3") == (["c"] if known else [])


@pytest.mark.behaviour("DP-61")
async def test_an_unattributed_device_is_free_when_its_pod_has_gone(folder: str) -> None:
    pods = Pods()
    found = await run_three(folder, pods)
    found[2] = record(asking("u3"))
    lose(folder, "removed")
    async with node(folder, pods, found=found) as here, plugin(here, "a", "b", "c", "d"):
        assert await here.admit(asking("u4")) is not None
        pods.remove("u3")
        assert await here.admit(asking("u4")) is None
        assert here.held("u4") == ["c"]
        assert here.amounts() == ("4", "4")


@pytest.mark.behaviour("DP-59")
@pytest.mark.parametrize("text", ["", "{", "[]", '{"Data": {}, "Checksum": 1}'])
async def test_a_note_that_cannot_be_read_counts_as_none(folder: str, text: str) -> None:
    pods = Pods()
    (first, *_) = await run_three(folder, pods)
    lose(folder, "all damaged")
    pods.remove("u2")
    pods.remove("u3")
    found = [
        ContainerRecord(first.id, "u1", "default", "pod-u1", "main", 0, "x", "", NOW, annotations={ANNOTATION: text})
    ]
    async with node(folder, pods, found=found) as here, plugin(here, "a", "b"):
        assert await here.admit(asking("u4")) is not None
        assert here.held("u1") == []
        assert "DevicesNotAttributed" in dict(here.warnings)


@pytest.mark.behaviour("DP-59")
async def test_a_note_about_another_container_is_not_believed(folder: str) -> None:
    pods = Pods()
    found = await run_three(folder, pods)
    lose(folder, "all damaged")
    stolen = [record(asking("u9")), *found]
    stolen[0].annotations.update(found[0].annotations)  # type: ignore[attr-defined]
    async with node(folder, pods, found=stolen) as here, plugin(here, "a", "b", "c", "d"):
        assert await here.admit(asking("u4")) is None
        assert here.held("u9") == []
        assert here.held("u4") == ["d"]
