"""The folder of device plugins: checkpoint and sockets."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import Final

from dray.node.checkpoint_file import Loaded, load
from dray.node.devices.checkpoint import Checkpoint, decode
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)

FOLDER_MODE: Final = 0o750


def load_checkpoint(path: str) -> Loaded[Checkpoint]:
    """Return the newest checkpoint that can be read, with an error in the log if it is not the newest of all."""
    loaded = load(path, decode)
    if loaded.damage:
        instead = "beginning without" if loaded.state is None else "using the one before"
        _log.error("device checkpoint not used, %s", instead, extra=fields(error=loaded.damage))
    return loaded


def make_folder(path: str) -> None:
    """Make the folder for its owner and group alone."""
    os.makedirs(path, exist_ok=True)
    os.chmod(path, FOLDER_MODE)


def remove_sockets(folder: str) -> None:
    """Remove every socket of the folder, so that plugins notice the restart; other files stay."""
    for entry in os.scandir(folder):
        if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
            Path(entry.path).unlink(missing_ok=True)
