"""Mounts on the node: file systems in memory for volumes, and parts of volumes."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Final

_NO_SUID: Final = 0x2
_NO_DEVICES: Final = 0x4
_DETACH: Final = 0x2
# A path that is a link is not followed; the error of one where nothing is mounted, or that is gone.
_NO_FOLLOW: Final = 0x8
_NOT_MOUNTED: Final = (errno.EINVAL, errno.ENOENT)
_RECURSIVE_BIND: Final = 0x4000 | 0x1000
_libc: Final = ctypes.CDLL(None, use_errno=True)


def mount_memory(path: Path, size_bytes: int | None, mode: int = 0o777) -> None:
    """Mount a tmpfs at the path unless something is mounted there; the default size is half of the memory."""
    if os.path.ismount(path):
        return
    options = f"mode={mode:o}" + (f",size={size_bytes}" if size_bytes is not None else "")
    _check(_libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", _NO_SUID | _NO_DEVICES, options.encode()), path)


def bind(source: str, target: Path) -> None:
    """Mount a file or folder, with what is mounted below it, at another path."""
    _check(_libc.mount(source.encode(), os.fsencode(target), None, _RECURSIVE_BIND, None), target)


def unmount(path: Path) -> None:
    """Unmount what is mounted at the path, if anything; files that are open in it stay usable."""
    # A bind mount of the same file system is no `ismount`: the kernel knows.
    if _libc.umount2(os.fsencode(path), _DETACH | _NO_FOLLOW) != 0 and ctypes.get_errno() not in _NOT_MOUNTED:
        _check(-1, path)


def _check(result: int, path: Path) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
