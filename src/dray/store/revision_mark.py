"""The revision mark: a small file next to the database with the newest acknowledged revision.

SQLite ignores a write-ahead log that is missing, and everything behind a damaged part of it, without an error: writes
that were acknowledged would be gone, and their revisions would be assigned again. The mark is written after a commit
and before its writes are acknowledged. A database that ends before its mark has lost writes.

Writing the mark does not wait for the disk, because each commit does already: the file is mapped into memory, as the
index of the write-ahead log is. A write to the file would wait for the journal of the file system while another file is
synced. The mark survives the end of the process, not that of the machine, after which it may be as old as its last
`sync`. It is never ahead of the database.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
from pathlib import Path
from typing import Final
from zlib import crc32

from dray.runtime.disk_errors import explain_failure
from dray.runtime.files import sync_folder
from dray.store.interface import StoreUnavailableError

_log = logging.getLogger(__name__)

_TEXT: Final = re.compile(rb"acknowledged revision (\d{20}), checksum ([0-9a-f]{8})\n")


def mark_path(database: Path) -> Path:
    """Return the path of a database's mark."""
    return database.with_name(database.name + "-revision")


def encode_mark(revision: int) -> bytes:
    """Return the content of the file, which is readable and always of the same length."""
    number = b"%020d" % revision
    return b"acknowledged revision %b, checksum %08x\n" % (number, crc32(number))


def decode_mark(content: bytes) -> int | None:
    """Return the revision of a file's content; None if it is damaged."""
    found = _TEXT.fullmatch(content)
    if found is None or int(found[2], 16) != crc32(found[1]):
        return None
    return int(found[1])


def read_mark(database: Path) -> int:
    """Return the newest acknowledged revision; 0 if it is not known."""
    path = mark_path(database)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StoreUnavailableError(f"{path} cannot be read: {error.strerror}") from error
    revision = decode_mark(content)
    if revision is None:
        _log.warning("%s is damaged: whether %s misses acknowledged writes is not known", path, database.name)
        return 0
    return revision


class RevisionMark:
    """The mark of an open database."""

    def __init__(self, database: Path, revision: int) -> None:
        """Create or replace the mark; it is durable when this returns."""
        self._path = mark_path(database)
        self._revision = self._synced = revision
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                content = encode_mark(revision)
                os.pwrite(self._file, content, 0)
                os.ftruncate(self._file, len(content))
                os.fsync(self._file)
                sync_folder(str(self._path.parent))
                self._content = mmap.mmap(self._file, len(content))
            except BaseException:
                os.close(self._file)
                raise
        except OSError as error:
            reason = explain_failure((self._path, self._path.parent), error_number=error.errno)
            raise StoreUnavailableError(f"{self._path} cannot be written: {reason or error.strerror}") from error

    def write(self, revision: int) -> None:
        """Record a committed revision; it overwrites the same bytes, so that it needs no space on the disk."""
        self._revision = revision
        self._content[:] = encode_mark(revision)

    def sync(self) -> None:
        """Make the recorded revision durable. May be called by another thread than `write`."""
        revision = self._revision
        if revision != self._synced:
            os.fdatasync(self._file)
            self._synced = revision

    def close(self) -> None:
        """Sync and close the file."""
        try:
            self.sync()
        except OSError as error:
            _log.warning("%s cannot be synced: %s", self._path, error.strerror)
        self._content.close()
        os.close(self._file)
