"""Processes are known by more than their ids, ended all of them, and their last words are told."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dray.cmd.demo.processes import Known, ProcessError, Processes, Program, end_processes, read_record, start_time
from dray.cmd.demo.programs import examples_folder, fits_sockets, places

SLEEP = (sys.executable, "-c", "import time; print('ready here', flush=True); time.sleep(600)")
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready now', flush=True)"
STUBBORN = (sys.executable, "-c", f"{DEAF}; time.sleep(600)")


def test_a_process_is_known_by_its_start_time() -> None:
    own = start_time(os.getpid())
    assert Known("me", os.getpid(), own).lives
    assert not Known("someone before", os.getpid(), str(int(own) - 1)).lives
    assert not Known("never started", os.getpid(), "").lives


async def test_what_was_started_is_ended_by_whoever_reads_the_record(tmp_path: Path) -> None:
    processes = Processes(tmp_path, tmp_path / "nodes")
    assert await processes.start_ready(Program("first", SLEEP)) == "here"
    processes.start(Program("second", SLEEP))
    record = read_record(tmp_path)
    assert record is not None
    known, nodes = record
    assert [item.name for item in known] == ["first", "second"]
    assert all(item.lives for item in known)
    await end_processes(known, nodes)
    assert not any(item.lives for item in known)
    await processes.end()


async def test_who_does_not_listen_is_ended_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dray.cmd.demo.processes.STOP_SECONDS_MAX", 0.5)
    processes = Processes(tmp_path, tmp_path / "nodes")
    await processes.start_ready(Program("stubborn", STUBBORN))
    await processes.end()
    assert not processes.known[0].lives


async def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    processes = Processes(tmp_path, tmp_path / "nodes")
    program = Program("broken", (sys.executable, "-c", "import sys; sys.exit('the disk is on fire')"))
    with pytest.raises(ProcessError, match=r"broken did not become ready(.|\n)*the disk is on fire"):
        await processes.start_ready(program)
    assert processes.ended() == ["broken"]
    await processes.end()


def test_no_record_and_half_a_record(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    (tmp_path / "demo.json").write_text('{"processes": [')
    assert read_record(tmp_path) is None


def test_nodes_go_elsewhere_when_paths_are_too_long_for_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert places("/srv/demo").nodes == Path("/srv/demo/nodes")
    long = places(f"/srv/{'x' * 80}")
    assert long.nodes.parent == tmp_path
    assert fits_sockets(Path("/srv/demo/nodes"))
    assert not fits_sockets(Path(f"/srv/{'x' * 80}/nodes"))


def test_examples_are_found() -> None:
    assert (examples_folder() / "gpu-driver" / "driver.py").is_file()
