"""Device plugins with a real agent: what becomes of Pods when a device, the plugin or the agent fails."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from dray.client.interface import Patch, PatchType, WriteOptions
from tests.e2e.node.conftest import BOTH
from tests.e2e.node.devices import FOO, amounts, held, plugin, until, until_amounts, with_foo
from tests.e2e.node.harness import (
    NODES,
    POD_SECONDS_MAX,
    PODS,
    Agent,
    Cluster,
    container_status,
    is_running,
    shell,
    terminated,
)

RUNTIMES = BOTH
STAYS = 'trap "exit 0" TERM; while true; do sleep 0.05; done'


async def restart(agent: Agent, *flags: str) -> None:
    agent.kill()
    own, agent.flags = agent.flags, (*agent.flags, *flags)
    agent.start()
    agent.flags = own


@pytest.mark.behaviour("DP-18")
async def test_an_unhealthy_device_fails_its_pod(cluster: Cluster, agent: Agent) -> None:
    with plugin(agent, "a", "b") as devices:
        await until_amounts(cluster, 2, 2)
        await cluster.run("bad", with_foo(STAYS))
        await cluster.wait("bad", is_running())
        await cluster.run("good", with_foo(STAYS))
        await cluster.wait("good", is_running())
        assert await held(agent) == {"bad": ["a"], "good": ["b"]}
        devices.fail("a")
        pod = await cluster.phase("bad", "Failed")
        text = f"device a of resource {FOO}, in use by container a, is unhealthy"
        assert (pod["status"]["reason"], pod["status"]["message"]) == ("UnhealthyDevice", text)
        assert (await cluster.event("bad", "UnhealthyDevice"))["type"] == "Warning"
        assert is_running()(await cluster.client.get(PODS, "good", cluster.namespace))
        await until_amounts(cluster, 2, 1)
        devices.mend("a")
        await until_amounts(cluster, 2, 2)
        await end(cluster, "bad", "good")


@pytest.mark.behaviour("DP-18", "DP-19")
async def test_an_unhealthy_device_is_only_reported_where_the_node_is_set_so(cluster: Cluster, agent: Agent) -> None:
    await restart(agent, "--unhealthy-devices=report")
    with plugin(agent, "a") as devices:
        await until_amounts(cluster, 1, 1)
        await cluster.run("p", with_foo(STAYS))
        before = await cluster.wait("p", is_running())
        await cluster.wait("p", lambda pod: health(pod) == "Healthy")
        devices.fail("a")
        after = await cluster.wait("p", lambda pod: health(pod) == "Unhealthy")
        assert after["status"]["phase"] == "Running"
        assert container_status(after)["containerID"] == container_status(before)["containerID"]
        devices.mend("a")
        await cluster.wait("p", lambda pod: health(pod) == "Healthy")
        await end(cluster, "p")
    await restart(agent)


def health(pod: dict[str, Any]) -> str | None:
    entries = container_status(pod).get("allocatedResourcesStatus", [])
    found = {item["resourceID"]: item["health"] for entry in entries for item in entry["resources"]}
    return found.get("a")


@pytest.mark.behaviour("DP-15", "NG-01")
async def test_without_the_gate_there_is_no_socket_and_no_pod_runs_without_its_device(
    cluster: Cluster, agent: Agent
) -> None:
    with plugin(agent, "a", "b"):
        await until_amounts(cluster, 2, 2)
        await cluster.run("keeps", with_foo(STAYS))
        before = await cluster.wait("keeps", is_running())
        (agent.root / "device-plugins/kubelet.sock").unlink(missing_ok=True)
        await restart(agent, "--feature-gates=DevicePlugins=false")
        await until_amounts(cluster, 0, 0)
        # Pods without devices run as ever.
        await cluster.run("p", shell("a", "true"))
        await cluster.phase("p", "Succeeded")
        await cluster.run("q", with_foo("true"))
        pod = await cluster.phase("q", "Failed")
        assert pod["status"]["reason"] == f"OutOf{FOO}"
        assert not (agent.root / "device-plugins/kubelet.sock").exists()
        after = await cluster.wait("keeps", is_running())
        assert container_status(after)["containerID"] == container_status(before)["containerID"]
        assert await held(agent) == {"keeps": ["a"]}
        await restart(agent)
        await until_amounts(cluster, 2, 2)
        await end(cluster, "keeps")


@pytest.mark.behaviour("DP-20")
async def test_a_node_set_up_anew_has_none_of_what_its_object_tells(cluster: Cluster, agent: Agent) -> None:
    stale = {"vendor.com/old": "3"}
    await set_resources(cluster, stale)
    with plugin(agent, "a"):
        await until_amounts(cluster, 1, 1)
    # With a checkpoint the node knows which resources are its own, and leaves others alone.
    await restart(agent)
    assert await amounts(cluster, "vendor.com/old") == ("3", "3")
    # A Pod may have some of them, though no plugin serves them, but not more than there are.
    await cluster.run("opaque", shell("a", "true", resources={"limits": {"vendor.com/old": "3"}}))
    await cluster.phase("opaque", "Succeeded")
    await cluster.run("greedy", shell("a", "true", resources={"limits": {"vendor.com/old": "4"}}))
    assert (await cluster.phase("greedy", "Failed"))["status"]["reason"] == "OutOfvendor.com/old"
    agent.kill()
    for path in (agent.root / "device-plugins").glob("*kubelet_internal_checkpoint*"):
        path.unlink()
    await set_resources(cluster, {FOO: "1"})
    agent.start()
    await until_amounts(cluster, 0, 0, "vendor.com/old")
    await until_amounts(cluster, 0, 0)
    with plugin(agent, "a", "b"):
        await until_amounts(cluster, 2, 2)
        assert await amounts(cluster, "vendor.com/old") == ("0", "0")


async def set_resources(cluster: Cluster, found: dict[str, str]) -> None:
    patch = Patch(PatchType.STRATEGIC, {"status": {"capacity": found, "allocatable": found}})
    await cluster.client.patch(NODES, cluster.node, "", patch, WriteOptions(subresource="status"))


@pytest.mark.behaviour("DP-21", "DP-47", "DP-13")
async def test_running_pods_are_admitted_again_though_the_plugin_is_away(cluster: Cluster, agent: Agent) -> None:
    with plugin(agent, "a", "b") as devices:
        await until_amounts(cluster, 2, 2)
        for name in ("p", "q"):
            await cluster.run(name, with_foo(STAYS))
        before = {name: await cluster.wait(name, is_running()) for name in ("p", "q")}
        agent.kill()
        devices.kill()
        agent.start()
        await until_amounts(cluster, 0, 0)
        # Nothing is left for a newcomer.
        await cluster.run("r", with_foo("true"))
        pod = await cluster.phase("r", "Failed")
        assert pod["status"]["reason"] == f"OutOf{FOO}"
        assert "containerStatuses" not in pod["status"]
        for name in ("p", "q"):
            after = await cluster.wait(name, is_running())
            assert container_status(after)["containerID"] == container_status(before[name])["containerID"]
        assert sorted((await held(agent)).values()) == [["a"], ["b"]]
        devices.start()
        await until_amounts(cluster, 2, 2)
        await end(cluster, "p", "q", "r")


@pytest.mark.behaviour("DP-48")
async def test_finished_pods_are_not_admitted_again(cluster: Cluster, agent: Agent, tmp_path: Path) -> None:
    with plugin(agent, "a", "b") as devices:
        await until_amounts(cluster, 2, 2)
        await cluster.run("done", with_foo("true"))
        await cluster.phase("done", "Succeeded")
        marker = agent.root / f"end-{cluster.namespace}"
        await cluster.run(
            "ends",
            with_foo(f"while ! test -e {marker}; do sleep 0.05; done", volumeMounts=[mount(agent)]),
            volumes=[volume(agent)],
        )
        await cluster.wait("ends", is_running())
        agent.kill()
        devices.kill()
        # It ends while the agent is down.
        marker.touch()
        await until(lambda: not runs(str(marker)))
        agent.start()
        ended = await cluster.phase("ends", "Succeeded", "Failed")
        assert (ended["status"]["phase"], terminated(ended)["exitCode"]) == ("Succeeded", 0)
        # By now the agent has seen all Pods.
        after = await cluster.client.get(PODS, "done", cluster.namespace)
        assert (after["status"]["phase"], after["status"].get("reason")) == ("Succeeded", None)
        assert await held(agent) == {}


def runs(word: str) -> bool:
    """Whether a process of the machine has a word in its command line: runtimes hide none from the node."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word.encode() in path.read_bytes():
                return True
    return False


