"""The files of Pods on disk, with kubelet's folder names: volumes, termination messages, logs."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from dray.api.quantity import Quantity
from dray.api.types.core_v1 import EmptyDirVolumeSource, HostPathVolumeSource, Pod, Volume
from dray.node.agent.pod.environment import ConfigError
from dray.node.agent.volume_content import File, Files
from dray.node.mounts import mount_memory, unmount
from dray.node.runtimes.runtime import BindMount
from dray.node.untrusted_files import make_folder, opened, read_file, real_path_below, remove_tree
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)

# kubelet's is 0750; containers of `--runtime=process` that are not root have to pass it.
_POD_FOLDER_MODE: Final = 0o711
MEMORY: Final = "Memory"
_DATA: Final = "..data"
_NEW_DATA: Final = "..data_tmp"
# The names of the folders that `..data` points to.
_VERSION: Final = re.compile(r"\.\.\d{4}(_\d\d){5}\.\d{9}")
_KINDS: Final = {
    "empty_dir": "kubernetes.io~empty-dir",
    "config_map": "kubernetes.io~configmap",
    "secret": "kubernetes.io~secret",
    "downward_api": "kubernetes.io~downward-api",
    "projected": "kubernetes.io~projected",
}
_CHECKS: Final[Mapping[str, tuple[Callable[[int], bool], str]]] = {
    "Directory": (stat.S_ISDIR, "a directory"),
    "File": (stat.S_ISREG, "a file"),
    "Socket": (stat.S_ISSOCK, "a socket"),
    "CharDevice": (stat.S_ISCHR, "a character device"),
    "BlockDevice": (stat.S_ISBLK, "a block device"),
}


def pod_folder(root: Path, uid: str) -> Path:
    """Return the folder of a Pod's files, except logs."""
    return root / "pods" / uid


def volume_folder(root: Path, uid: str, volume: Volume) -> Path:
    """Return the folder of a volume; raises `ConfigError` if its kind is not supported."""
    kind = next((name for name in _KINDS if getattr(volume, name) is not None), "")
    if not kind:
        raise ConfigError(f'volume "{volume.name}": this kind of volume is not offered by this node')
    return pod_folder(root, uid) / "volumes" / _KINDS[kind] / volume.name


def make_pod_folder(root: Path, uid: str) -> Path:
    """Create the folder of a Pod; other users cannot list it, but containers without isolation reach their volumes."""
    folder = pod_folder(root, uid)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(_POD_FOLDER_MODE)
    return folder


def make_empty(path: Path, source: EmptyDirVolumeSource, pod: Pod) -> None:
    """Create a folder that all users may write to, in memory if the volume asks for it and this process may mount."""
    medium = source.medium or ""
    if medium not in ("", MEMORY):
        raise ConfigError(f"medium {medium} is not offered by this node")
    path.mkdir(parents=True, exist_ok=True)
    if medium == MEMORY and os.geteuid() == 0:
        size = Quantity.parse(source.size_limit).value() if source.size_limit is not None else None
        try:
            mount_memory(path, size)
        except OSError as error:
            raise ConfigError(f"mount of a tmpfs: {error.strerror}") from error
    path.chmod(0o777)
    own_by_group(path, pod)


def empty_dir_limitation(volume: Volume) -> str:
    """Return what is not honoured of an emptyDir volume; empty if nothing is ignored."""
    source = volume.empty_dir
    if source is None:
        return ""
    if source.medium == MEMORY:
        return "" if os.geteuid() == 0 else f'volume "{volume.name}" is stored on disk: only root can mount memory'
    return f'volume "{volume.name}": sizeLimit is not enforced on disk' if source.size_limit is not None else ""


def own_by_group(path: Path, pod: Pod) -> None:
    """Change the group of a volume to the Pod's fsGroup, if set and permitted."""
    context = pod.spec.security_context
    group = context.fs_group if context is not None else None
    if group is not None and os.geteuid() == 0:
        os.chown(path, -1, group)
        path.chmod(path.stat().st_mode | stat.S_ISGID | 0o770)


