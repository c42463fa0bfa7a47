"""The layout of the SQLite file: schema versions, statements, and rows with checksums. Pure.

The file has one table of events. Its rows in order are the history; the newest row of each key is its current entry.
There is no second copy that could differ. Rows have a checksum because the pages of SQLite have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from zlib import crc32

from dray.store.interface import Entry, Event, EventType, StoreDamagedError

# "Dray" in ASCII; identifies the files of this program.
APPLICATION_ID: Final = 0x44726179

# Each element migrates the file from the version of its index to the next; never changed once released.
MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        # The value comes last so that the other columns are read without its overflow pages.
        """CREATE TABLE log (
            revision INTEGER PRIMARY KEY,
            type INTEGER NOT NULL,
            key TEXT NOT NULL,
            create_revision INTEGER NOT NULL,
            previous_revision INTEGER NOT NULL,
            checksum INTEGER NOT NULL,
            value BLOB NOT NULL
        )""",
        "CREATE TABLE state (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
        "INSERT INTO state (name, value) VALUES ('compacted_revision', 0), ('swept_revision', 0)",
    ),
    # Changes nothing: a mark that objects may have fields of Kubernetes 1.37, which earlier releases would lose; they
    # refuse the file. Set only when a feature with such fields is enabled, so that others can be downgraded.
    (),
)
# The version of files without that mark.
UNMARKED_VERSION: Final = 1

COLUMNS: Final = "revision, type, key, create_revision, previous_revision, checksum, value"
_COLUMN_COUNT: Final = 7
_TYPES: Final = (int, int, str, int, int, int, bytes)
_DELETE, _PUT = 0, 1

# Statements exist for powers of two up to this number of rows, so that each is prepared once; the rest is padding.
# 512 rows of 7 columns stay far below SQLite's 32,766 variables.
BATCH_ROWS_MAX: Final = 512

SELECT_ALL: Final = f"SELECT {COLUMNS} FROM log ORDER BY revision"  # noqa: S608 (constants only)
SELECT_AFTER: Final = f"SELECT {COLUMNS} FROM log WHERE revision > ? ORDER BY revision LIMIT ?"  # noqa: S608
SELECT_CHANGES: Final = "SELECT key, previous_revision FROM log WHERE revision > ? AND revision <= ? ORDER BY revision"
SELECT_STATE: Final = "SELECT name, value FROM state"
UPDATE_STATE: Final = "UPDATE state SET value = ? WHERE name = ?"
# Writes a page without a change.
TOUCH_STATE: Final = "UPDATE state SET value = value"
# A row is no longer needed once a later row of its key is at or before the compacted revision.
DELETE_SUPERSEDED: Final = """DELETE FROM log WHERE revision IN (
    SELECT previous_revision FROM log WHERE revision > ? AND revision <= ? AND previous_revision > 0)"""
DELETE_TOMBSTONES: Final = f"DELETE FROM log WHERE revision > ? AND revision <= ? AND type = {_DELETE}"  # noqa: S608

Row = tuple[Any, ...]


@cache
def insert_statement(rows: int) -> str:
    """Return a statement that inserts up to so many rows, except those with a null revision."""
    row = "(" + ", ".join("?" * _COLUMN_COUNT) + ")"
    values = ", ".join([row] * rows)
    return f"INSERT INTO log ({COLUMNS}) SELECT * FROM (VALUES {values}) WHERE column1 IS NOT NULL"  # noqa: S608


@cache
def select_statement(count: int) -> str:
    """Return a statement that reads the rows of so many revisions."""
    return f"SELECT {COLUMNS} FROM log WHERE revision IN ({', '.join('?' * count)})"  # noqa: S608


def insertion(events: Sequence[Event]) -> tuple[str, list[object]]:
    """Return the statement and variables that append up to `BATCH_ROWS_MAX` events."""
    variables: list[object] = []
    for event in events:
        variables += _row(event)
    rows = 1 << (len(events) - 1).bit_length()
    variables += [None] * (_COLUMN_COUNT * (rows - len(events)))
    return insert_statement(rows), variables


def _row(event: Event) -> Row:
    entry = event.entry
    put = event.type is EventType.PUT
    # The value of a deletion is that of the row of `previous_revision`.
    value = entry.value if put else b""
    previous = event.previous.revision if event.previous is not None else 0
    head = (entry.revision, _PUT if put else _DELETE, entry.key, entry.create_revision, previous)
    return (*head, _checksum(head, value), value)


def _checksum(head: Row, value: bytes) -> int:
    return crc32(value, crc32(repr(head).encode()))


def _check(row: Row) -> None:
    if not all(map(isinstance, row, _TYPES)) or _checksum(row[:5], row[6]) != row[5]:
        raise StoreDamagedError(f"the row of revision {row[0]} does not match its checksum")


def entry_of(row: Row) -> Entry:
    """Return the entry that a row wrote."""
    _check(row)
    return _entry(row)


def _entry(row: Row) -> Entry:
    revision, _, key, create_revision, _, _, value = row
    # Most entries were never updated: both fields then share one integer object.
    return Entry(key, value, revision, revision if create_revision == revision else create_revision)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The state that a file contains."""

    entries: dict[str, Entry]
    revision: int
    compacted: int
    swept: int


def load(rows: Iterable[Row], *, state: dict[str, int], revision_of_empty: int) -> Loaded:
    """Replay all rows; raise for a gap or a row that contradicts an earlier one."""
    compacted, swept = state["compacted_revision"], state["swept_revision"]
    entries: dict[str, Entry] = {}
    last = 0
    floor = max(compacted, revision_of_empty)
    for row in rows:
        _check(row)
        revision, kind, key = row[:3]
        if revision > floor:
            _check_follows(row, entries.get(key), expected_revision=max(last, floor) + 1)
        if kind == _PUT:
            entries[key] = _entry(row)
        else:
            entries.pop(key, None)
        last = revision
    return Loaded(entries, max(last, floor), compacted, swept)


def _check_follows(row: Row, current: Entry | None, *, expected_revision: int) -> None:
    if row[0] != expected_revision:
        raise StoreDamagedError(f"revision {expected_revision} is missing (found {row[0]})")
    if row[4] != (current.revision if current is not None else 0):
        raise StoreDamagedError(f"the row of revision {row[0]} does not follow the one before it for {row[2]}")


def event_of(row: Row, previous: Entry | None) -> Event:
    """Return the event of a row, given the previous entry of its key."""
    _check(row)
    revision, kind, key, create_revision = row[:4]
    if kind == _PUT:
        return Event(EventType.PUT, _entry(row), previous)
    assert previous is not None
    return Event(EventType.DELETE, Entry(key, previous.value, revision, create_revision), previous)
