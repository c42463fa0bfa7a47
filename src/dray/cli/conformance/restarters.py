"""Restarts of the driver under test: a child process, a command, or a prompt."""

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
    """The driver started by `--run`; killed without warning and started again."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = command
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> DriverProcess:
        """Start it."""
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Terminate it."""
        await self._end(signal.SIGTERM)

    async def restart(self) -> None:
        """Kill it and start it again."""
        await self._end(signal.SIGKILL)
        await self._start()

    async def _start(self) -> None:
        # Standard output is reserved for the report.
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
    """Restarts the driver with `--restart-command`."""

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
            raise UsageError(f"--restart-command did not exit within {STOP_SECONDS_MAX:g} s") from error
        if code:
            raise UsageError(f"--restart-command exited with code {code}")


class PromptRestarter:
    """Asks the user to restart the driver."""

    def __init__(self, ask: Callable[[str], str] = input) -> None:
        self._ask = ask

    async def restart(self) -> None:
        """Prompt and wait for Enter."""
        await asyncio.to_thread(self._ask, "Kill the driver (kill -9), start it again, and press Enter: ")
