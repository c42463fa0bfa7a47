"""Nodes inside `dray up`: simulated ones by the hundred, and the agent of this machine; who may read logs."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dray.api.document import GroupVersion
from dray.api.errors import NotFoundError, NotOfferedError
from dray.client.interface import unstructured
from dray.cmd.containers import end_containers
from dray.cmd.local_clusters import start_ticks
from dray.runtime.http.client import HttpClient
from dray.runtime.http.dialing import Route
from dray.runtime.http.urls import parse_url
from tests.e2e.kubectl.tool import Kubectl
from tests.e2e.node.devices import until
from tests.e2e.node.harness import (
    NODES,
    PODS,
    Agent,
    Cluster,
    client_of,
    container_status,
    is_running,
    shell,
    terminated,
)
from tests.fork_server import run
from tests.servers import Server, running_server

LEASES = unstructured(GroupVersion("coordination.k8s.io", "v1"), "leases", "Lease")
ACCOUNTS = unstructured(GroupVersion("", "v1"), "serviceaccounts", "ServiceAccount")
COUNT = 200
STREAMS_AUDITED = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "resources": [{"group": "", "resources": ["pods/log", "pods/exec"]}]}],
}
SECONDS_MAX = 120.0


async def wait_for_account(cluster: Cluster) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            await cluster.client.get(ACCOUNTS, "default", cluster.namespace)
        except NotFoundError:
            await asyncio.sleep(0.02)
        else:
            return
    raise AssertionError("no service account")


def attach_and_execute(server: Server, refusal: str) -> None:
    """Attach to the simulated Pod `runs`, which ends at once, and try to run a command in it, with both protocols."""
    for websockets in ("true", "false"):
        kubectl = Kubectl({**server.environment, "KUBECTL_REMOTE_COMMAND_WEBSOCKETS": websockets}, "default")
        for flags in ((), ("-i",)):
            attached = kubectl.run("attach", *flags, "runs")
            assert (attached.code, attached.out) == (0, ""), attached
        assert refusal in kubectl.run("exec", "runs", "--", "true").err


@pytest.mark.behaviour("EX-09")
async def test_simulated_nodes_run_pods(tmp_path: Path) -> None:
    with running_server(tmp_path, f"--nodes={COUNT}", "--store=memory") as server:
        client = client_of(server)
        cluster = Cluster(client, "", "default")
        nodes = (await client.list(NODES)).items
        assert len(nodes) == COUNT
        assert all(
            any(item["type"] == "Ready" and item["status"] == "True" for item in node["status"]["conditions"])
            for node in nodes
        )
        await wait_for_account(cluster)
        annotations = {"simulation.dray.dev/run-seconds": "0.1", "simulation.dray.dev/exit-code": "3"}
        inits = [shell("sidecar", "ignored", restartPolicy="Always"), shell("init", "ignored")]
        await cluster.run(
            "ends", shell("a", "ignored"), nodeName=None, metadata={"annotations": annotations}, initContainers=inits
        )
        await cluster.run("runs", shell("a", "ignored"), nodeName=None, restartPolicy="Always")
        pod = await cluster.phase("ends", "Failed")
        assert terminated(pod)["exitCode"] == 3
        states = {item["name"]: item["state"] for item in pod["status"]["initContainerStatuses"]}
        assert states["init"]["terminated"]["reason"] == "Completed"
        assert states["sidecar"]["terminated"]["exitCode"] == 143
        pod = await cluster.phase("runs", "Running")
        assert container_status(pod)["containerID"].startswith("simulated://")
        simulated = "is simulated: its containers have no processes, logs or ports"
        with pytest.raises(NotOfferedError, match=f"node {pod['spec']['nodeName']} {simulated}"):
            await client.get_subresource(PODS, "runs", "default", "log")
        attach_and_execute(server, simulated)
        await cluster.delete("runs")
        await cluster.gone("runs")
        lease = await client.get(LEASES, nodes[-1]["metadata"]["name"], "kube-node-lease")
        assert lease["spec"]["holderIdentity"] == nodes[-1]["metadata"]["name"]
        await client.close()


@pytest.mark.behaviour("AU-03", "EX-04", "EX-09")
async def test_the_agent_inside_up_runs_pods_and_guards_their_logs(tmp_path: Path) -> None:
    policy, log = tmp_path / "policy.json", tmp_path / "audit.log"
    policy.write_text(json.dumps(STREAMS_AUDITED))
    audit = (f"--audit-policy-file={policy}", f"--audit-log-path={log}", f"--node-root-dir={tmp_path / 'node'}")
    with running_server(tmp_path, "--node", "--node-runtime=process", "--store=memory", *audit) as server:
        client = client_of(server)
        cluster = Cluster(client, "", "default")
        await wait_for_account(cluster)
        await cluster.run("q", shell("a", "sleep 1000"), nodeName=None)
        await cluster.run("p", shell("a", "echo hello"), nodeName=None)
        pod = await cluster.phase("p", "Succeeded")
        kubectl = Kubectl(server.environment, "default")
        assert kubectl("logs", "p") == "hello\n"
        await cluster.wait("q", is_running())
        kubectl("exec", "q", "--", "true")
        await until(lambda: log.read_bytes().count(b"\n") == 4)
        events = [json.loads(line) for line in log.read_bytes().splitlines()]
        assert [
            (item["objectRef"]["subresource"], item["stage"], item["responseStatus"]["code"]) for item in events
        ] == [
            ("log", "ResponseStarted", 200),
            ("log", "ResponseComplete", 200),
            ("exec", "ResponseStarted", 101),
            ("exec", "ResponseComplete", 101),
        ]
        node = await client.get(NODES, pod["spec"]["nodeName"])
        await client.close()
        port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        url = f"https://{node['status']['addresses'][0]['address']}:{port}/containerLogs/default/p/a"
        pki = tmp_path / "pki"
        assert await status_of(url, pki, "apiserver-kubelet-client") == 200
        assert await status_of(url, pki, "admin") == 200
        assert await status_of(url, pki, "scheduler") == 403
        assert await status_of(url, pki, "") == 401


# A process that ignores SIGTERM, with a child of its own, and their process IDs; $$$$ is $$ for the shell.
STUBBORN = "trap '' TERM; sleep 1000 & echo $$$$ $! > {}; wait; while true; do sleep 1; done"


@pytest.fixture
async def root(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    """A root directory of an agent that is not in the data directory; no container is left if a test fails."""
    # A short name: the paths of sockets are limited to 107 bytes.
    folder = tmp_path_factory.mktemp("n") / "r"
    yield folder
    await end_containers(folder, grace_seconds=0)


@pytest.mark.parametrize("keep", [False, True], ids=["end", "keep"])
async def test_containers_end_with_the_cluster_unless_they_are_kept(tmp_path: Path, root: Path, keep: bool) -> None:
    pids = tmp_path / "pids"
    flags = ("--node", "--node-runtime=process", f"--node-root-dir={root}", f"--keep-containers={str(keep).lower()}")
    data = tmp_path / "data"
    with running_server(data, *flags) as server:
        client = client_of(server)
        cluster = Cluster(client, "", "default")
        await wait_for_account(cluster)
        await cluster.run("p", shell("a", STUBBORN.format(pids)), nodeName=None)
        await cluster.run("q", shell("a", "sleep 1000"), nodeName=None)
        await cluster.wait("q", is_running())
        await until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        await client.close()
        shims = Agent(server, root, "").shims()
        assert len(shims) == 2
        every = [*shims, *map(int, pids.read_text().split())]
        assert all(start_ticks(pid) for pid in every)
        assert server.stop() == 0
        said = server.log.read_text()
    if keep:
        assert all(start_ticks(pid) for pid in every)
        assert "stopping" not in said.partition("stopping on SIGTERM")[2]
        down = run([sys.executable, "-m", "dray", "down", f"--data-dir={data}"], env=os.environ.copy())
        assert down.stdout == f"{data} was not running\n", down.stderr
    else:
        assert "dray up: stopping 2 containers, for at most 3 seconds\ndray up: 2 of 2 containers stopped\n" in said
    assert [pid for pid in every if start_ticks(pid)] == []


async def status_of(url: str, pki: Path, client: str) -> int:
    context = ssl.create_default_context(cafile=str(pki / "kubelet-serving-ca.crt"))
    if client:
        context.load_cert_chain(pki / f"{client}.crt", pki / f"{client}.key")
    address = parse_url(url)
    with await HttpClient(Route(address.origin, context), keep=False).send("GET", address.target) as answer:
        await answer.read()
        return answer.status
