"""The controllers as a process of their own: what they make, leader election and health."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from pathlib import Path

from tests.e2e.components import component
from tests.servers import Server, running_server

SECONDS_MAX = 120.0


def kubectl(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["kubectl", *arguments], env=server.environment, capture_output=True, text=True, check=False, timeout=60
    )


def read(server: Server, *arguments: str) -> str:
    """What kubectl finds, once there is something."""
    deadline = time.monotonic() + SECONDS_MAX
    while not (found := kubectl(server, "get", *arguments)).stdout:
        assert time.monotonic() < deadline, found.stderr
    return found.stdout


def test_a_process_of_its_own_completes_namespaces_and_owns_the_lease(tmp_path: Path) -> None:
    with running_server(tmp_path / "server", command="apiserver") as server:
        assert kubectl(server, "create", "namespace", "a").returncode == 0
        with component(server, "controller-manager", tmp_path / "log") as health:
            assert read(server, "-n", "a", "serviceaccount", "default", "-o", "name") == "serviceaccount/default\n"
            trusted = read(server, "-n", "a", "configmap", "kube-root-ca.crt", "-o", "jsonpath={.data.ca\\.crt}")
            assert trusted == (server.data_dir / "pki" / "ca.crt").read_text()
            lease = ("-n", "kube-system", "lease", "kube-controller-manager")
            assert read(server, *lease, "-o", "jsonpath={.spec.holderIdentity}")
            with urllib.request.urlopen(f"{health}/healthz") as answer:
                assert answer.read() == b"ok"
        # Who ends in order leaves the lease to the next at once.
        assert kubectl(server, "get", *lease, "-o", "jsonpath={.spec.holderIdentity}").stdout == ""


def test_without_leader_election_there_is_no_lease(tmp_path: Path) -> None:
    with (
        running_server(tmp_path / "server", command="apiserver") as server,
        component(server, "controller-manager", tmp_path / "log", "--leader-elect=false"),
    ):
        assert read(server, "-n", "default", "serviceaccount", "default", "-o", "name")
        missing = kubectl(server, "-n", "kube-system", "get", "lease", "kube-controller-manager")
        assert "NotFound" in missing.stderr
