"""A checkpoint file that is replaced atomically and synced to disk.

Unlike `runtime.files`, it is for a file that one writer replaces several times for every Pod. Creating a file and
removing the replaced one is most of the cost, so two files alternate under the checkpoint's name, and the other one
has a hidden name. That one is overwritten only if no directory entry on disk can still refer to it as the checkpoint:
this process has replaced it, and the folder was synced since. Until then it is the last checkpoint, which `load` reads
if the new one is damaged.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from dray.runtime.files import sync_folder, write_all

_MODE: Final = 0o600
_TURNS: Final = ("a", "b")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """The state of a checkpoint, None if there is no readable one."""

    state: T | None
    # Why the newest checkpoint cannot be read, empty if it can or if there was none. `state` is then the one before.
    damage: str = ""

    @property
    def is_newest(self) -> bool:
        """Whether the state is all that was written."""
        return self.state is not None and not self.damage


def load(path: str, decode: Callable[[bytes], T]) -> Loaded[T]:
    """Return the state of the newest checkpoint that can be read; `decode` raises ValueError if one is damaged."""
    damage = ""
    for name in (path, *_hidden_names(path)):
        try:
            content = read_checkpoint(name)
            if content is not None:
                return Loaded(decode(content), damage or ("" if name == path else f"{path}: no such file"))
        except (ValueError, OSError) as error:
            # Without a checkpoint, the hidden file is what a crash has left of the first one.
            if name == path:
                damage = f"{path}: {error}"
    return Loaded(None, damage)


def read_checkpoint(path: str) -> bytes | None:
    """Return the content, None if there is no file; safe while a writer replaces it."""
    try:
        with open(path, "rb") as file:
            # Prevents the writer from overwriting this file.
            fcntl.flock(file, fcntl.LOCK_SH)
            return file.read()
    except FileNotFoundError:
        return None


class CheckpointFile:
    """The checkpoint at a path; it has one writer, whose calls of `replace` do not overlap."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = os.path.dirname(path) or "."
        # The file to write next, and the name of the replaced one.
        self._next, self._kept = _hidden_names(path)
        if os.path.exists(self._next) and not _is_same(self._next, path):
            # The last checkpoint, which may be needed until there is a new one.
            self._next, self._kept = self._kept, self._next
        # Whether the file to write next exists and can be overwritten.
        self._spare = False

    def replace(self, content: bytes) -> None:
        """Replace the content; readers get the old or the new content, also after a power failure."""
        descriptor = self._open()
        # Until everything is on disk, nothing may be overwritten.
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
        """Open the file to write next: the one that was replaced last, or a new one."""
        if self._spare:
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(self._next, os.O_WRONLY | os.O_NOFOLLOW)
                if _is_free(descriptor):
                    return descriptor
                os.close(descriptor)
        # A leftover file, which may be linked to the checkpoint itself.
        _remove(self._next)
        return os.open(self._next, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)

    def _keep(self) -> bool:
        """Link the file that is about to be replaced to its hidden name; return False if that is not possible."""
        _remove(self._kept)
        try:
            os.link(self._path, self._kept)
        except OSError:
            return False
        return True


def _hidden_names(path: str) -> tuple[str, str]:
    """Return the names of the other file, which take turns; watchers of folders ignore hidden names."""
    folder, name = os.path.split(path)
    first, second = (os.path.join(folder, f".{name}.{turn}") for turn in _TURNS)
    return first, second


def _is_same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except FileNotFoundError:
        return False


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)


def _is_free(descriptor: int) -> bool:
    """Whether the file has no other name and no reader."""
    if os.fstat(descriptor).st_nlink != 1:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(descriptor: int, content: bytes) -> None:
    """Write the content and truncate the file to it."""
    write_all(descriptor, content)
    if os.fstat(descriptor).st_size != len(content):
        os.ftruncate(descriptor, len(content))
