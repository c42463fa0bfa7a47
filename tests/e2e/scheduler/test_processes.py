"""The scheduler as a process of its own: leader election, restart, health and metrics."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.components import component
from tests.e2e.scheduler.cluster import node, pod
from tests.servers import Server, running_server

SECONDS_MAX = 30.0


@pytest.fixture(scope="module")
def bare_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An API server without controllers and scheduler."""
    flags = ("--disable-admission-plugins=TaintNodesByCondition",)
    with running_server(tmp_path_factory.mktemp("server"), *flags, command="apiserver") as running:
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        apply(running, account)
        yield running


def scheduler(server: Server, log: Path, *flags: str) -> AbstractContextManager[str]:
    """`dray scheduler`; gives the address of its health page."""
    return component(server, "scheduler", log, *flags)


def kubectl(server: Server, *arguments: str, text: str | None = None) -> str:
    done = subprocess.run(
        ["kubectl", *arguments], env=server.environment, input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def apply(server: Server, *documents: dict[str, Any]) -> None:
    items = [
        {"apiVersion": "v1", "kind": "Pod" if "containers" in item.get("spec", {}) else "Node", **item}
        for item in documents
    ]
    kubectl(server, "apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


def eventually(read: Callable[[], str], good: Callable[[str], bool] = bool) -> str:
    deadline = time.monotonic() + SECONDS_MAX
    while not good(found := read()):
        assert time.monotonic() < deadline, f"still {found!r}"
    return found


def node_of(server: Server, name: str) -> str:
    return eventually(lambda: kubectl(server, "get", "pod", name, "-o", "jsonpath={.spec.nodeName}"))


def test_a_process_of_its_own_takes_over_after_another(bare_server: Server, tmp_path: Path) -> None:
    apply(bare_server, node("n"), pod("before"))
    with scheduler(bare_server, tmp_path / "log") as health:
        assert node_of(bare_server, "before") == "n"
        with urllib.request.urlopen(f"{health}/healthz") as answer:
            assert answer.read() == b"ok"
        with urllib.request.urlopen(f"{health}/metrics") as answer:
            text = answer.read().decode()
        assert 'scheduler_schedule_attempts_total{profile="default-scheduler",result="scheduled"} 1.0' in text
        assert 'scheduler_pending_pods{queue="active"} 0.0' in text
        holder = kubectl(bare_server, "-n", "kube-system", "get", "lease", "kube-scheduler", "-o", "name")
        assert "kube-scheduler" in holder
    apply(bare_server, pod("between"))
    with scheduler(bare_server, tmp_path / "log"):
        assert node_of(bare_server, "between") == "n"


def test_without_leader_election_two_share_the_work(bare_server: Server, tmp_path: Path) -> None:
    names = [f"shared-{number}" for number in range(15)]
    with (
        scheduler(bare_server, tmp_path / "one", "--leader-elect=false"),
        scheduler(bare_server, tmp_path / "two", "--leader-elect=false"),
    ):
        apply(bare_server, node("n"), *(pod(name) for name in names))
        for name in names:
            assert node_of(bare_server, name) == "n"


def test_a_configuration_that_cannot_be_used_is_said_at_once(bare_server: Server, tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nextenders: []\n")
    command = [sys.executable, "-m", "dray", "scheduler", f"--scheduler-config={file}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert (done.returncode, done.stderr) == (1, f"dray scheduler: {file}: extenders: not supported\n")
