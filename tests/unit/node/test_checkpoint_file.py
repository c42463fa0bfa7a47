from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dray.node.checkpoint_file import CheckpointFile, Loaded, load, read_checkpoint

CONTENTS = [b"first", b"a longer second one", b"3", b"fourth", b"", b"sixth"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_without_a_file_there_is_no_content(path: Path) -> None:
    assert read_checkpoint(str(path)) is None


def test_the_content_is_the_last_and_nothing_else(path: Path) -> None:
    file = CheckpointFile(str(path))
    for content in CONTENTS:
        file.replace(content)
        assert read_checkpoint(str(path)) == path.read_bytes() == content
        assert path.stat().st_mode & 0o777 == 0o600


def test_two_files_take_turns_and_the_other_is_hidden(path: Path) -> None:
    file = CheckpointFile(str(path))
    found = []
    for content in CONTENTS:
        file.replace(content)
        found.append(path.stat().st_ino)
    assert found == found[:2] * 3
    assert len(set(found)) == 2
    hidden = [item.name for item in path.parent.iterdir() if item != path]
    assert len(hidden) == 1
    assert hidden[0].startswith(".")


def test_a_new_writer_leaves_the_file_it_finds_alone_until_it_has_replaced_it(path: Path) -> None:
    first = CheckpointFile(str(path))
    first.replace(b"one")
    first.replace(b"two")
    with path.open("rb") as reader:
        second = CheckpointFile(str(path))
        second.replace(b"three")
        assert reader.read() == b"two"
    assert path.read_bytes() == b"three"


def _nothing(path: Path) -> None:
    pass


def _hidden(path: Path) -> Path:
    (found,) = (item for item in path.parent.iterdir() if item != path)
    return found


def _hidden_is_the_checkpoint(path: Path) -> None:
    """As a power cut may leave it: both names are of one file."""
    hidden = _hidden(path)
    hidden.unlink()
    os.link(path, hidden)


def _removed(path: Path) -> None:
    path.unlink()


def _another_writer_left_both_names(path: Path) -> None:
    for turn in "ab":
        name = path.with_name(f".{path.name}.{turn}")
        name.unlink(missing_ok=True)
        os.link(path, name)


DISTURBANCES: list[Callable[[Path], None]] = [
    _nothing,
    _hidden_is_the_checkpoint,
    _removed,
    _another_writer_left_both_names,
    lambda path: _hidden(path).unlink(),
]


@pytest.mark.parametrize("disturb", DISTURBANCES)
@pytest.mark.parametrize("again", [False, True], ids=["same writer", "new writer"])
def test_whatever_names_there_are_the_checkpoint_is_never_written_over(
    path: Path, disturb: Callable[[Path], None], *, again: bool
) -> None:
    file = CheckpointFile(str(path))
    for content in (b"one", b"two", b"three"):
        file.replace(content)
    before = path.open("rb")
    disturb(path)
    if again:
        file = CheckpointFile(str(path))
    with before:
        file.replace(b"four, which is longer")
        assert before.read() == b"three"
    assert path.read_bytes() == b"four, which is longer"
    file.replace(b"five")
    assert path.read_bytes() == b"five"


def test_a_file_that_is_being_read_is_not_written_over(path: Path) -> None:
    file = CheckpointFile(str(path))
    file.replace(b"one")
    file.replace(b"two")
    with path.open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        for content in (b"three", b"four", b"five"):
            file.replace(content)
        assert reader.read() == b"two"
    assert path.read_bytes() == b"five"


@pytest.mark.parametrize("step", ["write", "fdatasync", "link", "replace", "fsync"])
def test_after_a_failure_the_old_or_the_new_is_there_and_the_next_one_succeeds(
    path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = CheckpointFile(str(path))
    for content in (b"one", b"two", b"three"):
        file.replace(content)
    before = path.open("rb")

    def refuse(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patched, before:
        patched.setattr(os, step, refuse)
        # A folder without hard links is no failure: a new file is made each time.
        if step == "link":
            file.replace(b"four")
        else:
            with pytest.raises(OSError, match="no space left"):
                file.replace(b"four")
        assert path.read_bytes() == (b"four" if step in ("link", "fsync") else b"three")
        assert before.read() == b"three"
    file.replace(b"five")
    assert path.read_bytes() == b"five"
    file.replace(b"six")
    assert path.read_bytes() == b"six"


def _number(content: bytes) -> int:
    return int(content)


def _write(path: Path, *contents: bytes) -> None:
    for content in contents:
        CheckpointFile(str(path)).replace(content)


@pytest.mark.behaviour("DP-46", "SP-119", "CL-59")
@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"x"), _removed], ids=["garbage", "removed"])
@pytest.mark.parametrize("same_writer", [False, True])
def test_if_the_newest_cannot_be_read_the_one_before_is(
    path: Path, damage: Callable[[Path], object], *, same_writer: bool
) -> None:
    if same_writer:
        file = CheckpointFile(str(path))
        for content in (b"1", b"2", b"3"):
            file.replace(content)
    else:
        _write(path, b"1", b"2", b"3")
    assert load(str(path), _number) == Loaded(3)
    damage(path)
    loaded = load(str(path), _number)
    assert loaded.state == 2
    assert str(path) in loaded.damage


def test_without_a_readable_checkpoint_there_is_no_state(path: Path) -> None:
    assert load(str(path), _number) == Loaded(None)
    _write(path, b"x", b"y")
    loaded = load(str(path), _number)
    assert loaded.state is None
    assert "invalid literal" in loaded.damage
    # As a crash during the first write may leave it.
    path.unlink()
    assert load(str(path), _number) == Loaded(None)


@pytest.mark.parametrize("step", ["write", "fdatasync", "replace"])
def test_the_last_checkpoint_is_kept_until_there_is_a_new_one(
    path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(path, b"1", b"2")
    path.write_bytes(b"x")

    def crash(*_: object) -> None:
        raise OSError("crash")

    with monkeypatch.context() as patched:
        patched.setattr(os, step, crash)
        with pytest.raises(OSError, match="crash"):
            CheckpointFile(str(path)).replace(b"3")
    # The new one counts as soon as it is complete.
    assert load(str(path), _number).state in ((1,) if step == "write" else (1, 3))
    _write(path, b"4")
    assert load(str(path), _number) == Loaded(4)
