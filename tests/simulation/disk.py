"""A disk under SQLite that records every write and can lose power at any of them.

A layer (a VFS) between SQLite and the operating system sees each write, truncation, sync and deletion of the files of
a directory. A crash of the process keeps all of them up to one; a power cut keeps what was synced and any part of the
rest, in sectors. It is the default of the whole process while it is installed; other files pass through.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import POINTER, c_char_p, c_int, c_int64, c_void_p
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECTOR_BYTES = 512
_OK, _IOERR, _FULL = 0, 10, 13
_IOERR_WRITE, _IOERR_FSYNC = _IOERR | 3 << 8, _IOERR | 4 << 8
# Written anew at every start, and never read after a crash.
_VOLATILE = ("-shm", ".lock")

_Open = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)
_Delete = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_int)
_Close = ctypes.CFUNCTYPE(c_int, c_void_p)
_Write = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_Truncate = ctypes.CFUNCTYPE(c_int, c_void_p, c_int64)
_Sync = ctypes.CFUNCTYPE(c_int, c_void_p, c_int)

_VFS_METHODS = [
    "xOpen",
    "xDelete",
    "xAccess",
    "xFullPathname",
    "xDlOpen",
    "xDlError",
    "xDlSym",
    "xDlClose",
    "xRandomness",
    "xSleep",
    "xCurrentTime",
    "xGetLastError",
    "xCurrentTimeInt64",
    "xSetSystemCall",
    "xGetSystemCall",
    "xNextSystemCall",
]
_FILE_METHODS = [
    "xClose",
    "xRead",
    "xWrite",
    "xTruncate",
    "xSync",
    "xFileSize",
    "xLock",
    "xUnlock",
    "xCheckReservedLock",
    "xFileControl",
    "xSectorSize",
    "xDeviceCharacteristics",
    "xShmMap",
    "xShmLock",
    "xShmBarrier",
    "xShmUnmap",
    "xFetch",
    "xUnfetch",
]


class _VFS(ctypes.Structure):
    """`sqlite3_vfs`, version 3."""

    _fields_ = [
        ("iVersion", c_int),
        ("szOsFile", c_int),
        ("mxPathname", c_int),
        ("pNext", c_void_p),
        ("zName", c_char_p),
        ("pAppData", c_void_p),
        *((name, c_void_p) for name in _VFS_METHODS),
    ]


class _FileMethods(ctypes.Structure):
    """`sqlite3_io_methods`, version 3."""

    _fields_ = [("iVersion", c_int), *((name, c_void_p) for name in _FILE_METHODS)]


class _OpenFile(ctypes.Structure):
    """`sqlite3_file`; what follows belongs to the VFS of the operating system."""

    _fields_ = [("methods", POINTER(_FileMethods))]


@dataclass
class _Content:
    """What the disk has of a file for certain, and the changes since, each an offset with bytes or a new length."""

    durable: bytearray
    unsynced: list[tuple[int, bytes | None]] = field(default_factory=list)

    def sync(self) -> None:
        for change in self.unsynced:
            _apply(self.durable, *change)
        self.unsynced.clear()

    def after_power_cut(self, rng: random.Random) -> bytes:
        content = bytearray(self.durable)
        for offset, data in self.unsynced:
            if data is None or (whole := rng.random()) < 0.4:
                _apply(content, offset, data)
            elif whole < 0.7:
                for start in range(0, len(data), SECTOR_BYTES):
                    if rng.random() < 0.5:
                        _apply(content, offset + start, data[start : start + SECTOR_BYTES])
        return bytes(content)


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
        return
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


class Disk:
    """The files of one directory. `before_change` is asked before each change and may name a failure.

    It returns "" to go on, "crash" to end the process there, "full" or "error" to fail the call.
    """

    def __init__(self, directory: Path, before_change: Callable[[str, str], str]) -> None:
        self.directory = directory
        self.changes = 0
        # Nothing of the process reaches the disk any more.
        self.dead = False
        self._before_change = before_change
        # By inode, because files are renamed.
        self._contents: dict[int, _Content] = {}

    def after_crash(self, target: Path, rng: random.Random, *, power_cut: bool) -> None:
        """Write the files as the next process finds them to a directory."""
        for path in sorted(self.directory.iterdir()):
            if path.name.endswith(_VOLATILE):
                continue
            content = self._contents.get(path.stat().st_ino)
            if power_cut and content is not None:
                (target / path.name).write_bytes(content.after_power_cut(rng))
            else:
                shutil.copyfile(path, target / path.name)

    def content(self, path: str) -> _Content:
        return self._contents.setdefault(os.stat(path).st_ino, _Content(bytearray(Path(path).read_bytes())))

    def forget(self, path: str) -> None:
        """Drop the content of a file that is deleted: its inode is used again."""
        if os.path.exists(path):
            self._contents.pop(os.stat(path).st_ino, None)

    def refuses(self, what: str, path: str) -> int:
        """Return the error of a change; 0 lets it happen."""
        if self.dead:
            return _IOERR
        self.changes += 1
        failure = self._before_change(what, path)
        if failure == "crash":
            self.dead = True
            return _IOERR
        if failure:
            return _FULL if failure == "full" else _IOERR_FSYNC if what == "sync" else _IOERR_WRITE
        return _OK


class _Layer:
    """The VFS, registered once and for all; it serves the disks of `disks`."""

    def __init__(self) -> None:
        self.disks: dict[Path, Disk] = {}
        self._library: Any = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
        self._library.sqlite3_vfs_find.restype = POINTER(_VFS)
        self._library.sqlite3_vfs_register.argtypes = [POINTER(_VFS), c_int]
        self._below = self._library.sqlite3_vfs_find(None)
        below = self._below.contents
        self._open_below, self._delete_below = _Open(below.xOpen), _Delete(below.xDelete)
        self._vfs = _VFS.from_buffer_copy(below)
        # Callbacks live as long as the layer.
        self._callbacks = [_Open(self._open), _Delete(self._delete), _Close(self._close)]
        self._callbacks += [_Write(self._write), _Truncate(self._truncate), _Sync(self._sync)]
        pointers = [ctypes.cast(callback, c_void_p).value for callback in self._callbacks]
        self._vfs.zName, self._vfs.pNext = b"simulated-disk", None
        self._vfs.xOpen, self._vfs.xDelete, self._close_pointer, *self._change_pointers = pointers
        # The methods of each open file as the layer below has them, the layer's own, and which file it is.
        self._tables: dict[int, tuple[_FileMethods, _FileMethods]] = {}
        self._files: dict[int, tuple[Disk, str, _Content, _FileMethods]] = {}

    def install(self) -> None:
        self._library.sqlite3_vfs_register(ctypes.byref(self._vfs), 1)

    def remove(self) -> None:
        self._library.sqlite3_vfs_unregister(ctypes.byref(self._vfs))
        self._library.sqlite3_vfs_register(self._below, 1)

    def _open(self, _vfs: int, name: int | None, file: int, flags: int, out_flags: int) -> int:
        # The name has parameters of the URI behind its end, so that the pointer is passed on as it is.
        code: int = self._open_below(ctypes.cast(self._below, c_void_p), name, file, flags, out_flags)
        path = ctypes.cast(name, c_char_p).value.decode() if name else ""  # type: ignore[union-attr]
        disk = self.disks.get(Path(path).parent) if path else None
        if code == _OK and disk is not None:
            opened = _OpenFile.from_address(file)
            below, own = self._table(opened)
            self._files[file] = (disk, path, disk.content(path), below)
            opened.methods = ctypes.pointer(own)
        return code

    def _table(self, opened: _OpenFile) -> tuple[_FileMethods, _FileMethods]:
        address = ctypes.addressof(opened.methods.contents)
        if address not in self._tables:
            below = opened.methods.contents
            own = _FileMethods.from_buffer_copy(below)
            own.xClose = self._close_pointer
            own.xWrite, own.xTruncate, own.xSync = self._change_pointers
            # Memory-mapped reading stays below; it is off by default.
            self._tables[address] = (below, own)
        return self._tables[address]

    def _close(self, file: int) -> int:
        *_, below = self._files.pop(file)
        return int(_Close(below.xClose)(file))

    def _delete(self, _vfs: int, name: bytes, sync_directory: int) -> int:
        path = name.decode()
        disk = self.disks.get(Path(path).parent)
        if disk is not None:
            if code := disk.refuses("delete", path):
                return code
            disk.forget(path)
        return int(self._delete_below(ctypes.cast(self._below, c_void_p), name, sync_directory))

    def _write(self, file: int, data: int, amount: int, offset: int) -> int:
        disk, path, content, below = self._files[file]
        if code := disk.refuses("write", path):
            return code
        content.unsynced.append((offset, ctypes.string_at(data, amount)))
        return int(_Write(below.xWrite)(file, data, amount, offset))

    def _truncate(self, file: int, size: int) -> int:
        disk, path, content, below = self._files[file]
        if code := disk.refuses("truncate", path):
            return code
        content.unsynced.append((size, None))
        return int(_Truncate(below.xTruncate)(file, size))

    def _sync(self, file: int, _flags: int) -> int:
        disk, path, content, _ = self._files[file]
        if code := disk.refuses("sync", path):
            return code
        content.sync()
        return _OK


_layers: list[_Layer] = []


@contextmanager
def simulated_disks() -> Iterator[dict[Path, Disk]]:
    """Serve the disks of the result, which are added by directory, until the end of a `with` block."""
    if not _layers:
        _layers.append(_Layer())
    layer = _layers[0]
    layer.install()
    try:
        yield layer.disks
    finally:
        layer.remove()
        layer.disks.clear()
