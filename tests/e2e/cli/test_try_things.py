"""A cluster with one flag, taken elsewhere: simulated devices, a snapshot to start from, a recording to replay."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.kubectl.tool import Kubectl
from tests.fork_server import ForkedPopen, run
from tests.servers import Server, running_server

DEVICES = ("--devices=gpu:2xA100,mig", "--devices=nic:1xcx7")
READY_SECONDS = 120.0


def dray(environment: dict[str, str], *arguments: str) -> str:
    done = run([sys.executable, "-m", "dray", *arguments], env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def workload(name: str, device_class: str) -> list[dict[str, object]]:
    request = {"name": "card", "exactly": {"deviceClassName": device_class}}
    container = {"name": "c", "image": "i"}
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": name},
            "spec": {"spec": {"devices": {"requests": [request]}}},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "containers": [container],
                "resourceClaims": [{"name": "card", "resourceClaimTemplateName": name}],
            },
        },
    ]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("server"), "--nodes=2", *DEVICES) as running:
        yield running


@pytest.fixture(scope="module")
def recording(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Pod with a whole card and one with a partition, recorded while they were placed."""
    path = tmp_path_factory.mktemp("recording") / "cluster.jsonl"
    with ForkedPopen(
        [sys.executable, "-m", "dray", "record", str(path)],
        env=server.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        readable, _, _ = select.select([process.stderr], [], [], READY_SECONDS)
        assert readable
        assert "recording" in process.stderr.readline()
        kubectl = Kubectl(server.environment, "default")
        items = [*workload("whole", "gpu"), *workload("part", "mig")]
        kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        for name in ("whole", "part"):
            kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")
        process.send_signal(signal.SIGINT)
        assert process.wait(READY_SECONDS) == 0
    return path


def test_devices_of_a_flag_are_allocated(server: Server, recording: Path) -> None:
    claims = json.loads(dray(server.environment, "claims", "-o", "json"))["items"]
    devices = {item["pods"][0]: item["devices"][0] for item in claims}
    assert devices["whole"].rpartition("/")[2].startswith("gpu-")
    assert "-1g-5gb-" in devices["part"]
    usage = json.loads(dray(server.environment, "top", "classes", "-o", "json"))["items"]
    assert {row["name"]: (row["total"], row["held"]) for row in usage} == {"gpu": (4, 2), "mig": (4, 2), "nic": (2, 0)}


def test_a_recording_is_replayed_to_the_same_nodes(server: Server, recording: Path) -> None:
    nowhere = {**server.environment, "KUBECONFIG": "/nonexistent"}
    pods = json.loads(dray(nowhere, "replay", str(recording), "-o", "json"))["items"]
    assert {pod["name"] for pod in pods} == {"whole", "part"}
    assert all(pod["recorded"]["node"] == pod["replayed"]["node"] for pod in pods), pods
    last = dray(nowhere, "replay", str(recording), "--at=end")
    path = recording.parent / "last.json"
    path.write_text(last)
    assert "whole" in dray(nowhere, "claims", "-f", str(path))


def test_a_cluster_starts_from_a_snapshot(server: Server, recording: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot.json"
    snapshot.write_text(dray(server.environment, "snapshot"))
    before = json.loads(dray(server.environment, "claims", "-o", "json"))["items"]
    with running_server(tmp_path / "other", f"--from={snapshot}") as other:
        kubectl = Kubectl(other.environment, "default")
        for name in ("whole", "part"):
            kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")
        after = json.loads(dray(other.environment, "claims", "-o", "json"))["items"]
        same = ("name", "devices", "node", "pods", "state")
        assert [[item[key] for key in same] for item in after] == [[item[key] for key in same] for item in before]
        # Its nodes run Pods, and its devices can be allocated.
        items = workload("another", "gpu")
        kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        kubectl("wait", "--for=condition=Ready", "pod/another", "--timeout=60s")
