"""The disk under checkpoint files: every system call is a step at which the process or the machine can fail.

The files are real; a layer between `checkpoint_file` and the operating system keeps account of what is synced. A crash
of the process keeps every step. A power cut keeps a beginning of the changes to the directory since its last sync, and
of a file that was not synced any part.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from dray.node import checkpoint_file
from dray.runtime import files

Change = Callable[[dict[str, int]], None]


class DeadError(OSError):
    """The process has ended: this step did not happen."""


class CheckpointDisk:
    """The files of one folder. `before_step` names a failure: "" to go on, "full", or "crash"."""

    def __init__(self, folder: Path, before_step: Callable[[str], str]) -> None:
        self.folder = folder
        self.dead = False
        self._before_step = before_step
        # Content by inode as far as it is on the disk, and the inodes by name.
        self._synced: dict[int, bytes] = {}
        self._entries: dict[str, int] = {}
        # Changes to the directory since its last sync, oldest first.
        self._changes: list[Change] = []
        for path in sorted(folder.iterdir()):
            inode = path.stat().st_ino
            self._entries[path.name] = inode
            self._synced[inode] = path.read_bytes()

    def after_crash(self, target: Path, rng: random.Random, *, power_cut: bool) -> None:
        """Write the files as the next process finds them to a folder."""
        entries = {path.name: path.stat().st_ino for path in sorted(self.folder.iterdir())}
        contents = {path.stat().st_ino: path.read_bytes() for path in sorted(self.folder.iterdir())}
        if power_cut:
            entries = dict(self._entries)
            for change in self._changes[: rng.randint(0, len(self._changes))]:
                change(entries)
            contents = {
                inode: self._after_power_cut(inode, contents.get(inode, b""), rng) for inode in entries.values()
            }
        written: dict[int, Path] = {}
        for name, inode in sorted(entries.items()):
            if inode in written:
                os.link(written[inode], target / name)
            else:
                (target / name).write_bytes(contents[inode])
                written[inode] = target / name

    def _after_power_cut(self, inode: int, current: bytes, rng: random.Random) -> bytes:
        synced = self._synced.get(inode, b"")
        if current == synced:
            return current
        cut = rng.randint(0, len(current))
        return rng.choice((synced, current, current[:cut], current[:cut] + synced[cut:], bytes(len(current))))

    # --- system calls ---

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        self._step("open")
        descriptor = os.open(path, flags, mode)
        if flags & os.O_CREAT:
            inode, name = os.fstat(descriptor).st_ino, os.path.basename(path)
            # The inode may be that of a removed file.
            self._synced.pop(inode, None)
            self._changes.append(lambda entries: entries.__setitem__(name, inode))
        return descriptor

    def write_all(self, descriptor: int, content: bytes) -> None:
        half = len(content) // 2
        self._step("write")
        files.write_all(descriptor, content[:half])
        self._step("write")
        files.write_all(descriptor, content[half:])

    def ftruncate(self, descriptor: int, size: int) -> None:
        self._step("truncate")
        os.ftruncate(descriptor, size)

    def fdatasync(self, descriptor: int) -> None:
        self._step("sync")
        size = os.fstat(descriptor).st_size
        with open(f"/proc/self/fd/{descriptor}", "rb") as file:
            self._synced[os.fstat(descriptor).st_ino] = file.read(size)

    def link(self, source: str, target: str) -> None:
        self._step("link")
        os.link(source, target)
        inode, name = os.stat(target).st_ino, os.path.basename(target)
        self._changes.append(lambda entries: entries.__setitem__(name, inode))

    def replace(self, source: str, target: str) -> None:
        self._step("rename")
        os.replace(source, target)
        old, new = os.path.basename(source), os.path.basename(target)

        def change(entries: dict[str, int]) -> None:
            if old in entries:
                entries[new] = entries.pop(old)

        self._changes.append(change)

    def remove(self, path: str) -> None:
        self._step("remove")
        os.remove(path)
        name = os.path.basename(path)

        def change(entries: dict[str, int]) -> None:
            entries.pop(name, None)

        self._changes.append(change)

    def sync_folder(self, folder: str) -> None:
        self._step("sync folder")
        assert Path(folder) == self.folder
        for change in self._changes:
            change(self._entries)
        self._changes.clear()

    def _step(self, what: str) -> None:
        if self.dead:
            raise DeadError(errno.EIO, "the process has ended")
        failure = self._before_step(f"{what} a checkpoint")
        if failure == "crash":
            self.dead = True
            raise DeadError(errno.EIO, "the process has ended")
        if failure == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _System:
    """The module `os` as `checkpoint_file` sees it."""

    def __init__(self, disk: Callable[[], CheckpointDisk]) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        if name in ("open", "ftruncate", "fdatasync", "link", "replace", "remove"):
            return getattr(self._disk(), name)
        return getattr(os, name)


@contextmanager
def checkpoint_disk(disk: Callable[[], CheckpointDisk]) -> Iterator[None]:
    """Checkpoints that are written inside go to the disk that the function returns."""
    with mock.patch.multiple(
        checkpoint_file,
        os=_System(disk),
        write_all=lambda descriptor, content: disk().write_all(descriptor, content),
        sync_folder=lambda folder: disk().sync_folder(folder),
    ):
        yield
