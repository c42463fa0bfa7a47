"""The files of Pods on disk, with kubelet's folder names: volumes, termination messages, logs."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from dray.api.types.core_v1 import HostPathVolumeSource, Pod, Volume
from dray.node.agent.pod.environment import ConfigError
from dray.node.agent.volume_content import Files

_DATA: Final = "..data"
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


def make_empty(path: Path, pod: Pod) -> None:
    """Create a folder that all users may write to."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o777)
    own_by_group(path, pod)


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
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True, mode=0o755)
        kind = "Directory"
    elif kind == "FileOrCreate":
        if not path.exists():
            path.touch(mode=0o644)
        kind = "File"
    if kind:
        fits, what = _CHECKS[kind]
        if not path.exists() or not fits(path.stat().st_mode):
            raise ConfigError(f"hostPath type check failed: {source.path} is not {what}")
    return source.path


def write_files(folder: Path, files: Files, pod: Pod) -> None:
    """Replace the files of a volume atomically.

    The files are in a timestamped folder to which the link `..data` points; the volume's names are links through it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    if _current(folder) == {path: file.content for path, file in files.items()}:
        return
    fresh = folder / f"..{time.strftime('%Y_%m_%d_%H_%M_%S', time.gmtime())}.{time.time_ns() % 10**9:09d}"
    fresh.mkdir(mode=0o755)
    for path, file in files.items():
        target = fresh / path
        if not target.resolve().is_relative_to(fresh.resolve()):
            raise ConfigError(f"path {path!r} must stay inside its volume")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.content)
        target.chmod(file.mode)
        _own_file(target, pod)
    old = os.readlink(folder / _DATA) if (folder / _DATA).is_symlink() else ""
    link = folder / "..data_tmp"
    link.unlink(missing_ok=True)
    link.symlink_to(fresh.name)
    link.rename(folder / _DATA)
    _link_names(folder, {Path(path).parts[0] for path in files})
    if old:
        shutil.rmtree(folder / old, ignore_errors=True)


def _own_file(path: Path, pod: Pod) -> None:
    context = pod.spec.security_context
    if context is not None and context.fs_group is not None and os.geteuid() == 0:
        os.chown(path, -1, context.fs_group)
        path.chmod(path.stat().st_mode | 0o040)


def _link_names(folder: Path, names: set[str]) -> None:
    for name in names:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"{_DATA}/{name}")
    for entry in folder.iterdir():
        if not entry.name.startswith("..") and entry.name not in names:
            entry.unlink(missing_ok=True)


def _current(folder: Path) -> dict[str, bytes] | None:
    data = folder / _DATA
    if not data.exists():
        return None
    base = data.resolve()
    return {str(path.relative_to(base)): path.read_bytes() for path in base.rglob("*") if path.is_file()}


def make_part(path: str) -> None:
    """Create the folder of a subPath if it is missing."""
    if not os.path.lexists(path):
        Path(path).mkdir(parents=True, exist_ok=True, mode=0o777)


def make_message_file(root: Path, uid: str, container: str, attempt: int) -> Path:
    """Create the termination message file of a run."""
    folder = pod_folder(root, uid) / "containers" / container
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{attempt}.message"
    path.touch()
    path.chmod(0o666)
    return path


def read_message(root: Path, uid: str, container: str, attempt: int, size_max: int) -> str:
    """Return the termination message of a run."""
    path = pod_folder(root, uid) / "containers" / container / f"{attempt}.message"
    try:
        with path.open("rb") as file:
            return file.read(size_max).decode(errors="replace")
    except OSError:
        return ""


def remove_pod(root: Path, uid: str, logs: Path) -> None:
    """Remove the Pod's files."""
    shutil.rmtree(pod_folder(root, uid), ignore_errors=True)
    shutil.rmtree(logs, ignore_errors=True)


def remove_log(path: str) -> None:
    """Remove a run's log and its rotated files."""
    log = Path(path)
    with contextlib.suppress(OSError):
        for part in log.parent.glob(f"{log.name}*"):
            part.unlink(missing_ok=True)
