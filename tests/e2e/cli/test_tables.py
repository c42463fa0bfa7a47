"""`dray devices`, `dray claims` and `dray top`: on a cluster, on what kubectl writes, and while things change."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.kubectl.tool import Kubectl
from tests.fork_server import ForkedPopen, run
from tests.servers import Server, running_server
from tests.unit.sim.cluster import GPU, device, device_class, resource_slice

SECONDS_MAX = 120.0
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "node-a"},
    "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10"}},
}


def claim(name: str) -> dict[str, object]:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [request]}},
    }


def pod(name: str, claim_name: str) -> dict[str, object]:
    spec = {
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "c", "image": "i"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": claim_name}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


def dray(server: Server, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-m", "dray", *arguments], env=server.environment | changes)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("server"), "--feature-gates=DRAResourcePoolStatus=true") as running:
        yield running


@pytest.fixture(scope="module")
def kubectl(server: Server) -> Kubectl:
    return Kubectl(server.environment, "default")


@pytest.fixture(scope="module")
def populated(server: Server, kubectl: Kubectl) -> Server:
    """One node with two GPUs, one of them held."""
    objects = [
        NODE,
        device_class("gpu", f'device.driver == "{GPU}"'),
        resource_slice("node-a", GPU, device("gpu-0"), device("gpu-1"), nodeName="node-a"),
        claim("training"),
        pod("trainer", "training"),
    ]
    kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    kubectl("wait", "--for=condition=PodScheduled", "pod/trainer", "--timeout=30s")
    return server


def test_devices_show_their_claims(populated: Server) -> None:
    lines = dray(populated, "devices").stdout.splitlines()
    assert lines[0].split() == ["NODE", "DRIVER", "DEVICE", "STATE", "CLAIM", "PODS", "ALLOCATED", "CLASSES"]
    assert lines[1].split()[:6] == ["node-a", GPU, "gpu-0", "held", "default/training", "trainer"]
    assert lines[2].split()[:5] == ["node-a", GPU, "gpu-1", "free", "-"]


def test_claims_show_their_state(populated: Server) -> None:
    (row,) = json.loads(dray(populated, "claims", "-n", "default", "-o", "json").stdout)["items"]
    assert (row["name"], row["state"], row["node"], row["pods"]) == ("training", "reserved", "node-a", ["trainer"])


def test_top_counts(populated: Server) -> None:
    text = dray(populated, "top", "classes").stdout.splitlines()
    assert text[1].split() == ["gpu", "2", "1", "1", "0", "█████░░░░░", "50%"]


@pytest.mark.behaviour("N-76")
def test_pools_are_counted_here_or_by_the_cluster(populated: Server, kubectl: Kubectl) -> None:
    lines = dray(populated, "top", "pools").stdout.splitlines()
    assert lines[0].split() == ["DRIVER", "POOL", "NODE", "TOTAL", "ALLOCATED", "AVAILABLE", "UNAVAILABLE", "ERROR"]
    assert lines[1].split() == [GPU, "node-a", "node-a", "2", "1", "1", "0", "-"]
    requested = dray(populated, "top", "pools", "--request", GPU)
    assert requested.stdout.splitlines() == lines, requested.stderr
    # The request is gone again.
    assert kubectl("get", "resourcepoolstatusrequests", "-o", "name") == ""


@pytest.mark.behaviour("N-72", "N-74", "N-79")
def test_a_pool_status_request_with_kubectl(populated: Server, kubectl: Kubectl) -> None:
    request = {
        "apiVersion": "resource.k8s.io/v1alpha3",
        "kind": "ResourcePoolStatusRequest",
        "metadata": {"name": "how-full"},
        "spec": {"driver": GPU},
    }
    kubectl("create", "-f", "-", stdin=json.dumps(request))
    kubectl("wait", "--for=condition=Complete", "resourcepoolstatusrequest/how-full", "--timeout=60s")
    lines = kubectl("get", "resourcepoolstatusrequest", "how-full").splitlines()
    assert lines[0].split() == (
        ["NAME", "DRIVER", "TOTAL", "AVAILABLE", "ALLOCATED", "UNAVAILABLE", "ERRORS", "POOLS", "STATUS", "COMPLETED"]
    )
    assert lines[1].split()[:-1] == ["how-full", GPU, "2", "1", "1", "0", "0", "1", "Complete"]
    kubectl("delete", "resourcepoolstatusrequest", "how-full")


def test_output_of_kubectl_gives_the_same_result(populated: Server, kubectl: Kubectl, tmp_path: Path) -> None:
    kinds = "resourceslices,resourceclaims,deviceclasses"
    (tmp_path / "dump.yaml").write_text(kubectl("get", kinds, "-A", "-o", "yaml"))
    here = dray(populated, "devices", "-o", "json")
    there = dray(populated, "devices", "-o", "json", "-f", str(tmp_path), KUBECONFIG="/nowhere")
    assert here.stdout == there.stdout
    assert json.loads(here.stdout)["items"][0]["state"] == "held"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("devices", "-f", "/no/such/file"), 1, "dray devices: /no/such/file: No such file or directory"),
        (("devices", "--kubeconfig", "/no/such"), 1, "error loading config file '/no/such'"),
        (("claims", "-w", "-f", "-"), 2, "--watch needs a cluster; files do not change"),
        (("top", "nodes", "--request", "gpu.example.com"), 2, "--request is for pools of a cluster, counted once"),
        (("top", "-o", "csv"), 2, "specify classes, nodes, pools, counters, namespaces or fragmentation"),
    ],
)
def test_usage_errors_of_tables(populated: Server, arguments: tuple[str, ...], code: int, message: str) -> None:
    answer = dray(populated, *arguments)
    assert (answer.returncode, message in answer.stderr) == (code, True), answer.stderr


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    deadline = time.monotonic() + SECONDS_MAX
    text = b""
    while True:
        while b"\n" in text:
            line, _, text = text.partition(b"\n")
            yield line.decode()
        ready, _, _ = select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0))
        assert ready, "nothing was printed any more"
        chunk = os.read(process.stdout.fileno(), 65536)
        assert chunk, "the command ended"
        text += chunk


def test_watch_prints_changes(populated: Server, kubectl: Kubectl) -> None:
    command = [sys.executable, "-m", "dray", "claims", "--watch"]
    process = ForkedPopen(command, env=populated.environment, stdout=subprocess.PIPE)
    try:
        lines = _lines(process)
        assert next(line for line in lines if line.startswith("default")).split()[1] == "training"
        kubectl("create", "-f", "-", stdin=json.dumps(claim("zebra")))
        assert "pending" in next(line for line in lines if "zebra" in line)
    finally:
        process.terminate()
        process.wait(SECONDS_MAX)
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("explain pod tr", "trainer"),
        ("explain claim/", "claim/training"),
        ("explain pod x -n def", "default"),
        ("devices --node n", "node-a"),
        ("devices --class g", "gpu"),
    ],
)
def test_names_are_completed(words: str, found: str, populated: Server) -> None:
    assert found in dray(populated, "complete", *words.split(" ")).stdout.splitlines()


def test_a_snapshot_is_what_the_tools_read(populated: Server, tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(dray(populated, "snapshot").stdout)
    kinds = {item["kind"] for item in json.loads(path.read_text())["items"]}
    assert {"Node", "Pod", "ResourceClaim", "ResourceSlice", "DeviceClass", "Event", "Namespace"} <= kinds
    assert not kinds & {"Secret", "ConfigMap"}
    assert "managedFields" not in path.read_text()
    for arguments in (["claims", "-o", "name"], ["devices", "-o", "name"], ["top", "classes", "-o", "json"]):
        assert dray(populated, *arguments, "-f", str(path)).stdout == dray(populated, *arguments).stdout
    explained = dray(populated, "explain", "pod/trainer", "-f", str(path)).stdout
    assert explained.splitlines()[0].startswith("pod default/trainer is ")
