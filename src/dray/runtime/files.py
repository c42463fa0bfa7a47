"""Durable files: replaced atomically, and on disk before the call returns."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

# The mode of files from `mkstemp`.
_TEMPORARY_MODE: Final = 0o600


def replace_file(path: str, content: bytes, mode: int = 0o600) -> None:
    """Replace the content of a file; readers see the old or the new content, even after a power failure."""
    folder = os.path.dirname(path) or "."
    # The name begins with a dot: watchers of directories (CDI, plugin sockets) ignore it.
    descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=folder)
    try:
        # No file object, for speed: the node agent does this three times per Pod.
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
    """Write all bytes, in several calls if necessary."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def remove_file(path: str) -> None:
    """Remove a file durably; it need not exist."""
    try:
        os.remove(path)
    except FileNotFoundError:
        return
    sync_folder(str(Path(path).parent))


def sync_folder(folder: str) -> None:
    """Sync a directory: a rename or removal is durable only after that."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
