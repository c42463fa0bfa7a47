"""Ends the containers of a node agent that has stopped: their shims outlive it, so that it can be restarted."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

# How long containers have after SIGTERM when the cluster is stopped.
GRACE_SECONDS: Final = 3.0
# How long their processes may take to end after SIGKILL.
KILL_SECONDS_MAX: Final = 5.0
_POLL_SECONDS: Final = 0.02


def running_containers(root: Path) -> list[Path]:
    """Return the folders of the running containers below the root directory of a node agent.

    Those of a CRI runtime are not there: they are its own.
    """
    return [path.parent for path in sorted(root.glob("containers/*/*/control")) if _is_read(path)]


def send_signal(folder: Path, name: str) -> None:
    """Let the shim of a container send it a signal; nothing happens if it has ended."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder / "control", os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(descriptor, f"{name}\n".encode())
        finally:
            os.close(descriptor)


async def end_containers(root: Path, grace_seconds: float) -> int:
    """End the containers of a stopped agent, with SIGKILL after the grace period; return how many are left."""
    running = running_containers(root)
    for name, seconds_max in (("SIGTERM", grace_seconds), ("SIGKILL", KILL_SECONDS_MAX)):
        if seconds_max:
            for folder in running:
                send_signal(folder, name)
            running = await _left_after(running, seconds_max)
    return len(running)


async def _left_after(folders: Iterable[Path], seconds_max: float) -> list[Path]:
    """Wait until the shims have ended; return the containers of those that have not."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds_max
    while True:
        folders = [folder for folder in folders if _is_read(folder / "control")]
        if not folders or loop.time() > deadline:
            return folders
        await asyncio.sleep(_POLL_SECONDS)


def _is_read(control: Path) -> bool:
    """Whether a shim has the FIFO open, as it has from its start to its end."""
    try:
        os.close(os.open(control, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True
