"""Finding sockets in the registration folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Final

from dray.node.plugins.sockets import SocketFile

FOLDER_MODE: Final = 0o755
# Nothing legitimate nests deeper; a loop of bind mounts would.
DEPTH_MAX: Final = 16


def make_folder(path: str) -> None:
    """Make the registration folder; others may look into it, only the owner may add sockets."""
    os.makedirs(path, exist_ok=True)
    os.chmod(path, FOLDER_MODE)


def find_sockets(folder: str) -> tuple[SocketFile, ...]:
    """Every socket below the folder whose path has no part beginning with a dot, in order of paths.

    What vanishes while being looked at is not there; links are not followed.
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
            # The time of modification is that of creation for a socket, and `chmod` leaves it alone.
            yield SocketFile(entry.path, (status.st_dev, status.st_ino, status.st_mtime_ns))
        elif stat.S_ISDIR(status.st_mode) and depth < DEPTH_MAX:
            yield from _walk(entry.path, depth + 1)
