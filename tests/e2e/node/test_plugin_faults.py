"""Device plugins that are away, slow or frozen, with a real agent; the runtime makes no difference here."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.e2e.kubectl.tool import Kubectl
from tests.e2e.node.devices import FOO, held, plugin, until, until_amounts, with_foo
from tests.e2e.node.harness import Agent, Cluster, container_status, is_running, is_waiting, shell

STAYS = 'trap "exit 0" TERM; while true; do sleep 0.05; done'


@pytest.mark.behaviour("DP-47", "DP-51", "DP-33")
async def test_an_agent_restart_keeps_what_was_admitted(cluster: Cluster, agent: Agent) -> None:
    marker = agent.root / f"go-{cluster.namespace}"
    on_host: dict[str, Any] = {"volumes": [{"name": "h", "hostPath": {"path": str(agent.root)}}]}
    with plugin(agent, "a", "b") as devices:
        await until_amounts(cluster, 2, 2)
        # Its init container had the device that its container has now.
        init = with_foo("true", name="i")
        await cluster.run("runs", with_foo(STAYS), initContainers=[init])
        before = await cluster.wait("runs", is_running())
        crashes = with_foo(
            f"test -e {marker} && sleep 60; exit 3", volumeMounts=[{"name": "h", "mountPath": str(agent.root)}]
        )
        await cluster.run("crashes", crashes, restartPolicy="Always", **on_host)
        await cluster.wait("crashes", lambda pod: container_status(pod).get("restartCount", 0) > 0)
        agent.kill()
        devices.kill()
        agent.start()
        await until_amounts(cluster, 0, 0)
        waits = await cluster.wait("crashes", is_waiting("CreateContainerConfigError"))
        assert waits["status"]["phase"] == "Running"
        text = f"waiting for the device plugin of {FOO} to register"
        assert container_status(waits)["state"]["waiting"]["message"] == text
        event = await cluster.wait_event("crashes", lambda item: item["message"] == f"Error: {text}")
        assert (event["type"], event["reason"]) == ("Warning", "Failed")
        after = await cluster.wait("runs", is_running())
        assert container_status(after)["containerID"] == container_status(before)["containerID"]
        assert after["status"]["phase"] == "Running"
        # The device is reset before the container starts again.
        marker.touch()
        (devices.control / "in-pre-start").unlink()
        devices.start()
        await cluster.wait("crashes", is_running())
        assert (devices.control / "in-pre-start").exists()
        assert await held(agent) == {"runs": ["a"], "crashes": ["b"]}
        for name in ("runs", "crashes"):
            await cluster.delete(name)
            await cluster.gone(name)


@pytest.mark.behaviour("DP-52", "DP-53", "DP-23")
async def test_a_plugin_that_is_frozen_while_it_allocates(cluster: Cluster, agent: Agent, kubectl: Kubectl) -> None:
    with plugin(agent, "a") as devices:
        await until_amounts(cluster, 1, 1)
        (devices.control / "in-allocate").unlink(missing_ok=True)
        (devices.control / "hold").touch()
        await cluster.run("held-up", with_foo("true"))
        await until((devices.control / "in-allocate").exists)
        assert devices.process is not None
        devices.process.send_signal(signal.SIGSTOP)
        # Others come and go.
        await cluster.run("other", shell("a", "true"))
        await cluster.phase("other", "Succeeded")
        event = await cluster.event("held-up", "WaitingForDevices")
        assert event["message"] == f"waiting for Allocate of the device plugin of {FOO}"
        # The plugin comes to an end before it was found out: its Pod is rejected, and says so.
        devices.kill()
        await cluster.phase("held-up", "Failed")
        assert "UnexpectedAdmissionError" in kubectl("get", "pod", "held-up", "--no-headers")
        (devices.control / "hold").unlink()
