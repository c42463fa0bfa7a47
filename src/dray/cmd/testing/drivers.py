"""Drivers and device plugins that a test runs: in the cluster's own thread, or as processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dray.cmd.testing.stack import Stack
from dray.cmd.testing.threads import LoopThread
from dray.driver import Driver, DriverRunner, Options
from dray.driver.device_plugin import DevicePlugin, serve
from dray.driver.device_plugin import Options as PluginOptions
from dray.runtime.metrics import Metrics

STOP_SECONDS_MAX: Final = 10.0
# Slices that a test deletes come back at once, rather than after a production's pause.
REPAIR_SECONDS: Final = 0.1
OUTPUT_LENGTH_MAX: Final = 4000


class _InProcess:
    """A task in the cluster's loop."""

    def __init__(self, thread: LoopThread, stack: Stack) -> None:
        self._thread = thread
        self._stack = stack
        self._task: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Stop it as SIGTERM would."""
        self._thread.call(self._end())

    def restart(self) -> None:
        """Stop it and start it again."""
        self.stop()
        self.start()

    def start(self) -> None:
        """Start it again after `stop`."""
        self._thread.call(self._begin())

    def check(self) -> None:
        """Raise what it ended with, if it has ended by itself."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            error = self._task.exception()
            if error is not None:
                raise error

    async def _begin(self) -> None:
        raise NotImplementedError

    async def _end(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class RunningDriver(_InProcess):
    """A driver of the SDK; `errors` is what went wrong with publishing its devices."""

    def __init__(self, thread: LoopThread, stack: Stack, driver: Driver, options: Mapping[str, Any]) -> None:
        super().__init__(thread, stack)
        self.driver = driver
        self.errors: list[Exception] = []
        self._options = options
        self._runner: DriverRunner | None = None
        self._stop = asyncio.Event()

    @property
    def registered(self) -> bool:
        """Whether the node agent's last word was that it uses the driver."""
        return self._runner is not None and self._runner.registered.is_set()

    @property
    def output(self) -> str:
        """What it had to say."""
        return "\n".join(str(error) for error in self.errors)

    def kill(self) -> None:
        """End it in the middle of whatever it does."""
        self._thread.call(super()._end())

    async def _begin(self) -> None:
        stack = self._stack
        options = Options(
            **{
                "node_name": stack.options.node_name,
                "root": str(stack.root),
                "cdi_folder": str(stack.cdi),
                "repair_seconds": REPAIR_SECONDS,
                "on_error": self.errors.append,
                **self._options,
            }
        )
        self._stop = asyncio.Event()
        self._runner = DriverRunner(self.driver, stack.client, options, stack.running.clock, Metrics())
        self._task = asyncio.create_task(self._runner.run(self._stop), name=f"driver {self.driver.name}")

    async def _end(self) -> None:
        self._stop.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=STOP_SECONDS_MAX)
        await super()._end()


class RunningPlugin(_InProcess):
    """A device plugin of the SDK."""

    def __init__(self, thread: LoopThread, stack: Stack, plugin: DevicePlugin, options: Mapping[str, Any]) -> None:
        super().__init__(thread, stack)
        self.plugin = plugin
        self._options = options

    async def _begin(self) -> None:
        options = PluginOptions(**{"folder": str(self._stack.root / "device-plugins"), **self._options})
        self._task = asyncio.create_task(serve(self.plugin, options), name=f"plugin {self.plugin.resource_name}")


class DriverProcess:
    """A driver or plugin in any language; `log` has its output."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.command = tuple(command)
        self.log = log
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The running process's number; 0 when none runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    @property
    def output(self) -> str:
        """The end of what it has written."""
        return self.log.read_text(errors="replace")[-OUTPUT_LENGTH_MAX:] if self.log.exists() else ""

    def start(self) -> None:
        """Start it; its output is added to the log."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the test's own command
                self.command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def stop(self) -> None:
        """Ask it to end, and insist after a while."""
        self._signal(signal.SIGTERM)
        if self._process is not None:
            try:
                self._process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """End it as a power cut would."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(STOP_SECONDS_MAX)

    def restart(self) -> None:
        """Stop it and start it again."""
        self.stop()
        self.start()

    def check(self) -> None:
        """Raise when it has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise AssertionError(f"{self.command[0]} ended with code {self._process.returncode}:\n{self.output}")

    def _signal(self, number: signal.Signals) -> None:
        if self.pid:
            os.killpg(self.pid, number)
