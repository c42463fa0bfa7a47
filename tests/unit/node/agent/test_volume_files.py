"""Volumes on disk."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest

from dray.api.types.core_v1 import HostPathVolumeSource
from dray.node.agent.pod.environment import ConfigError
from dray.node.agent.volume_content import File, nested_mount_points
from dray.node.agent.volume_files import (
    check_host_path,
    make_host_path,
    make_message_file,
    make_pod_folder,
    volume_folder,
    write_files,
)
from tests.unit.node.agent.builders import a_volume, container, pod


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


@pytest.mark.behaviour("ST-70")
def test_a_host_path_without_a_type_is_created(tmp_path: Path) -> None:
    make_host_path(str(tmp_path / "a/b"))
    assert stat.S_IMODE((tmp_path / "a/b").stat().st_mode) == 0o755
    (tmp_path / "file").touch()
    make_host_path(str(tmp_path / "file"))
    assert (tmp_path / "file").is_file()
    with pytest.raises(ConfigError, match="Not a directory"):
        make_host_path(str(tmp_path / "file/x"))


@pytest.mark.behaviour("ST-73")
def test_mount_points_inside_a_volume_survive_its_updates(tmp_path: Path) -> None:
    folder = tmp_path / "v"
    write_files(folder, {"a": File(b"1", 0o644)}, pod(), ["d/deep", "e"])
    (folder / "planted").touch()
    write_files(folder, {"a": File(b"2", 0o644)}, pod(), ["d/deep", "e"])
    assert sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("..")) == ["a", "d", "e"]
    assert (folder / "d/deep").is_dir()
    with pytest.raises(ConfigError, match="a volume is mounted at 'a'"):
        write_files(folder, {"a": File(b"2", 0o644)}, pod(), ["a/x"])
    with pytest.raises(ConfigError, match="must stay inside"):
        write_files(folder, {}, pod(), ["../x"])


@pytest.mark.behaviour("ST-73")
def test_nested_mount_points_are_the_first_level_below_a_volume() -> None:
    mounts = [("v", "/etc/v"), ("a", "/etc/v/a/"), ("b", "/etc/v/a/b"), ("c", "/etc/v/c/d"), ("x", "/etc/vx")]
    subject = pod(container(volumeMounts=[{"name": name, "mountPath": path} for name, path in mounts]))
    assert nested_mount_points(subject, "v") == ("a", "c/d")
    assert nested_mount_points(subject, "a") == ("b",)
    assert nested_mount_points(subject, "x") == ()