def volume(agent: Agent) -> dict[str, Any]:
    return {"name": "h", "hostPath": {"path": str(agent.root)}}


def mount(agent: Agent) -> dict[str, Any]:
    return {"name": "h", "mountPath": str(agent.root)}


@pytest.mark.behaviour("DP-11", "DP-13", "DP-50")
async def test_a_plugin_that_crashes_and_comes_back(cluster: Cluster, agent: Agent) -> None:
    with plugin(agent, "a", "b") as devices:
        await until_amounts(cluster, 2, 2)
        await cluster.run("p", with_foo("test $FOO = a || exit 9; sleep 0.3; exit 1"), restartPolicy="OnFailure")
        await cluster.wait("p", is_running())
        devices.kill()
        await until_amounts(cluster, 2, 0)
        devices.start()
        await until_amounts(cluster, 2, 2)
        # Each run has the same device.
        count = container_status(await cluster.client.get(PODS, "p", cluster.namespace))["restartCount"]
        pod = await cluster.wait("p", lambda item: container_status(item)["restartCount"] > count + 1)
        assert container_status(pod)["lastState"]["terminated"]["exitCode"] == 1
        assert await held(agent) == {"p": ["a"]}
        await end(cluster, "p")


@pytest.mark.parametrize("away", [False, True], ids=["agent there", "agent away"])
async def test_a_device_is_given_on_only_when_its_containers_have_ended(
    cluster: Cluster, agent: Agent, away: bool
) -> None:
    lock = agent.root / f"lock-{cluster.namespace}"
    # The directory is the device: two containers that have it at once cannot both make it.
    first = f'mkdir {lock}; trap "sleep 0.5; rmdir {lock}; exit 0" TERM; while true; do sleep 0.02; done'
    own: dict[str, Any] = {"volumes": [volume(agent)], "terminationGracePeriodSeconds": 20}
    with plugin(agent, "a"):
        await until_amounts(cluster, 1, 1)
        await cluster.run("p", with_foo(first, volumeMounts=[mount(agent)]), **own)
        await cluster.wait("p", is_running())
        await until(lock.exists)
        if away:
            agent.kill()
        await cluster.delete("p", 0)
        await cluster.gone("p")
        if away:
            agent.start()
            await until_amounts(cluster, 1, 1)
        deadline = time.monotonic() + POD_SECONDS_MAX
        for number in itertools.count():
            assert time.monotonic() < deadline, "the device was lost"
            # Until the container has ended there is no device: the Pod is refused, never given a device in use.
            await cluster.run(f"q{number}", with_foo(f"mkdir {lock}", volumeMounts=[mount(agent)]), **own)
            pod = await cluster.phase(f"q{number}", "Succeeded", "Failed")
            assert "containerStatuses" not in pod["status"] or terminated(pod)["exitCode"] == 0, pod["status"]
            if pod["status"]["phase"] == "Succeeded":
                break
    os.rmdir(lock)


async def end(cluster: Cluster, *names: str) -> None:
    for name in names:
        await cluster.delete(name)
    for name in names:
        await cluster.gone(name)


async def test_the_checkpoint_follows_pods(cluster: Cluster, agent: Agent) -> None:
    path = agent.root / "device-plugins/kubelet_internal_checkpoint"

    def users() -> list[str]:
        return [entry["PodUID"] for entry in json.loads(path.read_text())["Data"]["PodDeviceEntries"]]

    with plugin(agent, "a"):
        await until_amounts(cluster, 1, 1)
        pod = await cluster.run("p", with_foo(STAYS))
        await cluster.wait("p", is_running())
        assert users() == [pod["metadata"]["uid"]]
        await end(cluster, "p")
        assert users() == []
