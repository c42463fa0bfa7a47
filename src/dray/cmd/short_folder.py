"""Temporary folders for sockets, whose paths are short."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

# With a longer path there is no space for a driver's name in the path of its socket, which is 107 bytes at most.
FOLDER_LENGTH_MAX: Final = 24


def make_folder() -> Path:
    """Create a folder whose path is short enough for sockets."""
    base = tempfile.gettempdir()
    if len(base) > FOLDER_LENGTH_MAX and os.access("/tmp", os.W_OK):  # noqa: S108 - only the parent of a private folder
        base = "/tmp"  # noqa: S108
    return Path(tempfile.mkdtemp(prefix="dray-", dir=base))


def remove_folder(folder: Path) -> None:
    """Remove the folder as far as possible."""
    shutil.rmtree(folder, ignore_errors=True)
