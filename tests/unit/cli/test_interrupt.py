"""A command that is interrupted ends without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from dray.cli import top
from dray.cmd.main import main


def test_ctrl_c_ends_a_command_with_the_exit_code_of_shells(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_argv: Sequence[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(top, "main", interrupted)
    assert main(["top"]) == 130


def test_a_reader_that_has_enough_ends_a_command_silently() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "dray", "completion", "bash"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
