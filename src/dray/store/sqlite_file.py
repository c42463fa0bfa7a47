"""The database file: locked, created atomically, verified and migrated when opened.

An existing file is never emptied or replaced: one that cannot be read, or that misses acknowledged writes, is refused
with a message. It is verified by a connection that cannot write, because SQLite copies the sound part of a damaged
write-ahead log to the database and deletes the log when the last connection that can write is closed.
"""

from __future__ import annotations

import fcntl
import logging
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import IO

from dray.runtime.disk_errors import explain_failure, is_without_space
from dray.runtime.files import sync_folder
from dray.store.interface import (
    NewerStoreError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreLockedError,
    StoreUnavailableError,
    WritesLostError,
)
from dray.store.revision_mark import mark_path, read_mark
from dray.store.sqlite_rows import (
    APPLICATION_ID,
    DELETE_SUPERSEDED,
    DELETE_TOMBSTONES,
    MIGRATIONS,
    SELECT_ALL,
    SELECT_STATE,
    UPDATE_STATE,
    Loaded,
    load,
)
from dray.store.state import REVISION_OF_EMPTY

_log = logging.getLogger(__name__)

# Pages in the write-ahead log before a checkpoint: 16 MB, so that checkpoints are rare.
CHECKPOINT_PAGES = 4096
# The log grows beyond that while a long read runs; a checkpoint then truncates it to this size.
LOG_BYTES_KEPT = 32 * 1024 * 1024
STATEMENTS_CACHED = 128
# Failures of the disk or of permissions, and among them those that mean that the file is damaged.
_UNAVAILABLE_CODES = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
)
_DAMAGE_CODES = (sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS)
# Size of the page cache. All current entries are in memory already, and writes append to the file.
CACHE_KIBIBYTES = 512
# Free pages that the file keeps: 4 MiB, and a quarter of the pages in use. More are returned to the disk, in steps of
# 2 MiB so that writes do not wait.
FREE_PAGES_KEPT = 1024
FREE_PAGES_SHARE = 4
SHRINK_PAGES_MAX = 512
_AUTO_VACUUM_INCREMENTAL = 2
# Revisions that are never assigned after writes were lost, besides the acknowledged ones: more than any store has
# assigned between the last sync of the mark and the end of the machine.
REVISIONS_SKIPPED = 1_000_000


def lock(path: Path) -> IO[bytes]:
    """Take the lock file; it is held until the result is closed or the process ends."""
    # Not the database itself: closing any descriptor of that file would release SQLite's own locks.
    try:
        held = path.with_name(path.name + ".lock").open("ab")
    except OSError as error:
        raise _unavailable(path, "locked", error, error_number=error.errno) from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        held.close()
        raise StoreLockedError(f"{path} is in use by another process; stop that one or use another file") from error
    return held


def open_database(
    path: Path, migrations: Sequence[Sequence[str]] = MIGRATIONS, *, version: int | None = None
) -> tuple[sqlite3.Connection, Loaded]:
    """Open or create the file, migrated at least to a version, and read its state; the caller holds the lock."""
    wanted = migrations if version is None else migrations[:version]
    if not path.exists():
        _refuse_orphans(path)
        _create(path, wanted)
    elif path.stat().st_size == 0:
        raise _damaged(path, "the file is empty")
    loaded = _verify(path, migrations)
    _check_mark(path, loaded.revision)
    connection = None
    try:
        connection = connect(path)
        _use_write_ahead_log(connection)
        if migrate(connection, wanted):
            loaded = _load(connection)
        _enable_shrinking(connection, path)
    except (sqlite3.DatabaseError, StoreDamagedError, KeyError) as error:
        if connection is not None:
            connection.close()
        raise _refusal(path, error) from error
    return connection, loaded


def lost_revisions(path: Path) -> range:
    """Verify the file, without a change; return the acknowledged revisions that it misses."""
    return range(_verify(path, MIGRATIONS).revision + 1, read_mark(path) + 1)


def accept_lost_writes(path: Path, lost: range) -> int:
    """Go on without the writes that the database misses; return the revision at which it goes on.

    All revisions up to that one are compacted: none is assigned again, and clients that have observed one list again.
    The caller holds the lock.
    """
    # The mark may be some seconds old, if the machine failed.
    compacted = lost[-1] + REVISIONS_SKIPPED
    try:
        with closing(connect(path)) as connection:
            sweep(connection, 0, compacted, compacted=compacted)
    except sqlite3.DatabaseError as error:
        raise _refusal(path, error) from error
    return compacted


