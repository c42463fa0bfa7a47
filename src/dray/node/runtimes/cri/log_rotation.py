"""Rotates the log files of a CRI runtime, which reopens a log on request."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Final

# kubelet's containerLogMaxSize and containerLogMaxFiles.
LOG_BYTES_MAX: Final = 10 * 1024 * 1024
LOG_FILES_MAX: Final = 5


def set_aside(path: Path, bytes_max: int = LOG_BYTES_MAX) -> Path | None:
    """Rename a log that is too large; return its new name, which sorts after older ones, or None."""
    try:
        if path.stat().st_size < bytes_max:
            return None
        aside = path.with_name(f"{path.name}.{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.{time.time_ns()}")
        path.rename(aside)
    except OSError:
        # The log was removed with its container.
        return None
    return aside


def put_back(aside: Path, path: Path) -> None:
    """Undo the renaming: the runtime still writes to the file."""
    with contextlib.suppress(OSError):
        aside.rename(path)


def remove_oldest(path: Path, files_max: int = LOG_FILES_MAX) -> None:
    """Remove the oldest files of a log; `files_max` includes the current one."""
    older = sorted(path.parent.glob(f"{path.name}.*"))
    for each in older[: max(len(older) - (files_max - 1), 0)]:
        with contextlib.suppress(OSError):
            os.unlink(each)
