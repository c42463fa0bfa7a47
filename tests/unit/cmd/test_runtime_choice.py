"""What `auto` means where no CRI runtime answers, and what the agent says about it."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from dray.cmd.runtime_choice import choose_runtime
from dray.cmd.settings import NodeSettings
from dray.runtime.settings import SettingsError


def settings(runtime: str, path: Path) -> NodeSettings:
    return NodeSettings(runtime=runtime, container_runtime_endpoint=f"unix://{path}")


@pytest.mark.parametrize("is_root", [True, False])
@pytest.mark.parametrize("is_there", [True, False])
async def test_without_a_runtime_containers_are_processes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_root: bool, is_there: bool
) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as left_behind, caplog.at_level(logging.INFO):
        if is_there:
            # A socket on which nobody listens.
            left_behind.bind(str(path))
        found = await choose_runtime(settings("auto", path), lambda: is_root)
    assert found.runtime == "process"
    (record,) = caplog.records
    assert "containers run as processes" in record.message
    assert (record.levelname, "apt install containerd" in record.message) == (
        "WARNING" if is_root else "INFO",
        is_root,
    )


async def test_a_runtime_that_is_asked_for_and_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no CRI runtime answers at .*apt install containerd"):
        await choose_runtime(settings("cri", tmp_path / "socket"))


async def test_processes_are_not_chosen_but_asked_for(tmp_path: Path) -> None:
    wanted = settings("process", tmp_path / "socket")
    assert await choose_runtime(wanted) == wanted
