"""What the programs of all drivers share: flags, logging, exit codes, access to the API, and calls of author's code."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from dray.client.credentials import load_access
from dray.client.http import http_client
from dray.client.interface import Client
from dray.lib.clock import Clock
from dray.runtime import logs
from dray.runtime.health import HealthChecks
from dray.runtime.http.health import serve_health
from dray.runtime.metrics import Metrics
from dray.runtime.settings import HelpRequested, SettingsError, load
from dray.runtime.system import SystemClock
from dray.runtime.tasks import TaskGroup, stop_on_signals


class ProgramSettings(Protocol):
    """Settings of every driver."""

    @property
    def kubeconfig(self) -> str:
        """Path of the kubeconfig; empty for the default."""

    @property
    def metrics_port(self) -> int:
        """Port of metrics and health; 0 for none."""

    @property
    def log_format(self) -> str:
        """`text` or `json`."""

    @property
    def v(self) -> int:
        """Log verbosity."""


class NodeProgramSettings(Protocol):
    """Settings of every driver that runs on a node."""

    @property
    def node_name(self) -> str:
        """The node."""


S = TypeVar("S", bound=ProgramSettings)
N = TypeVar("N", bound=NodeProgramSettings)


@dataclass(frozen=True, slots=True)
class ProgramContext:
    """What a running driver program has."""

    client: Client
    clock: Clock
    metrics: Metrics
    # Set by SIGTERM and SIGINT.
    stop: asyncio.Event
    group: TaskGroup
    health: HealthChecks


def run_program(
    read: Callable[[], S], work: Callable[[S], Coroutine[Any, Any, None]], failures: tuple[type[Exception], ...]
) -> int:
    """Read the settings and run until stopped; return the exit code, 1 for the expected failures."""
    try:
        settings = read()
    except HelpRequested as request:
        sys.stdout.write(request.text)
        return 0
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    logs.configure(format_name=settings.log_format, verbosity=settings.v)
    try:
        asyncio.run(work(settings))
    except failures as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def load_node_settings(kind: type[N], argv: Sequence[str], environ: Mapping[str, str]) -> N:
    """Read the settings of a driver on a node; the node's name is required."""
    settings = load(kind, argv, environ)
    if not settings.node_name:
        raise SettingsError("--node-name: needs a value")
    return settings


@asynccontextmanager
async def program_context(
    settings: ProgramSettings, environ: Mapping[str, str], name: str, *, kubeconfig: str = "", user_agent: str = ""
) -> AsyncIterator[ProgramContext]:
    """Provide a client, metrics and stop signals for the time of the block; `name` is the driver's."""
    clock, metrics, stop, health = SystemClock(), Metrics(), asyncio.Event(), HealthChecks()
    access = load_access(environ, path=kubeconfig or settings.kubeconfig)
    client = http_client(access, clock, user_agent=user_agent) if user_agent else http_client(access, clock)
    stop_on_signals(stop)
    try:
        async with TaskGroup(name) as group:
            if settings.metrics_port:
                await serve_health(group, "127.0.0.1", settings.metrics_port, metrics.exposition, health)
            yield ProgramContext(client, clock, metrics, stop, group, health)
    finally:
        await client.close()


async def call_author(method: Callable[..., Any], *arguments: Any) -> Any:
    """Call a method of the author: a coroutine function in the event loop, any other in a thread."""
    if inspect.iscoroutinefunction(method):
        return await method(*arguments)

    def call() -> Any:
        result = method(*arguments)
        # A generator's work must be done in the thread as well.
        return tuple(result) if isinstance(result, Iterator) else result

    return await asyncio.to_thread(call)
