"""Why a file cannot be written: each cause has a message of its own, which says what to do."""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path

import pytest

from dray.runtime.disk_errors import DiskError, PathFacts, explain, explain_failure, explained_errors

SOUND = PathFacts(
    path="/data",
    free_bytes=1 << 30,
    is_read_only_mount=False,
    is_writable=True,
    owner=1000,
    mode=0o700,
    user=1000,
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        (
            {"free_bytes": 12 * 1024},
            "no space is left on the disk of /data (12 KiB free). Nothing was changed. "
            "Free some space, and start again",
        ),
        (
            {"is_read_only_mount": True, "is_writable": False},
            "/data is on a file system that is mounted read-only. Mount it for writing, and start again",
        ),
        (
            {"user": 65534, "is_writable": False},
            "/data belongs to user 1000, and this process runs as user 65534, who may not write to it. "
            "Run as the owner, or change the owner with chown",
        ),
        (
            {"mode": 0o500, "is_writable": False},
            "/data is not writable: its mode is 0500. Allow its owner to write with chmod u+w",
        ),
        # Root may write what belongs to others.
        ({"user": 0}, None),
    ],
)
def test_each_cause_has_its_message(changes: dict[str, int], expected: str | None) -> None:
    assert explain(dataclasses.replace(SOUND, **changes)) == expected  # type: ignore[arg-type]


def test_an_error_of_a_full_disk_wins_over_what_is_free(tmp_path: Path) -> None:
    """A quota, or space that is reserved for root, leaves free bytes that nobody can use."""
    for number in (errno.ENOSPC, errno.EDQUOT):
        reason = explain_failure([tmp_path], error_number=number)
        assert reason is not None
        assert reason.startswith(f"no space is left on the disk of {tmp_path} (")
    assert explain_failure([tmp_path], error_number=errno.EIO) is None


def test_a_failure_names_the_file_and_the_cause(tmp_path: Path) -> None:
    file = tmp_path / "missing" / "kubeconfig"
    with (
        pytest.raises(DiskError, match="kubeconfig cannot be accessed: no space is left on the disk"),
        explained_errors(tmp_path),
    ):
        raise OSError(errno.ENOSPC, "No space left on device", str(file))
    with pytest.raises(DiskError, match=f"{file} cannot be accessed: Input/output error"), explained_errors(tmp_path):
        raise OSError(errno.EIO, "Input/output error", str(file))
