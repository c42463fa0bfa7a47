"""The commands and links of the README work, and the installed package is complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.e2e.docs.harness import ROOT, has_programs, read_page, reader_folder, run_page
from tests.e2e.docs.pending_pod import dump

README = (ROOT / "README.md").read_text()
INSTALL = "pip install .\n"
# The command of `make demo`; a test below verifies it.
DEMO = "dray demo --keep"


def command_of(target: str) -> str:
    """Return the command of a make target without running it."""
    # The tests may run below make, whose variables change the output.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "-n", "--no-print-directory", target]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.skipif(not has_programs("make"), reason="needs make")
def test_commands_of_make_targets() -> None:
    assert command_of("demo").endswith(f"python -m {DEMO}")
    assert re.search(r"python -m pytest .*-q", command_of("test"))


@pytest.mark.skipif(not has_programs("kubectl"), reason="needs kubectl")
def test_commands_work() -> None:
    assert README.count("make demo  ") == 1
    text = README.replace("make demo  ", f"{DEMO}  ").replace("make test  ", "true  ")
    assert INSTALL in text
    page = read_page(text.replace(INSTALL, "true\n"))
    with reader_folder() as folder:
        outputs = run_page(page, folder)
    _, nodes, story, tried = outputs
    assert "Its dashboard:\n\n  http://127.0.0.1:" in story
    assert "pod default/latecomer is pending, 0 of 4 nodes fit" in tried
    assert "pod/latecomer condition met" in tried
    assert "stopped the 12 processes" in tried
    assert "gpu     160       0        160" in nodes


def test_the_pending_pod_is_explained_as_shown(tmp_path: Path) -> None:
    shown = re.search(r"```console\n\$ kubectl (dray explain pod train -n ml)\n(.*?)```", README, re.DOTALL)
    assert shown is not None
    (tmp_path / "dump.json").write_text(dump(datetime.fromtimestamp(time.time(), UTC)))
    command = [sys.executable, "-m", *shown[1].split(), "-f", tmp_path / "dump.json"]
    environment = os.environ | {"NO_COLOR": "1", "COLUMNS": "120"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == shown[2]


def test_installed_package_is_complete(tmp_path: Path) -> None:
    """Installs without dependencies and build isolation, because both are present in the test environment."""
    command = [sys.executable, "-m", *INSTALL.split()[:2], "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--disable-pip-version-check", f"--target={tmp_path / 'installed'}", str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    installed = tmp_path / "installed"
    environment = os.environ | {"PYTHONPATH": str(installed)}
    program = "import dray.cmd.demo.programs as p; print(p.__file__); print(p.examples_directory())"
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    assert found == [str(installed / "dray/cmd/demo/programs.py"), str(installed / "dray/examples")]
    for path in (ROOT / "examples").glob("*/**/*.yaml"):
        assert (installed / "dray" / path.relative_to(ROOT)).is_file(), path
    help_text = subprocess.run(
        [installed / "bin" / "dray", "demo", "--help"], cwd=tmp_path, env=environment, capture_output=True, check=True
    ).stdout
    assert b"--keep" in help_text
