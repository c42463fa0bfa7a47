"""A checkpoint on the disk: replaced whole or not at all, and on the disk before the call returns.

Unlike `runtime.files`, for a file that one writer replaces for every Pod, several times. To make a file, and to remove
the one it replaces, is most of what that costs; so two files take turns under the checkpoint's name, and the one that
is not there keeps a hidden name. It is written over only while nothing on the disk may still call it the checkpoint:
when this process has replaced it, and the folder has been on the disk since.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import Final

from dray.runtime.files import sync_folder, write_all

_MODE: Final = 0o600


def read_checkpoint(path: str) -> bytes | None:
    """The content, None when there is no file; also while a writer replaces it again and again."""
    try:
        with open(path, "rb") as file:
            # Keeps a writer, whose turn may be to write over this very file, from doing so.
            fcntl.flock(file, fcntl.LOCK_SH)
            return file.read()
    except FileNotFoundError:
        return None


class CheckpointFile:
    """The checkpoint at a path; it has one writer, which calls `replace` one at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        folder, name = os.path.split(path)
        self._folder = folder or "."
        # The file to write next, and where the replaced one is kept. Watchers of folders pass over such names.
        self._next, self._kept = (os.path.join(folder, f".{name}.{turn}") for turn in ("a", "b"))
        # Whether there is a file to write next that nothing on the disk calls the checkpoint.
        self._spare = False

    def replace(self, content: bytes) -> None:
        """Give the checkpoint this content; whoever begins to read it, also after a power cut, has the old or this."""
        descriptor = self._open()
        # Until all is on the disk, nothing may be written over.
        self._spare = False
        try:
            _write(descriptor, content)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        kept = self._keep()
        os.replace(self._next, self._path)
        sync_folder(self._folder)
        self._next, self._kept, self._spare = self._kept, self._next, kept

    def _open(self) -> int:
        """The file to write next: the one that was replaced last, or a new one."""
        if self._spare:
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(self._next, os.O_WRONLY | os.O_NOFOLLOW)
                if _is_free(descriptor):
                    return descriptor
                os.close(descriptor)
        # Whatever has these names was left behind, and may be the checkpoint itself.
        for name in (self._next, self._kept):
            with contextlib.suppress(FileNotFoundError):
                os.remove(name)
        return os.open(self._next, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)

    def _keep(self) -> bool:
        """Give the file that is about to be replaced another name; False when there is none, or no such thing here."""
        try:
            os.link(self._path, self._kept)
        except OSError:
            return False
        return True


def _is_free(descriptor: int) -> bool:
    """Whether the file has no other name, and nobody reads it."""
    if os.fstat(descriptor).st_nlink != 1:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(descriptor: int, content: bytes) -> None:
    """Nothing but this is in the file then."""
    write_all(descriptor, content)
    if os.fstat(descriptor).st_size != len(content):
        os.ftruncate(descriptor, len(content))
