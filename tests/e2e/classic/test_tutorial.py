"""The commands of docs/classic-dra.md one after the other, and its driver."""

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

from tests.e2e.classic.machines import TOP
from tests.e2e.node.conftest import end_shims
from tests.e2e.node.harness import Agent

PAGE = TOP / "docs" / "classic-dra.md"
SECONDS_MAX = 150
# Ends what the page starts, whatever happens.
BEFORE = "set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n"


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short name: the paths of sockets must not be long."""
    with tempfile.TemporaryDirectory(prefix="cl", ignore_cleanup_errors=True) as name:
        (Path(name) / "examples").symlink_to(TOP / "examples")
        yield Path(name)


def blocks(language: str, before: str = "\n## Examples\n") -> list[str]:
    text = PAGE.read_text().partition(before)[0]
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(not shutil.which("kubectl"), reason="needs kubectl")
def test_the_commands_of_the_page(folder: Path) -> None:
    commands = blocks("sh", before="\n## Node agent\n")
    assert len(commands) == 6
    script = BEFORE + "\n".join(f"echo '--- {number}'\n{block}" for number, block in enumerate(commands))
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "DRAY_PORT": "0",
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
    # kubectl tells of the containers in no order.
    card = re.search(r"^card 0 memory 2Gi share (\S+)$", outputs[3], re.MULTILINE)
    assert card is not None, outputs[3]
    assert {f"share {card[1]}", "share none"} <= set(outputs[3].splitlines()), outputs[3]
    assert '{"card":"0","memory":"2Gi","node":"machine"}' in outputs[3]
    assert "second-gpu" in outputs[4]
    assert "third" in outputs[5]


def test_the_driver_of_the_page(folder: Path) -> None:
    (source,) = blocks("python")
    (folder / "driver.py").write_text(source)
    for part in ("controller", "node"):
        done = subprocess.run([sys.executable, folder / "driver.py", part, "--help"], capture_output=True, check=True)
        assert b"--kubeconfig" in done.stdout
    done = subprocess.run([sys.executable, folder / "driver.py"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (2, b"the first argument must be controller or node\n")
