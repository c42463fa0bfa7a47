"""A container that may write to a volume plants links; the node agent must not follow them to the host."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dray.node.agent.logs.cri_format import LogOptions
from dray.node.agent.logs.reader import stream
from dray.node.agent.pod.environment import ConfigError
from dray.node.agent.volume_content import File
from dray.node.agent.volume_files import prepare_subpath, read_message, remove_pod, write_files
from dray.node.runtimes.cri.subpaths import bind_subpaths, remove_subpaths
from dray.node.runtimes.runtime import BindMount, ContainerSpec, RuntimeFailure, Sandbox
from dray.node.runtimes.shim.program import Log
from dray.node.untrusted_files import DEPTH_MAX, LINKS_MAX, open_below, real_path_below, remove_tree
from tests.unit.node.agent.builders import pod

FILES = {"key": File(b"value", 0o644), "folder/key": File(b"other", 0o600)}
NEWER = {"key": File(b"newer", 0o644)}


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A folder of the host that must not change."""
    folder = tmp_path / "host"
    folder.mkdir()
    (folder / "precious").write_text("kept")
    return folder


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    folder = tmp_path / "volume"
    folder.mkdir()
    return folder


def is_untouched(host: Path) -> bool:
    return [(path.name, path.read_text()) for path in host.iterdir()] == [("precious", "kept")]


def subpath(volume: Path, path: str) -> BindMount:
    return prepare_subpath(BindMount(f"{volume}/{path}", "/x", volume="v", root=str(volume)), "a")


# --- subPath. ---


@pytest.mark.parametrize("target", ["/", "..", "../host", "folder/../../host", "up/.."])
def test_a_subpath_replaced_by_a_link_to_the_host_is_refused(host: Path, volume: Path, target: str) -> None:
    (volume / "folder").mkdir()
    (volume / "up").symlink_to(".")
    (volume / "s").symlink_to(target)
    with pytest.raises(ConfigError) as caught:
        subpath(volume, "s")
    assert str(caught.value) == 'failed to prepare subPath for volumeMount "v" of container "a"'


def test_folders_of_a_subpath_are_not_created_through_a_link(host: Path, volume: Path) -> None:
    (volume / "s").symlink_to("../host")
    with pytest.raises(ConfigError):
        subpath(volume, "s/made")
    assert is_untouched(host)


def test_a_link_to_another_place_of_the_volume_is_followed(volume: Path) -> None:
    (volume / "real").mkdir()
    (volume / "folder").mkdir()
    (volume / "folder/link").symlink_to("../real/./")
    assert subpath(volume, "folder/link").host_path == f"{volume}/real"


def test_a_key_of_a_config_map_can_be_a_subpath(volume: Path) -> None:
    write_files(volume, FILES, pod())
    assert Path(subpath(volume, "folder/key").host_path).read_bytes() == b"other"


def test_missing_folders_of_a_subpath_get_the_mode_of_the_volume(volume: Path) -> None:
    volume.chmod(0o777)
    made = Path(subpath(volume, "a/b").host_path)
    assert made == volume / "a/b"
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (made, made.parent)] == [0o777, 0o777]


def test_links_and_depth_of_a_subpath_are_bounded(volume: Path) -> None:
    (volume / "loop").symlink_to("loop")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="symbolic links"):
        real_path_below(str(volume), "loop")
    for number in range(LINKS_MAX + 1):
        (volume / f"l{number}").symlink_to(f"l{number + 1}")
    with pytest.raises(OSError, match="symbolic links"):
        real_path_below(str(volume), "l0")
    with pytest.raises(OSError, match="too long"):
        real_path_below(str(volume), "d/" * (DEPTH_MAX + 1))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("replaced", ["a", "a/b"])
def test_a_subpath_replaced_between_check_and_mount_is_refused(host: Path, volume: Path, replaced: str) -> None:
    mount = subpath(volume, "a/b")
    remove_tree(volume / replaced)
    (volume / replaced).symlink_to(host if replaced == "a/b" else volume.parent)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        open_below(mount.root, os.path.relpath(mount.host_path, mount.root))
    assert len(os.listdir("/proc/self/fd")) == before


# --- Volumes made of objects. ---


def plant_data_link(volume: Path, host: Path) -> None:
    (volume / "..data").unlink()
    (volume / "..data").symlink_to(host)


def plant_data_link_upwards(volume: Path, host: Path) -> None:
    (volume / "..data").unlink()
    (volume / "..data").symlink_to(f"../{host.name}")


def plant_data_folder(volume: Path, host: Path) -> None:
    (volume / "..data").unlink()
    (volume / "..data").mkdir()
    (volume / "..data/inner").symlink_to(host)


def plant_version_link(volume: Path, host: Path) -> None:
    version = volume / os.readlink(volume / "..data")
    version.rename(volume / "elsewhere")
    version.symlink_to(host)


def plant_new_data(volume: Path, host: Path) -> None:
    (volume / "..data_tmp").mkdir()
    (volume / "..data_tmp/inner").symlink_to(host)


def plant_name_links(volume: Path, host: Path) -> None:
    (volume / "key").unlink()
    (volume / "key").symlink_to(host / "precious")
    (volume / "folder").unlink()
    (volume / "folder").mkdir()
    (volume / "folder/inner").symlink_to(host)
    (volume / "more").symlink_to(host)


