"""Files that survive a crash: replaced whole or not at all, and on the disk before the call returns."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

# What `mkstemp` gives its files.
_TEMPORARY_MODE: Final = 0o600


def replace_file(path: str, content: bytes, mode: int = 0o600) -> None:
    """Give the file this content; whoever reads it, also after a power cut, finds the old content or the new."""
    folder = os.path.dirname(path) or "."
    # A name beginning with a dot: watchers of folders (CDI, plugin sockets) pass over it.
    descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=folder)
    try:
        # Not by a file object: the node's agent does this for every Pod, three times.
        try:
            if mode != _TEMPORARY_MODE:
                os.fchmod(descriptor, mode)
            write_all(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(folder)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of it, however little the system takes at once."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def remove_file(path: str) -> None:
    """Remove the file for good; it is fine when there is none."""
    try:
        os.remove(path)
    except FileNotFoundError:
        return
    sync_folder(str(Path(path).parent))


def sync_folder(folder: str) -> None:
    """A rename or removal is only certain once its folder is on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
