"""Pods on a real agent, by processes and by containerd alike."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from dray.api.timestamps import parse_time
from tests.e2e.kubectl.tool import Kubectl
from tests.e2e.node.conftest import BOTH
from tests.e2e.node.harness import (
    NODES,
    PODS,
    Agent,
    Cluster,
    container_status,
    is_ready,
    is_running,
    is_waiting,
    shell,
    terminated,
)

RUNTIMES = BOTH
_NUMBERS = itertools.count(os.getpid() * 100)


async def test_the_node_registers_itself(cluster: Cluster, agent: Agent, runtime: str) -> None:
    node = await cluster.client.get(NODES, agent.name)
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == agent.name
    assert node["status"]["nodeInfo"]["containerRuntimeVersion"].startswith(
        "containerd://" if runtime == "cri" else "process://"
    )
    assert node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] > 0
    assert any(item["type"] == "Ready" and item["status"] == "True" for item in node["status"]["conditions"])


@pytest.mark.parametrize(("code", "phase", "reason"), [(0, "Succeeded", "Completed"), (3, "Failed", "Error")])
async def test_exit_codes(cluster: Cluster, code: int, phase: str, reason: str) -> None:
    await cluster.run("p", shell("a", f"exit {code}"))
    pod = await cluster.phase("p", "Succeeded", "Failed")
    assert pod["status"]["phase"] == phase
    assert (terminated(pod)["exitCode"], terminated(pod)["reason"]) == (code, reason)
    assert parse_time(terminated(pod)["startedAt"]) <= parse_time(terminated(pod)["finishedAt"])


async def test_a_signal_is_reported(cluster: Cluster) -> None:
    await cluster.run("p", shell("a", "sh -c 'kill -9 $PPID'; sleep 60"))
    # A container's first process is immune to its own signals: only the process runtime sees this one.
    pod = await cluster.wait("p", lambda item: terminated(item) or is_running()(item))
    if terminated(pod):
        assert (terminated(pod)["exitCode"], terminated(pod)["signal"]) == (137, 9)


async def test_a_command_that_is_not_there(cluster: Cluster) -> None:
    await cluster.run("p", shell("a", "") | {"command": ["no-such-program"]})
    pod = await cluster.phase("p", "Failed")
    assert (terminated(pod)["exitCode"], terminated(pod)["reason"]) == (128, "StartError")
    assert "no-such-program" in terminated(pod)["message"]
    assert "no-such-program" in (await cluster.event("p", "Failed"))["message"]


async def test_environment_and_expansion(cluster: Cluster, kubectl: Kubectl) -> None:
    env = [
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)2"},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    container = {
        "name": "a",
        "image": "busybox",
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c"],
        "args": ["echo $B $NODE $(A)"],
        "env": env,
    }
    await cluster.run("p", container)
    await cluster.phase("p", "Succeeded")
    assert kubectl("logs", "p") == f"12 {cluster.node} 1\n"


async def test_restarts_with_growing_pauses(cluster: Cluster, kubectl: Kubectl) -> None:
    await cluster.run("p", shell("a", "echo run; exit 1"), restartPolicy="OnFailure")
    pod = await cluster.wait("p", is_waiting("CrashLoopBackOff"))
    status = container_status(pod)
    assert status["lastState"]["terminated"]["exitCode"] == 1
    assert "restarting failed container=a pod=p_" in status["state"]["waiting"]["message"]
    assert pod["status"]["phase"] == "Running"
    pod = await cluster.wait("p", lambda item: container_status(item).get("restartCount", 0) >= 2)
    assert kubectl("logs", "p", "--previous") == "run\n"
    assert (await cluster.event("p", "BackOff"))["type"] == "Warning"


async def test_a_container_that_recovers(cluster: Cluster, agent: Agent) -> None:
    marker = agent.root / f"marker-{cluster.namespace}"
    volume = {"name": "h", "hostPath": {"path": str(agent.root)}}
    mount = [{"name": "h", "mountPath": str(agent.root)}]
    script = f"test -e {marker} && exit 0; touch {marker}; exit 1"
    await cluster.run("p", shell("a", script, volumeMounts=mount), restartPolicy="OnFailure", volumes=[volume])
    pod = await cluster.phase("p", "Succeeded")
    assert container_status(pod)["restartCount"] == 1


async def test_init_containers_and_sidecars(cluster: Cluster, kubectl: Kubectl) -> None:
    sidecar = shell("side", 'trap "echo bye; exit 0" TERM; while true; do sleep 0.1; done', restartPolicy="Always")
    await cluster.run("p", shell("a", "sleep 0.3"), initContainers=[shell("i", "echo first"), sidecar])
    pod = await cluster.phase("p", "Succeeded")
    assert terminated(pod, "i")["exitCode"] == 0
    assert terminated(pod, "side")["exitCode"] == 0
    first, second = terminated(pod, "i")["finishedAt"], terminated(pod, "a")["startedAt"]
    assert parse_time(first) <= parse_time(second)
    assert kubectl("logs", "p", "-c", "side") == "bye\n"


async def test_a_failed_init_container_fails_the_pod(cluster: Cluster) -> None:
    await cluster.run("p", shell("a", "true"), initContainers=[shell("i", "exit 7")])
    pod = await cluster.phase("p", "Failed")
    assert terminated(pod, "i")["exitCode"] == 7
    assert "waiting" in container_status(pod)["state"]


async def test_grace_then_force(cluster: Cluster) -> None:
    await cluster.run("polite", shell("a", 'trap "exit 0" TERM; while true; do sleep 0.05; done'))
    await cluster.run("stubborn", shell("a", 'trap "" TERM; while true; do sleep 0.05; done'))
    for name in ("polite", "stubborn"):
        await cluster.wait(name, is_running())
    began = time.monotonic()
    await cluster.delete("polite")
    await cluster.gone("polite")
    assert time.monotonic() - began < 1
    began = time.monotonic()
    await cluster.delete("stubborn")
    await cluster.gone("stubborn")
    assert 0.9 < time.monotonic() - began < 5


async def test_force_deletion_ends_containers(cluster: Cluster) -> None:
    # Both runtimes show processes of containers to the node.
    seconds = str(next(_NUMBERS))
    await cluster.run("p", shell("a", f"sleep {seconds}"), terminationGracePeriodSeconds=0)
    await cluster.wait("p", is_running())
    await cluster.until(lambda: _has_process("sleep", seconds))
    await cluster.delete("p", 0)
    await cluster.gone("p")
    await cluster.until(lambda: not _has_process("sleep", seconds))


def _has_process(*command: str) -> bool:
    """Whether a process of the machine has these arguments."""
    wanted = "\0".join((*command, "")).encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes() == wanted:
                return True
    return False


async def test_hooks(cluster: Cluster, kubectl: Kubectl, agent: Agent) -> None:
    volume = {"name": "h", "hostPath": {"path": str(agent.root)}}
    mount = [{"name": "h", "mountPath": str(agent.root)}]
    path = agent.root / f"hooks-{cluster.namespace}"

    def hook(word: str) -> dict[str, object]:
        return {"exec": {"command": ["sh", "-c", f"echo {word} >> {path}"]}}

    lifecycle = {"postStart": hook("begun"), "preStop": hook("ending")}
    await cluster.run("p", shell("a", "sleep 60", lifecycle=lifecycle, volumeMounts=mount), volumes=[volume])
    await cluster.wait("p", is_running())
    assert path.read_text() == "begun\n"
    await cluster.delete("p")
    await cluster.gone("p")
    assert path.read_text() == "begun\nending\n"


async def test_a_failing_hook_ends_the_container(cluster: Cluster) -> None:
    lifecycle = {"postStart": {"exec": {"command": ["false"]}}}
    await cluster.run("p", shell("a", "sleep 60", lifecycle=lifecycle))
    assert "PostStartHook failed" in (await cluster.event("p", "FailedPostStartHook"))["message"]
    await cluster.phase("p", "Failed")


async def test_probes_by_command(cluster: Cluster, agent: Agent) -> None:
    path = agent.root / f"ready-{cluster.namespace}"
    probe = {"exec": {"command": ["test", "-e", str(path)]}, "periodSeconds": 1, "failureThreshold": 1}
    volume = {"name": "h", "hostPath": {"path": str(agent.root)}}
    mount = [{"name": "h", "mountPath": str(agent.root)}]
    await cluster.run("p", shell("a", "sleep 60", readinessProbe=probe, volumeMounts=mount), volumes=[volume])
    pod = await cluster.wait("p", is_running())
    assert not is_ready(pod)
    assert (await cluster.event("p", "Unhealthy"))["message"].startswith("Readiness probe failed")
    path.touch()
    await cluster.wait("p", is_ready)


async def test_a_failed_liveness_probe_restarts(cluster: Cluster) -> None:
    probe = {"tcpSocket": {"port": 1}, "periodSeconds": 1, "failureThreshold": 1, "initialDelaySeconds": 0}
    await cluster.run("p", shell("a", "sleep 60", livenessProbe=probe), restartPolicy="Always")
    await cluster.wait("p", lambda pod: container_status(pod).get("restartCount", 0) >= 1)
    assert (await cluster.event("p", "Killing"))["message"] == "Container a failed liveness probe, will be restarted"


async def test_a_startup_probe_holds_readiness_back_and_http_is_asked(cluster: Cluster) -> None:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    http = {"httpGet": {"port": port, "path": "/etc/passwd"}, "periodSeconds": 1, "failureThreshold": 30}
    script = f"exec busybox httpd -f -p {port} -h /"
    await cluster.run("p", shell("a", script, startupProbe=http, ports=[{"containerPort": port}]))
    pod = await cluster.wait("p", is_ready)
    assert container_status(pod)["started"] is True


async def test_a_deadline(cluster: Cluster) -> None:
    await cluster.run("p", shell("a", "sleep 60"), activeDeadlineSeconds=1)
    pod = await cluster.phase("p", "Failed")
    assert (pod["status"]["reason"], pod["status"]["message"]) == (
        "DeadlineExceeded",
        "Pod was active on the node longer than the specified deadline",
    )


async def test_a_pod_that_does_not_fit_is_rejected(cluster: Cluster) -> None:
    await cluster.run("p", shell("a", "true", resources={"requests": {"cpu": "5000"}}))
    pod = await cluster.phase("p", "Failed")
    assert pod["status"]["reason"] == "OutOfcpu"
    assert pod["status"]["message"].startswith("Pod was rejected: Node didn't have enough resource: cpu")


async def test_the_agent_is_killed_and_containers_run_on(cluster: Cluster, agent: Agent, kubectl: Kubectl) -> None:
    script = "i=0; while test $i -lt 200; do i=$((i+1)); echo $i; sleep 0.05; done"
    await cluster.run("runs", shell("a", script))
    await cluster.run("ends", shell("a", "sleep 0.5; exit 4"))
    await cluster.run("orphan", shell("a", 'trap "exit 0" TERM; while true; do sleep 0.05; done'))
    before = {name: await cluster.wait(name, is_running()) for name in ("runs", "ends", "orphan")}
    agent.kill()
    await cluster.delete("orphan", 0)
    await cluster.gone("orphan")
    ids = {name: container_status(pod)["containerID"] for name, pod in before.items()}
    agent.start()
    pod = await cluster.phase("ends", "Failed")
    assert (terminated(pod)["exitCode"], container_status(pod)["containerID"]) == (4, ids["ends"])
    pod = await cluster.client.get(PODS, "runs", cluster.namespace)
    assert container_status(pod)["containerID"] == ids["runs"]
    assert container_status(pod)["restartCount"] == 0
    lines = [int(text) for text in kubectl("logs", "runs").split()]
    assert lines == list(range(1, len(lines) + 1))
    deadline = time.monotonic() + 10
    folder = agent.root / "containers"
    while any(ids["orphan"].rpartition("/")[2] in str(path) for path in folder.glob("*/*")):
        assert time.monotonic() < deadline
    await cluster.delete("runs", 0)


async def test_a_container_whose_shim_is_killed_ends_too(cluster: Cluster, agent: Agent, runtime: str) -> None:
    if runtime == "cri":
        pytest.skip("containerd has shims of its own")
    before = set(agent.shims())
    await cluster.run("p", shell("a", "sleep 60"))
    await cluster.wait("p", is_running())
    # The process that started the shim may still be on its way out.
    deadline = time.monotonic() + 10
    while len(found := set(agent.shims()) - before) != 1:
        assert time.monotonic() < deadline, found
    (mine,) = found
    children = _children(mine)
    os.kill(mine, signal.SIGKILL)
    pod = await cluster.phase("p", "Failed")
    assert (terminated(pod)["exitCode"], terminated(pod)["reason"]) == (255, "Unknown")
    deadline = time.monotonic() + 10
    while any(_runs(pid) for pid in children):
        assert time.monotonic() < deadline


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