def check_host_path(source: HostPathVolumeSource) -> str:
    """Check a hostPath volume, and create the path if its type requires it; raises `ConfigError`."""
    path, kind = Path(source.path), source.type or ""
    try:
        if kind == "DirectoryOrCreate":
            _make_host_folder(path)
            kind = "Directory"
        elif kind == "FileOrCreate":
            if not path.exists():
                path.touch(mode=0o644)
            kind = "File"
    except OSError as error:
        raise ConfigError(f"hostPath {source.path}: {error.strerror}") from error
    if kind:
        fits, what = _CHECKS[kind]
        if not path.exists() or not fits(path.stat().st_mode):
            raise ConfigError(f"hostPath type check failed: {source.path} is not {what}")
    return source.path


def make_host_path(path: str) -> None:
    """Create the folder of a hostPath volume without a type, as container runtimes do; raises `ConfigError`.

    An agent that may not create it leaves that to the user of the path.
    """
    try:
        if not Path(path).exists():
            _make_host_folder(Path(path))
    except PermissionError:
        if os.geteuid() == 0:
            raise ConfigError(f"hostPath {path}: permission denied") from None
    except OSError as error:
        raise ConfigError(f"hostPath {path}: {error.strerror}") from error


def _make_host_folder(path: Path) -> None:
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o755)
            # Whatever the umask.
            folder.chmod(0o755)


def write_files(folder: Path, files: Files, pod: Pod, mount_points: Sequence[str] = ()) -> None:
    """Replace the files of a volume atomically.

    The files are in a timestamped folder to which the link `..data` points; the volume's names are links through it.
    Beside them are empty folders for the mount points of other volumes. Everything else in the volume is removed, since
    only a container can have put it there.
    """
    for path in (*files, *mount_points):
        if path.startswith("/") or ".." in path.split("/"):
            raise ConfigError(f"path {path!r} must stay inside its volume")
    names = {path.partition("/")[0] for path in files}
    points = {path.partition("/")[0] for path in mount_points}
    if names & points:
        raise ConfigError(f"a volume is mounted at {min(names & points)!r}, where this one has files")
    folder.mkdir(parents=True, exist_ok=True)
    with opened(folder) as volume:
        os.fchmod(volume, 0o755)
        current = _current(volume)
        if not current or not _holds(current, files, volume):
            current = _write_version(volume, files, pod)
        _make_mount_points(volume, mount_points)
        _link_names(volume, names, {*points, current})


def _write_version(volume: int, files: Files, pod: Pod) -> str:
    """Write the files to a new folder and point `..data` to it; return the folder's name."""
    name = f"..{time.strftime('%Y_%m_%d_%H_%M_%S', time.gmtime())}.{time.time_ns() % 10**9:09d}"
    context = pod.spec.security_context
    group = context.fs_group if context is not None and os.geteuid() == 0 else None
    os.mkdir(name, 0o755, dir_fd=volume)
    with opened(name, dir_fd=volume) as fresh:
        os.fchmod(fresh, 0o755)
        for path, file in files.items():
            _write_file(fresh, path, file, group)
    for stale in (_NEW_DATA, *(() if _is_link(volume, _DATA) else (_DATA,))):
        remove_tree(stale, dir_fd=volume)
    os.symlink(name, _NEW_DATA, dir_fd=volume)
    os.rename(_NEW_DATA, _DATA, src_dir_fd=volume, dst_dir_fd=volume)
    return name


