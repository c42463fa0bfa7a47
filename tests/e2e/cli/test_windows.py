"""The tools run where Linux's modules, functions and signals are missing, on files and on a cluster over TLS."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fork_server import run
from tests.property.sim.messy_clusters import MessyCluster
from tests.servers import Server

ROOT = Path(__file__).parents[3]
COMMANDS = (
    "claims",
    "devices",
    "doctor",
    "explain pod/wait-0 -n team",
    "plan",
    "rebalance",
    "simulate",
    "snapshot",
    "top",
)


def dray(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    # A new interpreter: a forked one has all modules already.
    command = [sys.executable, "-m", "tests.e2e.cli.windows", *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dump") / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": MessyCluster(5).documents}))
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_dump(dump: Path, command: str) -> None:
    words = [*command.split(), "-f", str(dump)]
    as_on_linux = run([sys.executable, "-m", "dray", *words])
    done = dray(*words)
    assert (done.returncode, done.stderr) == (as_on_linux.returncode, as_on_linux.stderr)
    assert done.stdout or as_on_linux.stdout == ""


@pytest.mark.parametrize("command", ["devices", "record --for=1s -", "top"])
def test_a_cluster(server: Server, command: str) -> None:
    done = dray(*command.split(), environment=server.environment)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr


@pytest.mark.parametrize("command", ["--help", "version"])
def test_without_a_cluster(command: str) -> None:
    done = dray(*command.split())
    assert done.returncode == 0, done.stderr
    assert done.stdout
