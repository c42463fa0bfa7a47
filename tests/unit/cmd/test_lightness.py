"""Commands start fast because they import only what they need."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("asyncio", "yaml", "jwt", "grpc", "dray.cel", "dray.allocator", "dray.apiserver.server", "dray.scheduler")
# Runs a statement whose output is of no interest, then names the heavy modules that came with it.
SCRIPT = """
import contextlib, io, sys
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    {statement}
print(*(name for name in sys.argv[1:] if name in sys.modules))
"""


@pytest.mark.parametrize(
    ("statement", "needed"),
    [
        ("from dray.cmd.main import main; main(['version'])", ""),
        ("from dray.cmd.main import main; main(['--help'])", ""),
        ("from dray.cmd.main import main; main(['up', '--help'])", ""),
        ("from dray.cmd.main import main; main(['devices', '--help'])", ""),
        ("from dray.cmd.main import main; main(['claims', '--help'])", ""),
        ("from dray.cmd.main import main; main(['explain', '--help'])", ""),
        # Manifests are YAML.
        ("from dray.cmd.main import main; main(['simulate', '--help'])", "yaml"),
        # Serving needs no controllers, no scheduler and, until somebody writes a selector or rule, no CEL.
        ("import dray.cmd.up", "asyncio yaml dray.apiserver.server"),
    ],
)
def test_heavy_modules_are_left_out(statement: str, needed: str) -> None:
    """A command imports only the listed modules."""
    command = [sys.executable, "-c", SCRIPT.format(statement=statement), *HEAVY]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == needed.split()