def _write_file(top: int, path: str, file: File, group: int | None) -> None:
    *parents, name = path.split("/")
    with contextlib.ExitStack() as stack:
        folder = top
        for parent in parents:
            folder = make_folder(parent, 0o755, folder)
            stack.callback(os.close, folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb") as target:
            target.write(file.content)
            if group is not None:
                os.fchown(target.fileno(), -1, group)
            os.fchmod(target.fileno(), file.mode | (0o040 if group is not None else 0))


def _make_mount_points(volume: int, paths: Sequence[str]) -> None:
    for path in paths:
        with contextlib.ExitStack() as stack:
            folder = volume
            for name in path.split("/"):
                if not stat.S_ISDIR(_mode(folder, name)):
                    remove_tree(name, dir_fd=folder)
                folder = make_folder(name, 0o755, folder)
                stack.callback(os.close, folder)


def _link_names(volume: int, names: set[str], others: set[str]) -> None:
    for name in names:
        if not _is_link(volume, name) or os.readlink(name, dir_fd=volume) != f"{_DATA}/{name}":
            remove_tree(name, dir_fd=volume)
            os.symlink(f"{_DATA}/{name}", name, dir_fd=volume)
    for name in os.listdir(volume):
        if name not in names and name not in others and name != _DATA:
            remove_tree(name, dir_fd=volume)


def _is_link(volume: int, name: str) -> bool:
    return stat.S_ISLNK(_mode(volume, name))


def _current(volume: int) -> str:
    """Return the name of the folder with the files; empty if `..data` is not a link that this agent wrote."""
    if not _is_link(volume, _DATA):
        return ""
    name = os.readlink(_DATA, dir_fd=volume)
    return name if _VERSION.fullmatch(name) else ""


def _holds(name: str, files: Files, volume: int) -> bool:
    """Whether a folder has exactly the files."""
    found = set()
    folders = {path[:end] for path in files for end, letter in enumerate(path) if letter == "/"}
    for path, subfolders, names, folder in os.fwalk(name, dir_fd=volume, follow_symlinks=False):
        prefix = f"{path}/".removeprefix(f"{name}/")
        # Goes no deeper than the files do.
        if any(prefix + entry not in folders for entry in subfolders):
            return False
        for entry in names:
            file = files.get(prefix + entry)
            if file is None or not _has(folder, entry, file.content):
                return False
            found.add(prefix + entry)
    return found == files.keys() and stat.S_ISDIR(_mode(volume, name))


def _has(folder: int, name: str, content: bytes) -> bool:
    try:
        return read_file(name, len(content) + 1, dir_fd=folder) == content
    except OSError:
        return False


def _mode(folder: int, name: str) -> int:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return 0


def prepare_subpath(mount: BindMount, container: str) -> BindMount:
    """Create the folders of a subPath that are missing, and return the mount of its real path; raises `ConfigError`."""
    try:
        below = real_path_below(mount.root, os.path.relpath(mount.host_path, mount.root))
    except OSError as error:
        # The details would tell the user about the host's files.
        _log.warning("subPath refused", extra=fields(volume=mount.volume, container=container, error=str(error)))
        raise ConfigError(
            f'failed to prepare subPath for volumeMount "{mount.volume}" of container "{container}"'
        ) from error
    return replace(mount, host_path=f"{mount.root}/{below}".rstrip("/"))


def write_hosts(root: Path, uid: str, content: str) -> Path:
    """Write the Pod's /etc/hosts unless it is there, since its containers may have changed it."""
    path = make_pod_folder(root, uid) / "etc-hosts"
    if not path.exists():
        path.write_text(content, encoding="utf-8")
        path.chmod(0o644)
    return path


def make_message_file(root: Path, uid: str, container: str, attempt: int) -> Path:
    """Create the termination message file of a run."""
    folder = make_pod_folder(root, uid) / "containers" / container
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{attempt}.message"
    path.touch()
    path.chmod(0o666)
    return path


def read_message(root: Path, uid: str, container: str, attempt: int, size_max: int) -> str:
    """Return the termination message of a run."""
    path = pod_folder(root, uid) / "containers" / container / f"{attempt}.message"
    try:
        return read_file(path, size_max).decode(errors="replace")
    except OSError:
        return ""


def remove_pod(root: Path, uid: str, logs: Path) -> None:
    """Remove the Pod's files."""
    for volume in (pod_folder(root, uid) / "volumes" / _KINDS["empty_dir"]).glob("*"):
        with contextlib.suppress(OSError):
            unmount(volume)
    remove_tree(pod_folder(root, uid))
    remove_tree(logs)


def remove_log(path: str) -> None:
    """Remove a run's log and its rotated files."""
    log = Path(path)
    with contextlib.suppress(OSError):
        for part in log.parent.glob(f"{log.name}*"):
            part.unlink(missing_ok=True)
