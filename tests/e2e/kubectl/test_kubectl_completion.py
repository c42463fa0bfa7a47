"""kubectl completes `kubectl dray ...` with the plugin's own program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.kubectl.tool import Kubectl
from tests.servers import Server


@pytest.fixture(scope="module")
def environment(server: Server) -> dict[str, str]:
    """With a Pod, and the installed programs in the PATH."""
    Kubectl(server.environment, "default")("run", "waiting", "--image=i", "--restart=Never")
    programs = Path(sys.executable).parent
    return server.environment | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("words", "expected", "directive"),
    [
        (["ex"], ["explain\texplain why a Pod, claim or workload is pending, and what to do"], ":4"),
        (["explain", "dep"], ["deployment"], ":4"),
        (["explain", "pod", "w"], ["waiting"], ":4"),
        (["explain", "pod/w"], ["pod/waiting"], ":4"),
        (["explain", "--all"], ["--all-nodes"], ":4"),
        (["top", "-f", ""], [], ":0"),
        (["nothing", "--x"], [], ":4"),
    ],
)
def test_words(environment: dict[str, str], words: list[str], expected: list[str], directive: str) -> None:
    done = subprocess.run(
        ["kubectl", "__complete", "dray", *words], env=environment, capture_output=True, text=True, check=True
    )
    *found, last = done.stdout.splitlines()
    assert (found, last) == (expected, directive)
