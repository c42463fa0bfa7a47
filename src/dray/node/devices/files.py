"""The folder of device plugins: checkpoint and sockets."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import Final

from dray.node.checkpoint_file import read_checkpoint
from dray.node.devices.checkpoint import Checkpoint, CheckpointError, decode
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)

FOLDER_MODE: Final = 0o750


def load_checkpoint(path: str) -> Checkpoint | None:
    """Return the last checkpoint; None if there is none or, with an error in the log, if it is damaged."""
    try:
        content = read_checkpoint(path)
        return None if content is None else decode(content)
    except (CheckpointError, OSError) as error:
        _log.error("device checkpoint not used, beginning without", extra=fields(path=path, error=error))
        return None


def make_folder(path: str) -> None:
    """Make the folder for its owner and group alone."""
    os.makedirs(path, exist_ok=True)
    os.chmod(path, FOLDER_MODE)


def remove_sockets(folder: str) -> None:
    """Remove every socket of the folder, so that plugins notice the restart; other files stay."""
    for entry in os.scandir(folder):
        if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
            Path(entry.path).unlink(missing_ok=True)
