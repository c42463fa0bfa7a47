"""A component without a right is not ready, and says which right it lacks, until it is granted."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.faults.health import component, kubeconfig, restarted
from tests.servers import Server, running_server

LEASE = 'cannot get resource "leases" in API group "coordination.k8s.io" in the namespace "kube-system"'
CLAIMS = 'cannot list resource "resourceclaims" in API group "resource.k8s.io" at the cluster scope'
WATCH_CLAIMS = 'cannot watch resource "resourceclaims" in API group "resource.k8s.io" at the cluster scope'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An API server alone."""
    with running_server(tmp_path_factory.mktemp("server"), command="apiserver") as running:
        yield running


def kubectl(server: Server, *arguments: str) -> None:
    done = subprocess.run(
        ["kubectl", *arguments], env=server.environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_a_scheduler_without_rights_says_which_are_missing(server: Server, tmp_path: Path) -> None:
    log = tmp_path / "log"
    access = kubeconfig(server, tmp_path / "alice", "alice-token")
    with component(log, "port", "scheduler", f"--kubeconfig={access}") as scheduler:
        line = scheduler.until_check("leaderElection", "failed", LEASE)
        assert line.startswith('[-]leaderElection failed: leases.coordination.k8s.io "kube-scheduler" is forbidden')
        assert scheduler.read("/livez") == (200, "ok")
        assert not scheduler.has_announced
        assert log.read_text().count("get failed, will be retried") == 1

        kubectl(server, "create", "role", "lease", "-n", "kube-system", "--verb=*", "--resource=leases")
        kubectl(server, "create", "rolebinding", "lease", "-n", "kube-system", "--role=lease", "--user=alice")
        line = scheduler.until_check("informer-sync", "failed", CLAIMS)
        assert line.startswith("[-]informer-sync failed: ")
        assert scheduler.check("leaderElection") == "[+]leaderElection ok"
        assert scheduler.read("/readyz")[0] == 500
        assert not scheduler.has_announced

        role = "--clusterrole=system:kube-scheduler"
        kubectl(server, "create", "clusterrolebinding", "alice", role, "--user=alice")
        scheduler.until("/readyz", lambda status, text: (status, text) == (200, "ok"))
        assert scheduler.process.stdout is not None
        assert scheduler.process.stdout.readline().startswith(f"ready {server.url} health ")
        kubectl(server, "delete", "clusterrolebinding", "alice")
    refusals = [line for line in log.read_text().splitlines() if '"resourceclaims.resource.k8s.io"' in line]
    assert sum("list failed, will be retried" in line for line in refusals) == 1
    assert sum("requests succeed again" in line for line in refusals) == 1


def test_a_watch_that_is_refused_later_makes_a_scheduler_unready(server: Server, tmp_path: Path) -> None:
    """The right to watch is taken away while the server restarts, which ends all watches."""
    binding = ("clusterrolebinding", "later")
    kubectl(server, "create", *binding, "--clusterrole=system:kube-scheduler", "--user=alice")
    flags = ("--leader-elect=false", f"--kubeconfig={kubeconfig(server, tmp_path / 'alice', 'alice-token')}")
    with component(tmp_path / "log", "port", "scheduler", *flags) as scheduler:
        scheduler.until("/readyz", lambda status, _: status == 200)
        kubectl(server, "delete", *binding)
        server.stop()
        # The watches fail one after the other.
        scheduler.until_check("informer-sync", "failed", server.url, "resourceclaims.resource.k8s.io")
        with restarted(server):
            scheduler.until_check("informer-sync", "failed", WATCH_CLAIMS)
            kubectl(server, "create", *binding, "--clusterrole=system:kube-scheduler", "--user=alice")
            scheduler.until("/readyz", lambda status, _: status == 200)
