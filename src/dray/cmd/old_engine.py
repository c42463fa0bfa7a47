"""Finds what releases with a container engine of their own have left in the agent's folder. Removes nothing."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import Final

from dray.runtime.logs import fields

_log = logging.getLogger(__name__)

# Below the root directory: containers, their state, shared process namespaces, images, and networks of Pods.
_STATE: Final = "containers/runc-state"
_PAUSES: Final = "containers/runc-pauses"
_NAMESPACES: Final = "network/namespaces"
_FOLDERS: Final = ("containers/runc", _STATE, _PAUSES, "images", _NAMESPACES, "network/cni", "network/pods.json")


def removal_command(root: Path) -> str:
    """Return the command that ends containers of the engine, and removes all that it has left; empty if nothing is."""
    found = [name for name in _FOLDERS if (root / name).exists()]
    steps: list[str] = []
    if _STATE in found:
        runc = f"runc --root {_quoted(root / _STATE)}"
        steps.append(f"for id in $({runc} list -q); do {runc} delete --force $id; done")
    if _PAUSES in found:
        # Each file has the ID of a process.
        pids = f"grep -rhoE '\"pid\":[0-9]+' {_quoted(root / _PAUSES)} | cut -d: -f2"
        steps.append(f"{pids} | xargs -r kill -9")
    if _NAMESPACES in found:
        steps.append(f"umount {_quoted(root / _NAMESPACES)}/* 2>/dev/null")
    if found:
        steps.append(f"rm -rf {' '.join(_quoted(root / name) for name in found)}")
    return "; ".join(steps)


def report_leftovers(root: Path) -> None:
    """Log what is left of the engine, with the command that removes it."""
    if command := removal_command(root):
        text = "containers and images of an earlier release's own engine are left and no longer managed; to remove them"
        _log.warning(text, extra=fields(command=command))


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
