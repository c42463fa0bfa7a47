"""The folder of device plugins on the disk: checkpoint and sockets."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import Final

from dray.node.devices.checkpoint import Checkpoint, CheckpointError, Written, decode, encode
from dray.runtime.files import replace_file
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)

FOLDER_MODE: Final = 0o750


def load_checkpoint(path: str) -> Checkpoint:
    """The last checkpoint; empty when there is none or it is damaged, which is logged."""
    try:
        return decode(Path(path).read_bytes())
    except FileNotFoundError:
        return Checkpoint()
    except (CheckpointError, OSError) as error:
        _log.error("device checkpoint not used, beginning without", extra=fields(path=path, error=error))
        return Checkpoint()


def save_checkpoint(path: str, checkpoint: Checkpoint, written: Written | None = None) -> None:
    """Write the checkpoint durably; `written` is as in `encode`."""
    replace_file(path, encode(checkpoint, written))


def make_folder(path: str) -> None:
    """Make the folder for its owner and group alone."""
    os.makedirs(path, exist_ok=True)
    os.chmod(path, FOLDER_MODE)


def remove_sockets(folder: str) -> None:
    """Remove every socket of the folder, so that plugins notice the restart; other files stay."""
    for entry in os.scandir(folder):
        if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
            Path(entry.path).unlink(missing_ok=True)
