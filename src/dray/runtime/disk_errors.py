"""Explains why a file cannot be written: a full disk, a quota, a read-only mount, a wrong owner or mode."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Less than this is no space: SQLite's shared memory file alone takes 32 KiB.
FREE_BYTES_MIN: Final = 64 * 1024
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class DiskError(Exception):
    """A file of the process cannot be accessed; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class PathFacts:
    """What is known of a file or directory."""

    path: str
    free_bytes: int
    is_read_only_mount: bool
    # Whether this process may write to it.
    is_writable: bool
    owner: int
    mode: int
    user: int


def explain(facts: PathFacts, *, is_full: bool = False) -> str | None:
    """Return the reason why writing fails and what to do; None if the facts show none."""
    if is_full or facts.free_bytes < FREE_BYTES_MIN:
        return (
            f"no space is left on the disk of {facts.path} ({facts.free_bytes // 1024} KiB free). Nothing was changed. "
            f"Free some space, and start again"
        )
    if facts.is_read_only_mount:
        return f"{facts.path} is on a file system that is mounted read-only. Mount it for writing, and start again"
    if facts.is_writable:
        return None
    if facts.owner != facts.user:
        return (
            f"{facts.path} belongs to user {facts.owner}, and this process runs as user {facts.user}, who may not "
            f"write to it. Run as the owner, or change the owner with chown"
        )
    return f"{facts.path} is not writable: its mode is {facts.mode:04o}. Allow its owner to write with chmod u+w"


def explain_failure(paths: Iterable[Path], *, error_number: int | None = None, is_full: bool = False) -> str | None:
    """Return the reason why one of the paths cannot be written; None if none is found."""
    for path in paths:
        if reason := explain(_nearest_facts(path), is_full=is_full or error_number in _FULL):
            return reason
    return None


def is_without_space(directory: Path) -> bool:
    """Return whether the disk of a directory is full."""
    return _free_bytes(directory) < FREE_BYTES_MIN


@contextmanager
def explained_errors(directory: Path) -> Iterator[None]:
    """Raise a `DiskError` for a failure to read or write below a directory."""
    try:
        yield
    except OSError as error:
        file = Path(error.filename) if isinstance(error.filename, str) else directory
        reason = explain_failure((file, directory), error_number=error.errno)
        raise DiskError(f"{file} cannot be accessed: {reason or error.strerror}") from error


def _facts(path: Path) -> PathFacts | None:
    try:
        status, mount, free_bytes = path.stat(), os.statvfs(path), _free_bytes(path)
    except OSError:
        return None
    return PathFacts(
        path=str(path),
        free_bytes=free_bytes,
        is_read_only_mount=bool(mount.f_flag & os.ST_RDONLY),
        is_writable=os.access(path, os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0), effective_ids=True),
        owner=status.st_uid,
        mode=status.st_mode & 0o7777,
        user=os.geteuid(),
    )


def _nearest_facts(path: Path) -> PathFacts:
    """Return the facts of the path, or of its nearest parent that exists and can be reached."""
    while (facts := _facts(path)) is None:
        path = path.parent
    return facts


def _free_bytes(path: Path) -> int:
    mount = os.statvfs(path)
    # Some file systems do not know their size.
    return mount.f_bavail * mount.f_frsize if mount.f_blocks else FREE_BYTES_MIN
