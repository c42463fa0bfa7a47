"""`dray doctor` on an API server without controllers: finds and fixes problems that a controller would have fixed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cli.test_tables import dray
from tests.e2e.kubectl.tool import Kubectl
from tests.servers import Server, running_server
from tests.unit.sim.cluster import GPU, claim, device, device_class, resource_slice


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An API server without controllers."""
    with running_server(tmp_path_factory.mktemp("alone"), command="apiserver") as running:
        yield running


def test_a_reservation_of_a_deleted_pod_is_found_and_fixed(alone: Server) -> None:
    kubectl = Kubectl(alone.environment, "default")
    held = claim("stuck", f"{GPU}/node-a/gpu-0", namespace="default", pods=("gone",))
    sliced = resource_slice("node-a", GPU, device("gpu-0"), nodeName="node-a")
    kubectl("apply", "-f", "-", stdin=json.dumps(device_class("gpu", "true")))
    kubectl("apply", "-f", "-", stdin=json.dumps(sliced))
    kubectl("create", "-f", "-", stdin=json.dumps(held))
    patch = json.dumps({"status": held["status"]})
    kubectl("patch", "resourceclaim", "stuck", "--subresource=status", "--type=merge", "-p", patch)
    found = dray(alone, "doctor")
    assert found.returncode == 1
    assert "error    resourceclaim default/stuck is reserved for Pod gone (uid uid-gone)" in found.stdout
    assert "resourceclaim default/stuck fixed" in dray(alone, "doctor", "--fix").stderr.lower()
    rules = [item["rule"] for item in json.loads(dray(alone, "doctor", "-o", "json").stdout)["items"]]
    assert "dead-reservation" not in rules


def test_a_damaged_checkpoint_is_named(alone: Server, tmp_path: Path) -> None:
    (tmp_path / "dra_manager_state").write_text("{}")
    found = dray(alone, "doctor", "--node-root-dir", str(tmp_path), "--node-name", "n")
    assert "error    node n" in found.stdout
    assert "checkpoint is corrupted" in found.stdout
    assert "restart the node agent" in found.stdout


def test_bash_completes_commands_and_flags() -> None:
    script = subprocess.run(
        [sys.executable, "-m", "dray", "completion", "bash"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    ask = (
        'COMP_WORDS=(dray devi); COMP_CWORD=1; _dray; echo "${COMPREPLY[*]}"; '
        'COMP_WORDS=(dray top --wat); COMP_CWORD=2; _dray; echo "${COMPREPLY[*]}"'
    )
    answer = subprocess.run(["bash", "-c", script + ask], capture_output=True, text=True, check=True, timeout=30)
    assert answer.stdout.split() == ["devices", "--watch"]
