"""Drivers and device plugins of a test: tasks in the cluster's event loop, or processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dray.cmd.testing.stack import Stack
from dray.cmd.testing.threads import EventLoopThread
from dray.driver import Driver, DriverRunner, Options
from dray.driver.device_plugin import DevicePlugin, serve
from dray.driver.device_plugin import Options as PluginOptions
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import ChildTasks, cancel_and_wait

STOP_SECONDS_MAX: Final = 10.0
# Deleted slices are published again without the delay of production.
REPAIR_SECONDS: Final = 0.1
OUTPUT_LENGTH_MAX: Final = 4000


class _InProcessTask:
    """A task in the cluster's event loop; a crash is raised by `check` or `stop`."""

    def __init__(self, thread: EventLoopThread, stack: Stack) -> None:
        self._thread = thread
        self._stack = stack
        self._tasks = ChildTasks("in-process driver")
        self._task: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Stop it as SIGTERM does; raise its error if it crashed."""
        self._thread.call(self._stop_task())

    def restart(self) -> None:
        """Stop it and start it again."""
        self.stop()
        self.start()

    def start(self) -> None:
        """Start it."""
        self._thread.call(self._start())

    def check(self) -> None:
        """Raise its error if it crashed."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            task, self._task = self._task, None
            task.result()

    async def _start(self) -> None:
        raise NotImplementedError

    async def _stop_task(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await cancel_and_wait({task})
            if not task.cancelled():
                task.result()


class RunningDriver(_InProcessTask):
    """A driver of the SDK; `errors` are the errors while publishing its devices."""

    def __init__(self, thread: EventLoopThread, stack: Stack, driver: Driver, options: Mapping[str, Any]) -> None:
        super().__init__(thread, stack)
        self.driver = driver
        self.errors: list[Exception] = []
        self._options = options
        self._runner: DriverRunner | None = None
        self._stop = asyncio.Event()

    @property
    def registered(self) -> bool:
        """Return whether the node agent has registered the driver."""
        return self._runner is not None and self._runner.registered.is_set()

    @property
    def output(self) -> str:
        """Return its errors."""
        return "\n".join(str(error) for error in self.errors)

    def kill(self) -> None:
        """Stop it without cleanup."""
        self._thread.call(super()._stop_task())

    async def _start(self) -> None:
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
        self._task = self._tasks.spawn(self._runner.run(self._stop), f"driver {self.driver.name}")

    async def _stop_task(self) -> None:
        self._stop.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=STOP_SECONDS_MAX)
        await super()._stop_task()


class RunningPlugin(_InProcessTask):
    """A device plugin of the SDK."""

    def __init__(self, thread: EventLoopThread, stack: Stack, plugin: DevicePlugin, options: Mapping[str, Any]) -> None:
        super().__init__(thread, stack)
        self.plugin = plugin
        self._options = options

    async def _start(self) -> None:
        options = PluginOptions(**{"folder": str(self._stack.root / "device-plugins"), **self._options})
        self._task = self._tasks.spawn(serve(self.plugin, options), f"plugin {self.plugin.resource_name}")


class DriverProcess:
    """A driver or device plugin in any language; `log` is the file with its output."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.command = tuple(command)
        self.log = log
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Return the process id; 0 if it is not running."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    @property
    def output(self) -> str:
        """Return the end of its output."""
        return self.log.read_text(errors="replace")[-OUTPUT_LENGTH_MAX:] if self.log.exists() else ""

    def start(self) -> None:
        """Start it; its output is appended to the log."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the test's own command
                self.command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def stop(self) -> None:
        """Terminate it, and kill it after a timeout."""
        self._signal(signal.SIGTERM)
        if self._process is not None:
            try:
                self._process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """Kill it."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(STOP_SECONDS_MAX)

    def restart(self) -> None:
        """Stop it and start it again."""
        self.stop()
        self.start()

    def check(self) -> None:
        """Raise an error if it exited by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise AssertionError(f"{self.command[0]} exited with code {self._process.returncode}:\n{self.output}")

    def _signal(self, number: signal.Signals) -> None:
        if self.pid:
            os.killpg(self.pid, number)
