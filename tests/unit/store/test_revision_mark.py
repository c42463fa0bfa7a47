"""The revision mark: its content, what counts as damage, and that it is never ahead of what is committed."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dray.store.interface import StoreDamagedError, StoreUnavailableError
from dray.store.revision_mark import RevisionMark, decode_mark, encode_mark, mark_path, read_mark
from dray.store.sqlite import SQLiteStore

KEY = "/registry/core/pods/ns/a"


def test_the_content_is_readable_and_always_as_long() -> None:
    assert encode_mark(420) == b"acknowledged revision 00000000000000000420, checksum f1ba887d\n"
    assert {len(encode_mark(revision)) for revision in (1, 420, 2**63 - 1)} == {len(encode_mark(0))}
    assert decode_mark(encode_mark(2**63 - 1)) == 2**63 - 1


def test_every_flipped_byte_is_damage() -> None:
    content = encode_mark(420)
    for place in range(len(content)):
        flipped = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        assert decode_mark(flipped) is None
    assert decode_mark(b"") is None
    assert decode_mark(content + b"x") is None


def test_a_missing_mark_and_a_damaged_one_are_unknown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    database = tmp_path / "state.db"
    with caplog.at_level(logging.WARNING):
        assert read_mark(database) == 0
        assert not caplog.records
        mark_path(database).write_bytes(b"\0" * 64)
        assert read_mark(database) == 0
    assert "is damaged" in caplog.text


def test_a_mark_is_replaced_when_it_is_opened(tmp_path: Path) -> None:
    database = tmp_path / "state.db"
    mark_path(database).write_bytes(b"longer than a mark " * 100)
    mark = RevisionMark(database, 7)
    assert read_mark(database) == 7
    mark.write(8)
    assert read_mark(database) == 8
    mark.close()


def test_a_mark_that_was_deleted_can_still_be_written(tmp_path: Path) -> None:
    mark = RevisionMark(tmp_path / "state.db", 1)
    mark_path(tmp_path / "state.db").unlink()
    mark.write(2)
    mark.sync()
    mark.close()
    assert read_mark(tmp_path / "state.db") == 0


_WRITE_AND_DIE = """
import os, pathlib, signal, sys
from dray.store.revision_mark import RevisionMark
RevisionMark(pathlib.Path(sys.argv[1]), 1).write(2)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_mark_survives_the_process_that_wrote_it(tmp_path: Path) -> None:
    database = tmp_path / "state.db"
    ended = subprocess.run([sys.executable, "-c", _WRITE_AND_DIE, str(database)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert read_mark(database) == 2


def test_a_directory_that_is_gone_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="No such file"):
        RevisionMark(tmp_path / "gone" / "state.db", 1)


async def test_the_mark_is_written_before_a_write_is_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = await SQLiteStore.open(path)
    assert read_mark(path) == 1
    for value in range(3):
        entry = await store.get(KEY)
        written = (
            await store.create(KEY, b"")
            if entry is None
            else await store.update(KEY, b"%d" % value, expected_revision=entry.revision)
        )
        assert read_mark(path) == written.revision
    await store.close()
    assert read_mark(path) == written.revision


async def test_a_mark_without_its_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = await SQLiteStore.open(path)
    await store.create(KEY, b"")
    await store.close()
    path.unlink()
    with pytest.raises(StoreDamagedError, match=r"the database is gone but state\.db-revision"):
        await SQLiteStore.open(path)
    assert not path.exists()


async def test_a_database_without_a_mark_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = await SQLiteStore.open(path)
    entry = await store.create(KEY, b"")
    await store.close()
    mark_path(path).unlink()
    store = await SQLiteStore.open(path)
    assert await store.revision() == entry.revision == read_mark(path)
    await store.close()
