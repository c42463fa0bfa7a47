"""The commands of docs/extended-resources.md, one after the other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.node.conftest import end_shims
from tests.e2e.node.harness import Agent

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "extended-resources.md"
SECONDS_MAX = 150
# Ends what the page starts, whatever happens.
BEFORE = "set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n"

needs_kubectl = pytest.mark.skipif(not shutil.which("kubectl"), reason="needs kubectl")


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short name: the paths of sockets must not be long."""
    with tempfile.TemporaryDirectory(prefix="xr", ignore_cleanup_errors=True) as name:
        (Path(name) / "examples").symlink_to(ROOT / "examples")
        yield Path(name)


@needs_kubectl
@pytest.mark.behaviour("XR-39")
def test_the_commands_of_the_page(folder: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 8
    script = BEFORE + "\n".join(f"echo '--- {number}'\n{block}" for number, block in enumerate(blocks))
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "DRAY_PORT": "0",
        "NO_COLOR": "1",
    }
    done = subprocess.run(
        # When time is over the shell is asked to end, and so ends what it has started.
        ["timeout", "--kill-after=20", str(SECONDS_MAX), "bash", "-c", script],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    end_shims(Agent(None, folder / "node", "machine"))  # type: ignore[arg-type]
    logs = "".join(f"\n{path.name}:\n{path.read_text()[-2000:]}" for path in sorted(folder.glob("*.log")))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    outputs = re.split(r"^--- \d+\n", done.stdout, flags=re.MULTILINE)[1:]
    assert "Create the DeviceClass gpu.example.com:" in outputs[2]
    assert "keeps its devices until it terminates" in outputs[2]
    assert outputs[4].count("Running") == 1
    assert outputs[5].count("-extended-resources-") == 1
    assert [text.count("ok: nothing is counted twice") for text in outputs[6:]] == [1, 1]
    assert outputs[7].count("-extended-resources-") == 2
