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
from tests.fork_server import run
from tests.servers import Server, running_server

SECONDS_MAX = 120.0


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


@pytest.mark.behaviour("XR-45")
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
        with urllib.request.urlopen(f"{health}/metrics/resources") as answer:
            found = [line for line in answer.read().decode().splitlines() if 'pod="before"' in line]
        assert found == [
            'kube_pod_resource_request{namespace="default",node="n",pod="before",priority="0",resource="cpu",'
            'scheduler="default-scheduler",unit="cores"} 0.1'
        ]
        holder = kubectl(bare_server, "-n", "kube-system", "get", "lease", "kube-scheduler", "-o", "name")
        assert "kube-scheduler" in holder
    apply(bare_server, pod("between"))
    with scheduler(bare_server, tmp_path / "log"):
        assert node_of(bare_server, "between") == "n"


def test_the_lease_of_the_configuration_is_held_and_no_other(bare_server: Server, tmp_path: Path) -> None:
    """A second scheduler must not take the Lease of the first one."""
    kubectl(bare_server, "create", "namespace", "packers")
    rule = ("--verb=get,create,update", "--resource=leases.coordination.k8s.io")
    kubectl(bare_server, "create", "role", "packer", "-n", "packers", *rule)
    kubectl(
        bare_server,
        *("create", "rolebinding", "packer", "-n", "packers", "--role=packer", "--user=system:kube-scheduler"),
    )
    file = tmp_path / "scheduler.yaml"
    head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    election = "{resourceName: from-file, resourceNamespace: packers, leaseDuration: 20s, retryPeriod: 1s}"
    file.write_text(f"{head}profiles: [{{schedulerName: packer}}]\nleaderElection: {election}\n")
    apply(bare_server, node("n"), pod("packed", schedulerName="packer"))

    def lease(name: str) -> str:
        wanted = ("--ignore-not-found", "-o", "jsonpath={.spec.leaseDurationSeconds}")
        return kubectl(bare_server, "-n", "packers", "get", "lease", name, *wanted)

    with scheduler(bare_server, tmp_path / "log", f"--scheduler-config={file}"):
        assert node_of(bare_server, "packed") == "n"
        assert lease("from-file") == "20"
        owners = kubectl(
            bare_server,
            *("get", "lease", "-n", "packers", "from-file", "--show-managed-fields"),
            *("-o", "jsonpath={.metadata.managedFields[*].manager}"),
        )
        assert owners == "dray-scheduler"
    flags = ("--leader-elect-resource-name=from-flag", "--leader-elect-lease-duration=25s")
    with scheduler(bare_server, tmp_path / "log", f"--scheduler-config={file}", *flags):
        assert eventually(lambda: lease("from-flag")) == "25"


def test_durations_with_which_two_could_lead_are_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dray", "scheduler", "--leader-elect-renew-deadline=15s"]
    done = run(command, cwd=tmp_path)
    message = "leaderElection: leaseDuration must be greater than renewDeadline"
    assert (done.returncode, done.stderr) == (1, f"dray scheduler: {message}\n")


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
    head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    file.write_text(f"{head}extenders: [{{urlPrefix: 'http://127.0.0.1:1'}}]\n")
    command = [sys.executable, "-m", "dray", "scheduler", f"--scheduler-config={file}"]
    done = run(command)
    assert (done.returncode, done.stderr) == (1, f"dray scheduler: {file}: extenders: not supported\n")


def test_decisions_of_a_scheduler_by_itself_need_a_token_that_may_read_them(
    bare_server: Server, tmp_path: Path
) -> None:
    apply(bare_server, node("n"), pod("decided"))

    def decisions(*flags: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dray", "decisions", "decided", f"--scheduler={health}", *flags]
        return run(command, env=bare_server.environment)

    with scheduler(bare_server, tmp_path / "log") as health:
        assert node_of(bare_server, "decided") == "n"
        assert "the kubeconfig has no token" in decisions().stderr
        assert "401: Unauthorized" in decisions("--token=wrong").stderr
        assert '403: User "alice" cannot get path "/debug/decisions"' in decisions("--token=alice-token").stderr
        assert "pod default/decided was placed on n" in decisions("--token=admin-token").stdout
    # The API server itself has no scheduler.
    alone = run([sys.executable, "-m", "dray", "decisions"], env=bare_server.environment)
    assert "--scheduler=" in alone.stderr
