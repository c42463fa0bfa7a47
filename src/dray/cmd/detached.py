"""Starts `dray up` in the background, and waits until it serves."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

READY_SECONDS_MAX: Final = 120.0
END_SECONDS_MAX: Final = 10.0
LOG: Final = "up.log"
_POLL_SECONDS: Final = 0.05
_SHOWN_BYTES: Final = 2000


class DetachError(RuntimeError):
    """The process ended, or did not serve in time."""


def start_detached(arguments: Sequence[str], data_dir: Path) -> tuple[str, Path]:
    """Start `dray` with the arguments in a session of its own; return its line `ready …`, and its log."""
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = data_dir / LOG
    with log.open("w") as stream:
        process = subprocess.Popen(  # noqa: S603 - this program, with the flags of its user
            [sys.executable, "-m", "dray", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        return _ready_line(process, log), log
    except BaseException:
        # Nobody else knows of it yet.
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS_MAX)
        raise


def _ready_line(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + READY_SECONDS_MAX
    while True:
        text = log.read_text(errors="replace")
        ready = next((line for line in text.splitlines() if line.startswith("ready ")), "")
        if ready:
            return ready
        if process.poll() is not None:
            problem = text[-_SHOWN_BYTES:].strip().removeprefix("dray up: ")
            raise DetachError(problem or f"it ended with exit code {process.returncode}")
        if time.monotonic() > deadline:
            raise DetachError(f"it did not serve in {READY_SECONDS_MAX:.0f} seconds; see {log}")
        time.sleep(_POLL_SECONDS)
