"""The machine's own clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class SystemClock:
    """Implements `dray.lib.clock.Clock` with the machine's time."""

    def now(self) -> datetime:
        """The wall-clock time, aware, in UTC."""
        return datetime.now(UTC)  # noqa: TID251 - here is where time comes from

    # Seconds that never go back; asked for so often that a function around it would show.
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        """Wait; zero or less lets others run once."""
        # A command that only asks for the time has no event loop.
        import asyncio

        await asyncio.sleep(max(seconds, 0.0))
