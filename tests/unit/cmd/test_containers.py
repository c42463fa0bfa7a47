"""Containers of a stopped agent: found by the FIFO that their shims read, and told to end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dray.cmd import containers
from dray.cmd.containers import end_containers, running_containers, send_signal


@contextmanager
def shim(folder: Path) -> Iterator[int]:
    """A reader of a container's FIFO, as its shim is."""
    folder.mkdir(parents=True)
    os.mkfifo(folder / "control")
    descriptor = os.open(folder / "control", os.O_RDWR | os.O_NONBLOCK)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def test_only_containers_with_a_shim_are_found(tmp_path: Path) -> None:
    with shim(tmp_path / "containers/process/ended"):
        pass
    with shim(tmp_path / "containers/process/runs"), shim(tmp_path / "other/containers/process/no"):
        assert running_containers(tmp_path) == [tmp_path / "containers/process/runs"]
    assert running_containers(tmp_path) == []
    assert running_containers(tmp_path / "missing") == []


def test_a_signal_for_a_container_that_has_ended_is_ignored(tmp_path: Path) -> None:
    folder = tmp_path / "containers/process/a"
    with shim(folder) as descriptor:
        send_signal(folder, "SIGTERM")
        assert os.read(descriptor, 100) == b"SIGTERM\n"
    send_signal(folder, "SIGTERM")
    send_signal(tmp_path / "missing", "SIGTERM")


@pytest.mark.parametrize(("grace", "sent"), [(0.0, b"SIGKILL\n"), (0.05, b"SIGTERM\nSIGKILL\n")])
async def test_a_container_that_does_not_end_is_killed_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grace: float, sent: bytes
) -> None:
    monkeypatch.setattr(containers, "KILL_SECONDS_MAX", 0.05)
    with shim(tmp_path / "containers/process/a") as descriptor:
        assert await end_containers(tmp_path, grace) == 1
        assert os.read(descriptor, 100) == sent
    assert await end_containers(tmp_path, grace) == 0
