"""Mounts on the node: file systems in memory for volumes."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

_NO_SUID: Final = 0x2
_NO_DEVICES: Final = 0x4
_DETACH: Final = 0x2
_libc: Final = ctypes.CDLL(None, use_errno=True)


def mount_memory(path: Path, size_bytes: int | None, mode: int = 0o777) -> None:
    """Mount a tmpfs at the path unless something is mounted there; the default size is half of the memory."""
    if os.path.ismount(path):
        return
    options = f"mode={mode:o}" + (f",size={size_bytes}" if size_bytes is not None else "")
    _check(_libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", _NO_SUID | _NO_DEVICES, options.encode()), path)


def unmount(path: Path) -> None:
    """Unmount what is mounted at the path, if anything; files that are open in it stay usable."""
    if os.path.ismount(path):
        _check(_libc.umount2(os.fsencode(path), _DETACH), path)


def _check(result: int, path: Path) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
