"""Finds the sockets in the registration folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Final

from dray.node.plugins.sockets import SocketFile

FOLDER_MODE: Final = 0o755
# Guards against a loop of bind mounts.
DEPTH_MAX: Final = 16


def make_folder(path: str) -> None:
    """Create the registration folder; only its owner may add sockets."""
    os.makedirs(path, exist_ok=True)
    os.chmod(path, FOLDER_MODE)


def find_sockets(folder: str) -> tuple[SocketFile, ...]:
    """Return every socket below the folder without hidden path parts, in the order of paths.

    Symbolic links are not followed, and files that vanish during the scan are ignored.
    """
    return tuple(sorted(_walk(folder, 0)))


def _walk(folder: str, depth: int) -> Iterator[SocketFile]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISSOCK(status.st_mode):
            # A socket's modification time is its creation time, and `chmod` does not change it.
            yield SocketFile(entry.path, (status.st_dev, status.st_ino, status.st_mtime_ns))
        elif stat.S_ISDIR(status.st_mode) and depth < DEPTH_MAX:
            yield from _walk(entry.path, depth + 1)
