"""kill -9 of a real scheduler at each write for a Pod with extended resources that a driver serves."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.scheduler.cluster import node
from tests.e2e.scheduler.test_processes import SECONDS_MAX, apply, bare_server, eventually, kubectl, node_of, scheduler
from tests.fork_server import ForkedPopen
from tests.servers import Server

__all__ = ["bare_server"]

PROGRAM = Path(__file__).with_name("crashing_scheduler.py")
NAME = "example.com/gpu"
# Creating the claim, the Pod's status, allocation, reservation, binding: no attempt has more writes.
WRITES_MAX = 8


@contextmanager
def crashing(server: Server, file: Path, log: Path) -> Iterator[subprocess.Popen[str]]:
    kubeconfig = f"--kubeconfig={server.data_dir / 'scheduler'}.kubeconfig"
    command = [sys.executable, str(PROGRAM), str(file), "--port=0", "--leader-elect=false", kubeconfig]
    with log.open("a") as errors:
        process = ForkedPopen(command, stdout=errors, stderr=errors)
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def claims(server: Server) -> list[dict[str, Any]]:
    return list(json.loads(kubectl(server, "get", "resourceclaims", "-o", "json"))["items"])


def devices(server: Server) -> list[str]:
    """The allocated devices; none twice."""
    allocations = [item["status"].get("allocation") for item in claims(server) if "status" in item]
    found = [result["device"] for item in allocations if item for result in item["devices"]["results"]]
    assert len(found) == len(set(found))
    return found


@pytest.mark.behaviour("XR-46")
def test_a_killed_scheduler_leaves_one_claim_for_each_pod(bare_server: Server, tmp_path: Path) -> None:
    api = "resource.k8s.io/v1"
    listed = [{"name": f"d{number}"} for number in range(2 * WRITES_MAX + 2)]
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    apply(
        bare_server,
        node("n", cpu="64"),
        {"apiVersion": api, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"extendedResourceName": NAME}},
        {
            "apiVersion": api,
            "kind": "ResourceSlice",
            "metadata": {"name": "n"},
            "spec": {"driver": "gpu.example.com", "nodeName": "n", "pool": pool, "devices": listed},
        },
    )
    crash, log, ran = tmp_path / "crash", tmp_path / "log", 0
    for place in (f"{when} {number}" for number in range(1, WRITES_MAX + 1) for when in ("before", "after")):
        name = f"p-{place.replace(' ', '-')}"
        crash.write_text(place)
        with crashing(bare_server, crash, log) as process:
            limits = {"limits": {NAME: "1"}}
            pod = {"containers": [{"name": "a", "image": "x", "resources": limits}]}
            apply(bare_server, {"metadata": {"name": name}, "spec": pod})
            deadline = time.monotonic() + SECONDS_MAX
            while process.poll() is None and not _bound(bare_server, name):
                assert time.monotonic() < deadline, log.read_text()
        killed = process.returncode == -9 and not crash.exists()
        with scheduler(bare_server, log, "--leader-elect=false"):
            assert node_of(bare_server, name) == "n"
            ran += 1
            # Whatever the one before has left is removed or used.
            eventually(lambda: str(len(claims(bare_server))), str(ran).__eq__)
            assert len(devices(bare_server)) == ran
        used = json.loads(kubectl(bare_server, "get", "pod", name, "-o", "json"))["status"]
        (own,) = (item for item in claims(bare_server) if item["metadata"]["ownerReferences"][0]["name"] == name)
        assert used["extendedResourceClaimStatus"]["resourceClaimName"] == own["metadata"]["name"]
        assert [user["name"] for user in own["status"]["reservedFor"]] == [name]
        if not killed:
            # There is no such write.
            break
    assert ran >= 9


def _bound(server: Server, name: str) -> bool:
    return bool(kubectl(server, "get", "pod", name, "-o", "jsonpath={.spec.nodeName}"))