def sweep(connection: sqlite3.Connection, after: int, until: int, *, compacted: int) -> None:
    """Delete the rows that a compaction to `compacted` makes superfluous, in a range of revisions."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(DELETE_SUPERSEDED, (after, until))
    connection.execute(DELETE_TOMBSTONES, (after, until))
    connection.execute(UPDATE_STATE, (compacted, "compacted_revision"))
    connection.execute(UPDATE_STATE, (until, "swept_revision"))
    connection.execute("COMMIT")


def _verify(path: Path, migrations: Sequence[Sequence[str]]) -> Loaded:
    """Read the whole file without changing it; raise if it is damaged."""
    try:
        with closing(connect(path, read_only=True)) as connection:
            _check_identity(connection, newest=len(migrations))
            _check_pages(connection)
            return _load(connection)
    except (sqlite3.DatabaseError, StoreDamagedError, KeyError) as error:
        raise _refusal(path, error) from error


def _check_mark(path: Path, revision: int) -> None:
    acknowledged = read_mark(path)
    if acknowledged <= revision:
        return
    log = log_path(path)
    fault = "is damaged or not the one it had" if log.exists() and log.stat().st_size else "is missing"
    raise WritesLostError(
        f"{path} misses acknowledged writes: revisions {revision + 1} to {acknowledged} are lost. It ends at revision "
        f"{revision}; its write-ahead log {log.name} {fault}, or the database was replaced by an older one. "
        f"Nothing was changed. Put the files back or restore a backup. To go on without these writes, run "
        f'"dray recover --data-dir={path.parent} --accept-loss"'
    )


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Return a connection without implicit transactions, for use by one thread at a time."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=STATEMENTS_CACHED,
    )
    try:
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIBIBYTES}")
        if not read_only:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES_KEPT}")
    except sqlite3.Error:
        # The file is opened only now, and may not be a database.
        connection.close()
        raise
    return connection


def connect_reader(path: Path) -> sqlite3.Connection:
    """Return a connection that reads beside the writer's.

    It can write files but no rows: after a failed write, whoever comes next has to build the index of the log again.
    """
    connection = connect(path)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch a file to the write-ahead log, once and for all; raise if that fails, which SQLite does not."""
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        failure = sqlite3.OperationalError("the write-ahead log cannot be used")
        failure.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise failure


def migrate(connection: sqlite3.Connection, migrations: Sequence[Sequence[str]]) -> bool:
    """Migrate the file to the newest version, each step in its own transaction; return whether there were any."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    for number in range(version, len(migrations)):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in migrations[number]:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number + 1}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
    return bool(version < len(migrations))


def _enable_shrinking(connection: sqlite3.Connection, path: Path) -> None:
    """Rewrite a file of an older version once, so that it can return free pages to the disk."""
    (mode,) = connection.execute("PRAGMA auto_vacuum").fetchone()
    if mode == _AUTO_VACUUM_INCREMENTAL:
        return
    _log.info("rewriting %s once, so that it can shrink", path)
    try:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("VACUUM")
    except sqlite3.OperationalError as error:
        # It takes space for a copy. The store works without; the next start tries again.
        _log.warning("%s cannot be rewritten, and does not shrink: %s", path, error)


def shrink(connection: sqlite3.Connection) -> bool:
    """Return some free pages to the disk if there are too many; return whether another step is due."""
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    (total,) = connection.execute("PRAGMA page_count").fetchone()
    surplus = surplus_pages(free, total)
    if not surplus:
        return False
    # Not `execute`, which runs the statement for its first page only.
    connection.executescript(f"PRAGMA incremental_vacuum({min(surplus, SHRINK_PAGES_MAX)})")
    if surplus > SHRINK_PAGES_MAX:
        return True
    # The file itself is truncated by a checkpoint.
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    return False


def surplus_pages(free: int, total: int) -> int:
    """Return the number of free pages above those that are kept for the next writes."""
    kept = FREE_PAGES_KEPT + (total - free) // FREE_PAGES_SHARE
    return max(0, free - kept)


def _create(path: Path, migrations: Sequence[Sequence[str]]) -> None:
    # Created under another name and renamed, so that a file with the right name is always complete.
    unfinished = path.with_name(path.name + ".new")
    try:
        unfinished.unlink(missing_ok=True)
        # It contains Secrets. SQLite gives the same mode to the write-ahead log.
        unfinished.touch(mode=0o600)
        connection = sqlite3.connect(unfinished, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            # Before anything is written.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            migrate(connection, migrations)
            _use_write_ahead_log(connection)
        finally:
            connection.close()
        unfinished.rename(path)
        sync_folder(str(path.parent))
    except OSError as error:
        raise _unavailable(path, "created", error, error_number=error.errno) from error
    except sqlite3.OperationalError as error:
        raise _unavailable(path, "created", error) from error


def log_path(path: Path) -> Path:
    """Return the path of the database's write-ahead log."""
    return path.with_name(path.name + "-wal")


