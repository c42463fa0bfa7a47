"""`dray usage` and `dray top --since`: what `dray up` records, also over a restart and with few rights."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dray.cmd.usage_recorder import DAMAGED_SUFFIX, FILE
from tests.e2e.cli.test_tables import NODE, claim, pod
from tests.e2e.kubectl.tool import Kubectl
from tests.fork_server import run
from tests.servers import Server, running_server
from tests.unit.sim.cluster import GPU, device, device_class, resource_slice

SECONDS_MAX = 120.0
INTERVAL = "--usage-interval=100ms"


def dray(server: Server, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-m", "dray", *arguments], env=server.environment | changes)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, "it did not become true"


def hours(server: Server) -> float:
    """The device-hours of namespace default by class gpu, as a spreadsheet reads them."""
    done = dray(server, "usage", "--since=1h", "-o", "csv")
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    return sum(float(row["DEVICE-HOURS"]) for row in rows if (row["NAMESPACE"], row["CLASS"]) == ("default", "gpu"))


def course(server: Server) -> dict[str, Any]:
    done = dray(server, "top", "classes", "--since=10m", "-o", "json")
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)["items"]
    return next(row for row in rows if row["name"] == "gpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("usage")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """One node with two GPUs, one of them held."""
    with running_server(folder, INTERVAL) as running:
        kubectl = Kubectl(running.environment, "default")
        slices = resource_slice("node-a", GPU, device("gpu-0"), device("gpu-1"), nodeName="node-a")
        objects = [NODE, device_class("gpu", f'device.driver == "{GPU}"'), slices, claim("c"), pod("trainer", "c")]
        kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        kubectl("wait", "--for=condition=PodScheduled", "pod/trainer", "--timeout=30s")
        yield running


def test_device_hours_grow_while_a_claim_has_a_device(server: Server) -> None:
    until(lambda: hours(server) >= 0.001)
    found = course(server)
    assert (found["devices"], found["now"], found["peak"]) == (2, 0.5, 0.5)
    assert 0 < found["average"] <= 0.5
    table = dray(server, "top", "--since=10m")
    assert [line.split()[:3] for line in table.stdout.splitlines() if "gpu" in line] == [
        ["gpu", "2", "50%"],
        ["default", "gpu", "1.0"],
    ]
    assert "of 10m were recorded; the rest is not counted" in table.stderr
    metrics = Kubectl(server.environment, "default")("get", "--raw", "/metrics")
    assert 'dray_devices{device_class="gpu",state="in_use"} 1.0' in metrics
    assert 'dray_device_seconds_total{device_class="gpu",namespace="default"}' in metrics


@pytest.mark.behaviour("XR-45")
def test_the_requests_of_pods_are_served_in_the_same_process(server: Server) -> None:
    kubectl = Kubectl(server.environment, "default")
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}}
    asking = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asking"}, "spec": {"containers": [container]}}
    kubectl("apply", "-f", "-", stdin=json.dumps(asking))

    def shown() -> list[str]:
        lines = kubectl("get", "--raw", "/metrics/resources").splitlines()
        return [line for line in lines if 'pod="asking"' in line and 'node="node-a"' in line]

    until(lambda: bool(shown()))
    assert shown()[0].endswith('resource="cpu",scheduler="default-scheduler",unit="cores"} 0.1')


def test_others_see_neither_namespaces_nor_classes(server: Server, tmp_path: Path) -> None:
    config = yaml.safe_load(server.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": "alice-token"}
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    done = dray(server, "usage", KUBECONFIG=str(tmp_path / "kubeconfig"))
    assert (done.returncode, done.stdout.split()) == (0, ["NAMESPACE", "CLASS", "DEVICE-HOURS"])
    assert "note: 1 namespace is hidden: you may not list the Pods" in done.stderr
    assert "note: the totals by class are hidden" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("usage", "--since=31d"), "invalid duration '31d': specify up to 30d, for example 30m, 24h or 7d"),
        (("top", "nodes", "--since=1h"), "--since is for classes and namespaces"),
        (("top", "--since=1h", "-w"), "--since is for a cluster, printed once"),
    ],
)
def test_what_cannot_be_shown_is_refused(server: Server, arguments: tuple[str, ...], message: str) -> None:
    done = dray(server, *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_the_history_survives_a_restart_and_a_released_device(server: Server, folder: Path) -> None:
    """The last test of the module: it stops the server."""
    kubectl = Kubectl(server.environment, "default")
    kubectl("delete", "pod/trainer", "resourceclaim/c", "--wait", "--grace-period=0", "--force")
    until(lambda: course(server)["now"] == 0.0)
    before = hours(server)
    assert server.stop() == 0
    assert before >= 0.001
    with running_server(folder, INTERVAL) as again:
        until(lambda: hours(again) > 0)
        # Nothing was used since; what was recorded is still there.
        assert hours(again) == pytest.approx(before, abs=0.0011)
        assert course(again)["peak"] == 0.5
    (folder / FILE).write_bytes(b"{")
    with running_server(folder, "--usage-interval=1h") as anew:
        until(lambda: f"{FILE}{DAMAGED_SUFFIX}" in anew.log.read_text())
        assert hours(anew) == 0
    with running_server(folder, "--usage-interval=0s") as without:
        done = dray(without, "usage")
        assert (done.returncode, done.stdout) == (1, "")
        assert "dray usage: the API server has no history of usage" in done.stderr
