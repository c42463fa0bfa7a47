"""The shim alone: its log, its start, its end; as the program it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dray.node.runtimes.shim import program
from dray.node.runtimes.shim.program import Log

SECONDS_MAX = 10.0


def lines(path: Path) -> list[tuple[str, str, str]]:
    found = [line.split(" ", 3) for line in path.read_text().split("\n")[:-1]]
    return [(stream, tag, text) for _, stream, tag, text in found]


def test_lines_are_written_whole_whatever_the_pieces_they_come_in(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "c" / "0.log"))
    for stream, data in (("stdout", b"on"), ("stderr", b"x\n"), ("stdout", b"e\ntwo\nthr")):
        log.take(stream, data)
    log.close()
    assert lines(tmp_path / "c" / "0.log") == [
        ("stderr", "F", "x"),
        ("stdout", "F", "one"),
        ("stdout", "F", "two"),
        ("stdout", "F", "thr"),
    ]


def test_long_lines_are_split(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "0.log"))
    log.take("stdout", b"x" * (program.LINE_BYTES_MAX + 5) + b"\n")
    log.close()
    assert [(tag, len(text)) for _, tag, text in lines(tmp_path / "0.log")] == [("P", program.LINE_BYTES_MAX), ("F", 5)]


def test_files_take_turns_and_the_oldest_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "LOG_BYTES_MAX", 200)
    log = Log(str(tmp_path / "0.log"))
    for number in range(40):
        log.take("stdout", b"line %d\n" % number)
    log.close()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert len(files) == program.LOG_FILES_MAX
    assert all(path.stat().st_size <= 200 for path in tmp_path.iterdir())
    assert lines(tmp_path / "0.log")[-1][2] == "line 39"


def start(folder: Path, *argv: str, **job: Any) -> dict[str, Any]:
    for name in ("alive", "control"):
        os.mkfifo(folder / name)
    content = {
        "folder": str(folder),
        "log": str(folder / "0.log"),
        "argv": argv,
        "env": [["PATH", os.environ["PATH"]]],
        "directory": str(folder),
        **job,
    }
    (folder / "job.json").write_text(json.dumps(content))
    arguments = [sys.executable, "-I", "-S", program.__file__, str(folder / "job.json")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=SECONDS_MAX, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def wait_for_line(log: Path, text: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not log.exists() or text not in log.read_text():
        assert time.monotonic() < deadline


def ended(folder: Path) -> dict[str, Any]:
    deadline = time.monotonic() + SECONDS_MAX
    while not (folder / "exit.json").exists():
        assert time.monotonic() < deadline
    found: dict[str, Any] = json.loads((folder / "exit.json").read_text())
    return found


def test_a_program_runs_and_its_end_is_recorded(tmp_path: Path) -> None:
    answer = start(tmp_path, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert answer["pid"] > 0
    assert ended(tmp_path)["code"] == 7
    assert sorted(lines(tmp_path / "0.log")) == [("stderr", "F", "err"), ("stdout", "F", "out")]


def test_signals_come_by_the_control_file(tmp_path: Path) -> None:
    start(tmp_path, "sh", "-c", 'trap "exit 5" USR1; echo ready; while true; do sleep 0.02; done')
    wait_for_line(tmp_path / "0.log", "ready")
    (tmp_path / "control").write_text("NONSENSE\nSIGUSR1\n")
    assert ended(tmp_path)["code"] == 5


def test_a_killed_program_says_by_what(tmp_path: Path) -> None:
    start(tmp_path, "sleep", "60")
    (tmp_path / "control").write_text("SIGKILL\n")
    found = ended(tmp_path)
    assert (found["code"], found["signal"]) == (137, 9)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("no-such-program", 'exec: "no-such-program": executable file not found in $PATH: unknown'),
        ("/no/such/program", 'exec: "/no/such/program": no such file or directory: unknown'),
        ("/etc/passwd", 'exec: "/etc/passwd": permission denied: unknown'),
    ],
)
def test_what_cannot_be_started_is_said(tmp_path: Path, argv: str, message: str) -> None:
    assert start(tmp_path, argv) == {"error": message}
    assert not (tmp_path / "exit.json").exists()


def test_what_the_program_left_running_ends_with_it(tmp_path: Path) -> None:
    start(tmp_path, "sh", "-c", "setsid sleep 60 & echo $! > child; exit 0")
    assert ended(tmp_path)["code"] == 0
    pid = int((tmp_path / "child").read_text())
    assert not Path(f"/proc/{pid}").exists()
