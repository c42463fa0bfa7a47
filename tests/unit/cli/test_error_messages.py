"""Error messages of commands that cannot read their source: one line and the exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.fork_server import run
from tests.unit.sim.cluster import whole

NO_FILE = "{path}: No such file or directory"
NO_KUBECONFIG = "error loading config file '{path}': no such file or directory"
UNKNOWN_GATE = "argument --feature-gates: unrecognized feature gate: Nope"


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        ("devices -f {path}", 1, NO_FILE),
        ("doctor -f {path}", 1, NO_FILE),
        ("explain pod a -f {path}", 1, NO_FILE),
        ("simulate -f {path}", 1, NO_FILE),
        ("claims --kubeconfig {path}", 1, NO_KUBECONFIG),
        ("explain claim a --kubeconfig {path}", 1, NO_KUBECONFIG),
        ("simulate --kubeconfig {path}", 1, NO_KUBECONFIG),
        ("devices --watch -f {path}", 2, "--watch needs a cluster; files do not change"),
        ("explain pod a --feature-gates=Nope=true", 2, UNKNOWN_GATE),
        ("simulate --feature-gates=Nope=true", 2, UNKNOWN_GATE),
        ("devices --claas=gpu", 2, 'unknown flag: --claas (did you mean "--class"?)'),
        ("token create --tll=1h", 2, 'unknown flag: --tll (did you mean "--ttl"?)'),
    ],
)
def test_error_messages(arguments: str, code: int, line: str, tmp_path: Path) -> None:
    """The first line contains the command and the error."""
    path = tmp_path / "missing.yaml"
    argv = arguments.format(path=path).split()
    # A process of its own: a command may do with logging and the collector what it likes.
    command = [sys.executable, "-m", "dray", *argv]
    done = run(command)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.splitlines()[0] == f"dray {argv[0]}: {line.format(path=path)}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Pod\nmetadata: {name: a}\n", 'document 1 of "a": apiVersion is missing or not a string'),
        ("apiVersion: v1\nkind: Pod\n", "a Pod has no metadata: it needs a name"),
        (
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n---\nmetadata: {}\n",
            "document 2: apiVersion is missing",
        ),
        ("[1, 2]\n", "expected an object with apiVersion and kind, found int"),
    ],
)
def test_manifests_that_are_no_objects(text: str, message: str, tmp_path: Path) -> None:
    """Bad input of a user is one line, never a traceback."""
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    empty = tmp_path / "empty.json"
    empty.write_text(json.dumps(whole()))
    done = run([sys.executable, "-m", "dray", "simulate", "-f", str(empty), "--apply", str(path)])
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
