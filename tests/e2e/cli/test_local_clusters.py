"""Named clusters in the background, and projects of drivers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fork_server import run

SRC = Path(__file__).parents[3] / "src"


def dray(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-m", "dray", *arguments], env=environment)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_named_clusters_run_in_the_background_and_are_stopped(tmp_path: Path) -> None:
    environment = os.environ | {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    environment.pop("KUBECONFIG", None)
    try:
        started = subprocess.run(
            [sys.executable, "-m", "dray", "up", "--name=one", "--nodes=1", "--detach"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert started.returncode == 0, started.stderr
        assert 'context "dray-one" is the current one' in started.stdout
        nodes = subprocess.run(
            ["kubectl", "get", "nodes", "-o", "name"], env=environment, capture_output=True, text=True, check=True
        )
        assert nodes.stdout == "node/sim-0\n"
        listed = dray(environment, "status", "-o", "jsonpath={.items[*].name}")
        assert listed.stdout == "one\n"
    finally:
        stopped = dray(environment, "down", "--name=one", "--delete")
    assert stopped.stdout == "one stopped; its data was removed\n", stopped.stderr
    assert dray(environment, "status").stdout == "No clusters were started here.\n"
    assert "dray-one" not in (tmp_path / ".kube" / "config").read_text()


def test_the_tests_of_a_new_driver_project_pass(tmp_path: Path) -> None:
    project = tmp_path / "project"
    made = dray(os.environ.copy(), "init", "driver", "big-lamp.example.org", f"--directory={project}")
    assert made.returncode == 0, made.stderr
    again = dray(os.environ.copy(), "init", "driver", "lamp", f"--directory={project}")
    assert again.stderr == f"dray init: {project} is not empty\n"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr
