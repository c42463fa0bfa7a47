"""Volumes on disk."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest

from dray.api.types.core_v1 import HostPathVolumeSource
from dray.node.agent.pod.environment import ConfigError
from dray.node.agent.volume_content import File
from dray.node.agent.volume_files import (
    check_host_path,
    make_message_file,
    make_pod_folder,
    volume_folder,
    write_files,
)
from tests.unit.node.agent.builders import a_volume, pod


def test_files_of_a_volume_change_all_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "v"
    write_files(folder, {"a": File(b"1", 0o644), "d/b": File(b"2", 0o400)}, pod())
    before = (folder / "..data").resolve()
    assert (folder / "a").read_bytes() == b"1"
    assert (folder / "d/b").stat().st_mode & 0o777 == 0o400
    write_files(folder, {"a": File(b"1", 0o644), "d/b": File(b"2", 0o400)}, pod())
    assert (folder / "..data").resolve() == before
    write_files(folder, {"a": File(b"new", 0o644)}, pod())
    assert (folder / "a").read_bytes() == b"new"
    assert sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("..")) == ["a"]
    assert not before.exists()


def test_files_cannot_leave_their_volume(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must stay inside"):
        write_files(tmp_path / "v", {"../x": File(b"", 0o644)}, pod())


def test_folders_have_kubelets_names(tmp_path: Path) -> None:
    assert volume_folder(tmp_path, "u", a_volume(emptyDir={})) == tmp_path / "pods/u/volumes/kubernetes.io~empty-dir/v"
    with pytest.raises(ConfigError, match="not offered"):
        volume_folder(tmp_path, "u", a_volume(nfs={"server": "x", "path": "/"}))


@pytest.mark.parametrize(
    ("kind", "problem"),
    [("Directory", ""), ("File", "is not a file"), ("Socket", "is not a socket"), ("", ""), ("DirectoryOrCreate", "")],
)
def test_host_paths_are_checked(tmp_path: Path, kind: str, problem: str) -> None:
    source = msgspec.convert({"path": str(tmp_path), "type": kind}, HostPathVolumeSource)
    if not problem:
        assert check_host_path(source) == str(tmp_path)
        return
    with pytest.raises(ConfigError, match=problem):
        check_host_path(source)


def test_other_users_pass_the_folder_of_a_pod_but_cannot_list_it(tmp_path: Path) -> None:
    made = make_pod_folder(tmp_path, "uid")
    assert made == tmp_path / "pods" / "uid"
    assert stat.S_IMODE(made.stat().st_mode) == 0o711
    made.chmod(0o755)
    make_message_file(tmp_path, "uid", "c", 0)
    assert stat.S_IMODE(made.stat().st_mode) == 0o711
