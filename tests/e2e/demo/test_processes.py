"""Processes of a demo: identified by more than their ids, all stopped, errors shown."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dray.cmd.demo.processes import (
    ProcessError,
    Processes,
    ProcessRecord,
    Program,
    read_record,
    start_time,
    stop_processes,
)
from dray.cmd.demo.programs import examples_directory, fits_sockets, make_directories

SLEEP = (sys.executable, "-c", "import time; print('ready here', flush=True); time.sleep(600)")
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready now', flush=True)"
STUBBORN = (sys.executable, "-c", f"{DEAF}; time.sleep(600)")


def test_a_process_is_identified_by_its_start_time() -> None:
    own = start_time(os.getpid())
    assert ProcessRecord("me", os.getpid(), own).is_alive
    assert not ProcessRecord("someone before", os.getpid(), str(int(own) - 1)).is_alive
    assert not ProcessRecord("never started", os.getpid(), "").is_alive


async def test_processes_can_be_stopped_from_the_record(tmp_path: Path) -> None:
    processes = Processes(tmp_path, tmp_path / "nodes")
    assert await processes.start_ready(Program("first", SLEEP)) == "here"
    processes.start(Program("second", SLEEP))
    record = read_record(tmp_path)
    assert record is not None
    records, nodes = record
    assert [item.name for item in records] == ["first", "second"]
    assert all(item.is_alive for item in records)
    await stop_processes(records, nodes)
    assert not any(item.is_alive for item in records)
    await processes.stop()


async def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dray.cmd.demo.processes.STOP_SECONDS_MAX", 0.5)
    processes = Processes(tmp_path, tmp_path / "nodes")
    await processes.start_ready(Program("stubborn", STUBBORN))
    await processes.stop()
    assert not processes.records[0].is_alive


async def test_the_error_of_a_failed_program_is_shown(tmp_path: Path) -> None:
    processes = Processes(tmp_path, tmp_path / "nodes")
    program = Program("broken", (sys.executable, "-c", "import sys; sys.exit('the disk is on fire')"))
    with pytest.raises(ProcessError, match=r"broken did not become ready(.|\n)*the disk is on fire"):
        await processes.start_ready(program)
    assert processes.exited() == ["broken"]
    await processes.stop()


def test_no_record_and_half_a_record(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    (tmp_path / "demo.json").write_text('{"processes": [')
    assert read_record(tmp_path) is None


def test_nodes_use_a_temporary_directory_when_socket_paths_are_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert make_directories("/srv/demo").nodes == Path("/srv/demo/nodes")
    long = make_directories(f"/srv/{'x' * 80}")
    assert long.nodes.parent == tmp_path
    assert fits_sockets(Path("/srv/demo/nodes"))
    assert not fits_sockets(Path(f"/srv/{'x' * 80}/nodes"))


def test_examples_are_found() -> None:
    assert (examples_directory() / "gpu-driver" / "driver.py").is_file()
