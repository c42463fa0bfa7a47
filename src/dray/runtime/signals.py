"""SIGTERM and SIGINT as an event: the first asks to stop, the second stops at once."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

_log = logging.getLogger(__name__)
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def stop_on_signals(stop: asyncio.Event) -> None:
    """Set `stop` on the first signal; a second one ends the process with 128 + its number."""
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, _received, stop, number)


def ignore_signals() -> None:
    """Undo `stop_on_signals`."""
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.remove_signal_handler(number)


def _received(stop: asyncio.Event, number: signal.Signals) -> None:
    if stop.is_set():
        os._exit(128 + number)
    _log.info("stopping on %s", number.name)
    stop.set()
