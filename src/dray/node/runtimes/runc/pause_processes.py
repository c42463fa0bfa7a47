"""The pause processes of Pods whose containers share their process namespace."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Final

import orjson

from dray.node.runtimes.runtime import RuntimeFailure
from dray.node.untrusted_files import write_private

PROGRAM: Final = Path(__file__).parent.parent / "shim" / "pause.py"
START_SECONDS_MAX: Final = 30.0
# The position of the start time after the name of the program, which may contain spaces, in /proc/<pid>/stat.
_START_TIME: Final = 19


class PauseProcesses:
    """One process for each Pod, which outlives the agent; a file in the folder has its ID and its start time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def ensure(self, pod_uid: str) -> None:
        """Start the Pod's process unless it runs."""
        if self._find(pod_uid) is not None:
            return
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(PROGRAM),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                out, error = await process.communicate()
        except TimeoutError as late:
            raise RuntimeFailure("the pause process did not start") from late
        if process.returncode != 0:
            raise RuntimeFailure(f"the pause process did not start: {error.decode(errors='replace').strip()[-500:]}")
        pid = int(out)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self._folder / pod_uid, orjson.dumps({"pid": pid, "startTime": _start_time(pid)}))

    def namespace(self, pod_uid: str) -> str:
        """Return the path of the Pod's process namespace; raises `RuntimeFailure`."""
        pid = self._find(pod_uid)
        if pid is None:
            raise RuntimeFailure("the pause process of the Pod is gone")
        return f"/proc/{pid}/ns/pid"

    def remove(self, pod_uid: str) -> None:
        """Kill the Pod's process, and with it the rest of its namespace."""
        pid = self._find(pod_uid)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        (self._folder / pod_uid).unlink(missing_ok=True)

    def _find(self, pod_uid: str) -> int | None:
        """Return the ID of the Pod's process; None if it is gone, even if another process has its ID."""
        try:
            content = orjson.loads((self._folder / pod_uid).read_bytes())
            pid = int(content["pid"])
            return pid if _start_time(pid) == content["startTime"] else None
        except (OSError, ValueError, KeyError):
            return None


def _start_time(pid: int) -> str:
    return (
        Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[_START_TIME]
    )