def inodes(path: Path) -> dict[Path, int]:
    """Return what identifies the database and its log, both open, for `find_problem`."""
    return {file: file.stat().st_ino for file in (path, log_path(path))}


def find_problem(known: Mapping[Path, int]) -> StoreUnavailableError | None:
    """Return the error of a full disk, or of a file that was deleted or replaced while it is open; None if all is well.

    The content of such a file is lost when the process ends.
    """
    for file, inode in known.items():
        try:
            found = file.stat().st_ino
            if is_without_space(file.parent):
                return StoreFullError(f"no space is left on the disk of {file.parent}")
        except OSError as error:
            return StoreUnavailableError(f"{file} was deleted while the server runs: {error.strerror}")
        if found != inode:
            return StoreUnavailableError(f"{file} was replaced while the server runs")
    return None


def _refuse_orphans(path: Path) -> None:
    log = log_path(path)
    if log.exists() and log.stat().st_size:
        raise _damaged(path, f"the database is gone but its write-ahead log {log.name} is there")
    if read_mark(path) > REVISION_OF_EMPTY:
        raise _damaged(path, f"the database is gone but {mark_path(path).name}, the mark of its revision, is there")


def _check_identity(connection: sqlite3.Connection, *, newest: int) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise StoreDamagedError(f"it is not a store's database (application id {application:#x})")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > newest:
        raise NewerStoreError(f"schema version {version}; this release knows 1 to {newest}")
    if version < 1:
        raise StoreDamagedError(f"it has schema version {version}; this release knows 1 to {newest}")


def _check_pages(connection: sqlite3.Connection) -> None:
    # Takes 50 ms for 60,000 rows of 1 KB. The checksums of rows are verified while loading.
    problems = [text for (text,) in connection.execute("PRAGMA quick_check(1)")]
    if problems != ["ok"]:
        raise StoreDamagedError(problems[0])


def _load(connection: sqlite3.Connection) -> Loaded:
    state = dict(connection.execute(SELECT_STATE))
    return load(connection.execute(SELECT_ALL), state=state, revision_of_empty=REVISION_OF_EMPTY)


def _refusal(path: Path, error: Exception) -> StoreError:
    if isinstance(error, NewerStoreError):
        return NewerStoreError(
            f"{path} was written by a newer release of Dray, and this one would lose what only the newer one knows "
            f"({error}). Nothing was changed. Use the newer release, or restore a backup from before the upgrade"
        )
    # SQLite reports unreadable text and missing tables as operational errors; they count as damage.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if code not in _DAMAGE_CODES and code & 0xFF in _UNAVAILABLE_CODES:
        return _unavailable(path, "opened", error)
    return _damaged(path, str(error))


def _unavailable(path: Path, step: str, error: Exception, *, error_number: int | None = None) -> StoreUnavailableError:
    """Return the error of a file that may be sound: it never advises to replace it."""
    files = (path.parent, path, log_path(path), mark_path(path))
    reason = explain_failure(files, error_number=error_number, is_full=is_full(error))
    return StoreUnavailableError(f"{path} cannot be {step}: {reason or error}")


def is_full(error: Exception) -> bool:
    """Return whether SQLite found no space for a write."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL


def _damaged(path: Path, what: str) -> StoreDamagedError:
    return StoreDamagedError(
        f"{path} cannot be trusted: {what}. Nothing was changed. Restore the file from a backup, or move it and the "
        f'files "{path.name}-wal" and "{path.name}-revision" away to start with an empty store'
    )
