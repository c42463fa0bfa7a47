"""Forked programs behave like programs of a new interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fork_server import ForkedPopen, run

PROGRAM = """
import os, pathlib, sys
print(__name__, *sys.argv[1:], pathlib.Path.cwd(), sorted(os.environ), len(os.listdir("/proc/self/fd")) - 1)
print(sys.stdin.read(), file=sys.stderr)
sys.exit(7)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_it_runs_as_in_a_new_interpreter(program: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(program), "a", "b"]
    environment = {"ONLY": "this"}
    forked = run(command, env=environment, cwd=tmp_path)
    anew = subprocess.run(
        command,
        env=environment,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    # A new interpreter may add the locale.
    assert forked.stdout.replace("'ONLY'", "") == anew.stdout.replace("'LC_CTYPE', ", "").replace("'ONLY'", "")
    assert (forked.returncode, forked.stderr) == (anew.returncode, anew.stderr) == (7, "\n")


def test_a_program_that_fails_shows_why(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("import sys\nsys.exit('the disk is full')\n")
    done = run([sys.executable, str(path)])
    assert (done.returncode, done.stderr) == (1, "the disk is full\n")
    path.write_text("1 / 0\n")
    done = run([sys.executable, str(path)])
    assert done.returncode == 1
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_it_is_fed_and_killed(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("for line in iter(input, 'end'): print(line.upper(), flush=True)\n")
    with ForkedPopen([sys.executable, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("a\n")
        process.stdin.flush()
        assert process.stdout.readline() == "A\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.001)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
        assert process.stdout.read() == ""
