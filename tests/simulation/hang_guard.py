"""Ends a run that comes to no end: in virtual time, waiting for what never happens only costs time of the processor."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Of the processor, so that a busy machine changes nothing; the longest runs take a tenth of it.
CPU_SECONDS_MAX = 60.0
# Ending the tasks of a run that hangs may hang as well.
_AGAIN_SECONDS = 5.0


class HangError(SystemExit):
    """The run did not end in time.

    No task can swallow it: `SystemExit` is what an event loop passes on at once.
    """


@contextmanager
def hang_guard(seconds: float = CPU_SECONDS_MAX) -> Iterator[None]:
    """Raise `HangError` if the block takes longer; only in the main thread."""

    def expire(_number: int, frame: FrameType | None) -> None:
        place = traceback.extract_stack(frame, limit=1)[0] if frame is not None else None
        where = f" at {os.path.relpath(place.filename)}:{place.lineno}" if place is not None else ""
        raised.append(HangError(f"hangs: no end after {seconds:g} s of CPU time{where}"))
        raise raised[-1]

    raised: list[HangError] = []
    previous = signal.signal(signal.SIGPROF, expire)
    signal.setitimer(signal.ITIMER_PROF, seconds, _AGAIN_SECONDS)
    try:
        yield
    except BaseException as error:
        if raised and error is not raised[0]:
            # Ending the tasks failed as well.
            raise raised[0] from error
        raise
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, previous)
