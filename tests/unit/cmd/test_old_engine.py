"""What the engine of an earlier release has left is reported with the command that removes it."""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path

import pytest

from dray.cmd.old_engine import removal_command, report_leftovers


def test_a_new_node_has_nothing_to_report(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "containers" / "process").mkdir(parents=True)
    report_leftovers(tmp_path)
    assert caplog.records == []


def test_leftovers_are_reported_and_the_command_removes_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "with a space"
    own = root / "containers" / "process"
    for folder in (own, root / "containers" / "runc" / "0123", root / "images" / "layers", root / "network" / "cni"):
        folder.mkdir(parents=True)
    (root / "network" / "pods.json").write_text("{}")
    with caplog.at_level(logging.WARNING):
        report_leftovers(root)
    (record,) = caplog.records
    assert "no longer managed" in record.message
    command = removal_command(root)
    assert "runc --root" not in command
    subprocess.run(["/bin/sh", "-c", command], check=True)
    assert removal_command(root) == ""
    assert own.exists()


def test_containers_and_namespaces_end_before_their_folders_go(tmp_path: Path) -> None:
    for name in ("containers/runc-state", "containers/runc-pauses", "network/namespaces"):
        (tmp_path / name).mkdir(parents=True)
    steps = removal_command(tmp_path).split("; ")
    assert steps[0].startswith(f"for id in $(runc --root {tmp_path}/containers/runc-state list -q)")
    assert [step.split()[0] for step in steps[-3:]] == ["grep", "umount", "rm"]