def plant_file_link(volume: Path, host: Path) -> None:
    (volume / "..data/key").unlink()
    (volume / "..data/key").symlink_to(host / "precious")


def plant_fifo(volume: Path, _host: Path) -> None:
    (volume / "..data/key").unlink()
    os.mkfifo(volume / "..data/key")


PLANTS = [
    plant_data_link,
    plant_data_link_upwards,
    plant_data_folder,
    plant_version_link,
    plant_new_data,
    plant_name_links,
    plant_file_link,
    plant_fifo,
]


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("files", [FILES, NEWER], ids=["same", "newer"])
def test_updates_of_a_volume_follow_no_planted_link(
    host: Path, volume: Path, plant: Callable[[Path, Path], None], files: dict[str, File]
) -> None:
    write_files(volume, FILES, pod())
    plant(volume, host)
    write_files(volume, files, pod())
    assert is_untouched(host)
    assert all((volume / path).read_bytes() == file.content for path, file in files.items())
    version = os.readlink(volume / "..data")
    assert sorted(os.listdir(volume)) == sorted(["..data", version, *{path.partition("/")[0] for path in files}])


# --- Removal. ---


def test_removal_of_a_pod_follows_no_planted_link(tmp_path: Path, host: Path) -> None:
    volume = tmp_path / "pods/u/volumes/kubernetes.io~empty-dir/v"
    (volume / "folder").mkdir(parents=True)
    (volume / "file").write_text("x")
    for name in ("link", "folder/link", "..data"):
        (volume / name).symlink_to(host)
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "link").symlink_to(host)
    remove_pod(tmp_path, "u", logs)
    assert is_untouched(host)
    assert not (tmp_path / "pods/u").exists()
    assert not logs.exists()


def test_a_pod_folder_that_is_a_link_is_removed_alone(tmp_path: Path, host: Path) -> None:
    (tmp_path / "pods").mkdir()
    (tmp_path / "pods/u").symlink_to(host)
    remove_pod(tmp_path, "u", tmp_path / "logs")
    assert is_untouched(host)
    assert not (tmp_path / "pods/u").is_symlink()


@pytest.fixture
def memory_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory if there is such a file system: thousands of folders take long on a disk."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def test_deep_trees_are_removed_with_few_descriptors(memory_folder: Path) -> None:
    top = memory_folder / "top"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    # Deeper than the recursion limit and the usual limit of descriptors.
    for _ in range(1100):
        os.mkdir("d", dir_fd=here)
        os.mkdir(".removed-1", dir_fd=here)
        following = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = following
    os.close(here)
    remove_tree(top)
    assert not top.exists()


# --- Termination messages. ---


def test_a_termination_message_replaced_by_a_link_or_fifo_is_not_read(tmp_path: Path, host: Path) -> None:
    folder = tmp_path / "pods/u/containers/a"
    folder.mkdir(parents=True)
    (folder / "0.message").symlink_to(host / "precious")
    os.mkfifo(folder / "1.message")
    assert [read_message(tmp_path, "u", "a", attempt, 100) for attempt in (0, 1)] == ["", ""]


# --- Logs. ---


async def test_a_log_replaced_by_a_link_or_fifo_is_not_read(tmp_path: Path, host: Path) -> None:
    (host / "precious").write_text("2026-01-01T00:00:00.000000000Z stdout F secret\n")
    (tmp_path / "0.log").symlink_to(host / "precious")
    (tmp_path / "0.log.1").symlink_to(host / "precious")
    os.mkfifo(tmp_path / "1.log")
    for name in ("0.log", "1.log"):
        for follow in (False, True):
            assert [chunk async for chunk in stream(tmp_path / name, LogOptions(follow=follow), lambda: False)] == []


def test_a_log_replaced_by_a_link_is_not_written(tmp_path: Path, host: Path) -> None:
    (tmp_path / "0.log").symlink_to(host / "precious")
    with pytest.raises(OSError, match="symbolic links"):
        Log(str(tmp_path / "0.log"))
    assert is_untouched(host)


# --- What a CRI runtime mounts. ---


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")
def test_a_runtime_mounts_what_the_agent_has_opened(host: Path, volume: Path, tmp_path: Path) -> None:
    (volume / "s").mkdir()
    (volume / "s" / "own").write_text("kept")
    sandbox = Sandbox("uid", "ns", "p", "p", str(tmp_path / "logs"))
    spec = ContainerSpec(sandbox, "a", 0, "busybox", mounts=(subpath(volume, "s"),))
    (mounted,) = bind_subpaths(tmp_path / "subpaths", spec)
    # Whatever a container does with the path now, the runtime is given the folder itself.
    (volume / "s").rename(volume / "t")
    (volume / "s").symlink_to(host)
    assert [path.name for path in Path(mounted.host_path).iterdir()] == ["own"]
    # The next run of the container finds the link, and loses its mount.
    with pytest.raises(RuntimeFailure, match="failed to prepare subPath"):
        bind_subpaths(tmp_path / "subpaths", spec)
    assert is_untouched(host)
    remove_subpaths(tmp_path / "subpaths", "uid")
    assert list((tmp_path / "subpaths").iterdir()) == []
    assert (volume / "t" / "own").read_text() == "kept"
