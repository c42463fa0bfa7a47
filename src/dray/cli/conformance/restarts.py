"""Ways to restart a driver: a process of our own, a command of its author, or a person."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dray.cli.conformance.requirements import UsageError

STOP_SECONDS_MAX: Final = 120.0


class DriverProcess:
    """The driver that `--run` names; killed as by a power cut, and started again."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = command
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> DriverProcess:
        """Start it."""
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ask it to end."""
        await self._end(signal.SIGTERM)

    async def restart(self) -> None:
        """Kill it and start it again."""
        await self._end(signal.SIGKILL)
        await self._start()

    async def _start(self) -> None:
        # Its output is for people; ours alone is on the standard output.
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,
        )

    async def _end(self, number: signal.Signals) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        os.killpg(process.pid, number)
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await process.wait()
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


class CommandRestarter:
    """Restarts the driver by a command of its author."""

    def __init__(self, command: str) -> None:
        self._command = command

    async def restart(self) -> None:
        """Run the command; it must succeed."""
        process = await asyncio.create_subprocess_shell(
            self._command, stdin=asyncio.subprocess.DEVNULL, stdout=sys.stderr
        )
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                code = await process.wait()
        except TimeoutError as error:
            process.kill()
            raise UsageError(f"--restart-command did not end in {STOP_SECONDS_MAX:g} s") from error
        if code:
            raise UsageError(f"--restart-command ended with code {code}")


class AskingRestarter:
    """Has a person restart the driver."""

    def __init__(self, ask: Callable[[str], str] = input) -> None:
        self._ask = ask

    async def restart(self) -> None:
        """Ask and wait."""
        await asyncio.to_thread(self._ask, "Kill the driver (kill -9), start it again, and press Enter: ")
