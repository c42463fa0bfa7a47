"""The wheel in a clean environment: it installs with its own dependencies alone, and starts a cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.e2e.docs.harness import ROOT

BUILD_SECONDS_MAX = 300
# Installs everything anew, which takes half a minute: once in continuous integration is enough.
pytestmark = pytest.mark.skipif("DRAY_TEST_WHEEL" not in os.environ, reason="only if DRAY_TEST_WHEEL is set")


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS_MAX
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run(*command, "-w", folder, ROOT, cwd=folder)
    (found,) = folder.glob("dray-*.whl")
    return found


def test_the_wheel_has_the_pages_of_the_dashboard_and_nothing_of_the_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "dray/dashboard/static/js/main.js" in names
    assert not [name for name in names if name.startswith(("tests/", "bench/", "tools/"))]


def test_the_installed_wheel_starts_a_cluster(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "environment"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel, cwd=tmp_path)
    assert run(home / "bin" / "dray", "version", cwd=tmp_path).startswith("dray ")
    # What the package does not declare must not be there by accident.
    assert "pytest" not in run(python, "-m", "pip", "list", "--disable-pip-version-check", cwd=tmp_path)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DRAY"))}
    command = [str(home / "bin" / "dray"), "up", "--data-dir=cluster", "--port=0", "--nodes=1"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready ")
            devices = run(home / "bin" / "dray", "top", "--kubeconfig=cluster/kubeconfig", cwd=tmp_path)
            assert "CLASS" in devices
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(BUILD_SECONDS_MAX) == 0
