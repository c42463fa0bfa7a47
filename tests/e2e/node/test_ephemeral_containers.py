"""Ephemeral containers and `kubectl debug`, by processes and by containerd alike."""

from __future__ import annotations

import pytest

from dray.api.document import Document
from dray.client.interface import Patch, PatchType, WriteOptions
from tests.e2e.kubectl.tool import Kubectl, needs_kubectl
from tests.e2e.node.conftest import BOTH
from tests.e2e.node.harness import PODS, Agent, Cluster, is_running, shell
from tests.e2e.node.test_streams import KubectlProcess, reads
from tests.servers import Server

RUNTIMES = BOTH


def ephemeral(pod: Document, name: str = "d") -> Document:
    statuses = pod.get("status", {}).get("ephemeralContainerStatuses", [])
    found: Document = next((item["state"] for item in statuses if item["name"] == name), {})
    return found


async def add(cluster: Cluster, container: Document) -> None:
    patch = Patch(PatchType.STRATEGIC, {"spec": {"ephemeralContainers": [container]}})
    options = WriteOptions(subresource="ephemeralcontainers")
    await cluster.client.patch(PODS, "p", cluster.namespace, patch, options)


@pytest.mark.behaviour("EX-43")
async def test_an_ephemeral_container_runs_once_beside_the_others(
    cluster: Cluster, kubectl: Kubectl, agent: Agent, runtime: str
) -> None:
    await cluster.run("p", shell("a", "sleep 1000"), restartPolicy="Always")
    await cluster.wait("p", is_running())
    script = "tr '\\0' ' ' < /proc/1/cmdline; echo; exit 3" if runtime == "cri" else "echo sleep; exit 3"
    await add(cluster, shell("d", script, imagePullPolicy="IfNotPresent", targetContainerName="a"))
    pod = await cluster.wait("p", lambda pod: "terminated" in ephemeral(pod))
    assert ephemeral(pod)["terminated"]["exitCode"] == 3
    assert pod["status"]["phase"] == "Running"
    assert pod["status"]["containerStatuses"][0]["ready"]
    assert "sleep" in kubectl("logs", "p", "-c", "d")
    agent.kill()
    agent.start()
    kubectl("exec", "p", "-c", "a", "--", "true")
    pod = await cluster.client.get(PODS, "p", cluster.namespace)
    assert ephemeral(pod)["terminated"]["exitCode"] == 3
    await add(cluster, shell("e", "sleep 1000", imagePullPolicy="IfNotPresent"))
    await cluster.wait("p", lambda pod: "running" in ephemeral(pod, "e"))
    assert kubectl("exec", "p", "-c", "e", "--", "echo", "there") == "there\n"
    await cluster.delete("p", 0)
    await cluster.gone("p")


@needs_kubectl(25)
@pytest.mark.behaviour("EX-44")
async def test_debug(cluster: Cluster, server: Server, agent: Agent) -> None:
    await cluster.run("p", shell("a", "sleep 1000"))
    await cluster.wait("p", is_running())
    tool = KubectlProcess(server, cluster.namespace)
    flags = ("--image=busybox", "--image-pull-policy=IfNotPresent", "--target=a", "-i", "--quiet", "--profile=general")
    with tool.piped("debug", "p", *flags, "--", "sh", "-c", "read line; echo got $line") as process:
        # Without the end of input, at which containerd detaches clients.
        assert process.stdin is not None
        process.stdin.write(b"word\n")
        process.stdin.flush()
        reads(process, b"got word\n")
    copy = (
        "--copy-to=q",
        # Not on the node of another runtime, whose agent has ended.
        "--same-node",
        "--image=busybox",
        "--image-pull-policy=IfNotPresent",
        "--share-processes",
        "--profile=general",
    )
    done = tool.run("debug", "p", *copy, "--container=d", "--attach=false", "--", "sleep", "1000")
    assert done.returncode == 0, done
    await cluster.wait("q", is_running("d"))
    await cluster.delete("q", 1)
    await cluster.gone("q")
