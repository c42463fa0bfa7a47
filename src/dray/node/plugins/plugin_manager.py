"""The plugin manager: scans the registration folder every second and registers the plugins it finds.

It polls instead of using inotify: a scan of a node's few sockets takes about 50 microseconds, needs no library, and
detects what inotify does not (bind mounts, a replaced folder). Kubernetes reconciles every second as well. `rescan`
skips the wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NoReturn

import grpc
import grpc.aio

from dray.lib.clock import Clock
from dray.node.plugins.handler import Plugin, PluginError, PluginHandler
from dray.node.plugins.socket_scan import find_sockets, make_folder
from dray.node.plugins.sockets import Action, Deregister, Register, SocketFile, SocketStates
from dray.rpc.pb.plugin_registration.v1 import api_pb2 as pb
from dray.rpc.pb.plugin_registration.v1.api_pb2_grpc import RegistrationStub
from dray.rpc.sockets import connect, error_text
from dray.runtime.logs import fields
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup, pause

_log = logging.getLogger(__name__)

SCAN_SECONDS: Final = 1.0
# Kubernetes' pluginmanager/operationexecutor.
DIAL_TIMEOUT_SECONDS: Final = 10.0
GET_INFO_TIMEOUT_SECONDS: Final = 1.0
NOTIFY_TIMEOUT_SECONDS: Final = 5.0

ACTUAL: Final = "actual_state_of_world"
DESIRED: Final = "desired_state_of_world"


class RegistrationError(Exception):
    """One failed attempt to register a socket; logged and retried."""


class PluginManager:
    """Registers the plugins of one folder; `handlers` are by plugin type."""

    def __init__(self, folder: str, handlers: Mapping[str, PluginHandler], clock: Clock, metrics: Metrics) -> None:
        self._folder = folder
        self._handlers = handlers
        self._clock = clock
        self._sockets = SocketStates()
        self._wake = asyncio.Event()
        self._gauge = metrics.gauge(
            "plugin_manager_total_plugins", "Number of plugins by socket and state", ["socket_path", "state"]
        )
        self._shown: frozenset[tuple[str, str]] = frozenset()

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """The registered plugins, in the order of socket paths."""
        return self._sockets.plugins

    def rescan(self) -> None:
        """Scan the folder now."""
        self._wake.set()

    async def run(self) -> None:
        """Scan and register until cancelled; creates the folder if it is missing."""
        make_folder(self._folder)
        async with TaskGroup("plugins") as group:
            while True:
                self._wake.clear()
                self._scan()
                for action in self._sockets.plan(self._clock.monotonic()):
                    group.spawn(self._perform(action), f"{type(action).__name__} {action.socket.path}")
                self._show()
                await self._pause()

    def _scan(self) -> None:
        try:
            self._sockets.scanned(find_sockets(self._folder))
        except OSError as error:
            # What is registered stays: that the folder cannot be read says nothing about its sockets.
            _log.warning("plugins not looked for", extra=fields(error=str(error)))

    async def _pause(self) -> None:
        due = self._sockets.next_due()
        seconds = SCAN_SECONDS if due is None else min(SCAN_SECONDS, due - self._clock.monotonic())
        await pause(self._clock, self._wake, seconds)

    async def _perform(self, action: Action) -> None:
        if isinstance(action, Deregister):
            await self._deregister(action)
        else:
            await self._register(action)
        # This may allow the next step: a new socket at the same path waits for the removal of the old one.
        self._show()
        self.rescan()

    async def _deregister(self, action: Deregister) -> None:
        await self._handlers[action.plugin.type].deregister(action.plugin)
        self._sockets.deregistered(action.socket)
        _log.info("plugin deregistered", extra=fields(type=action.plugin.type, plugin=action.plugin.name))

    async def _register(self, action: Register) -> None:
        try:
            plugin = await self._introduce(action.socket)
        except RegistrationError as error:
            delay = self._sockets.failed(action.socket, self._clock.monotonic())
            _log.warning("%s", error, extra=fields(socket=action.socket.path, retry_seconds=delay))
            return
        except Exception as error:  # noqa: BLE001 - the edge to handlers: one plugin must not end the others
            self._sockets.failed(action.socket, self._clock.monotonic())
            _log.error("registration crashed", exc_info=error, extra=fields(socket=action.socket.path))
            return
        self._sockets.registered(action.socket, plugin)
        _log.info("plugin registered", extra=fields(type=plugin.type, plugin=plugin.name, endpoint=plugin.endpoint))

    async def _introduce(self, socket: SocketFile) -> Plugin:
        async with _dialled(socket.path) as stub:
            plugin = await _get_info(stub, socket.path)
            handler = self._handlers.get(plugin.type)
            if handler is None:
                what = f"no handler registered for plugin type: {plugin.type} at socket {socket.path}"
                await _refuse(stub, socket.path, f"RegisterPlugin error -- {what}")
            try:
                handler.validate(plugin)
            except PluginError as error:
                await _refuse(stub, socket.path, f"RegisterPlugin error -- plugin validation failed with err: {error}")
            try:
                await handler.register(plugin)
            except PluginError as error:
                await _refuse(
                    stub, socket.path, f"RegisterPlugin error -- plugin registration failed with err: {error}"
                )
            await self._confirm(stub, handler, plugin)
            return plugin

    async def _confirm(self, stub: Any, handler: PluginHandler, plugin: Plugin) -> None:
        """Notify the plugin; if that fails it may be gone, and must not be used."""
        try:
            await _notify(stub, pb.RegistrationStatus(plugin_registered=True))
        except grpc.aio.AioRpcError as error:
            await handler.deregister(plugin)
            raise RegistrationError(
                "RegisterPlugin error -- failed to send registration status at socket "
                f"{plugin.socket_path}, err: {error_text(error)}"
            ) from error
        except asyncio.CancelledError:
            await handler.deregister(plugin)
            raise

    def _show(self) -> None:
        paths = {(path, DESIRED) for path in self._sockets.wanted}
        shown = frozenset(paths | {(plugin.socket_path, ACTUAL) for plugin in self._sockets.plugins})
        for labels in self._shown - shown:
            self._gauge.remove(*labels)
        for labels in shown - self._shown:
            self._gauge.labels(*labels).set(1)
        self._shown = shown


async def find_plugins(folder: str, timeout_seconds: float) -> tuple[Plugin, ...]:
    """Ask the plugins of a folder who they are, without registering them; those that do not answer are left out."""

    async def ask(socket: SocketFile) -> Plugin | None:
        try:
            async with asyncio.timeout(timeout_seconds), _dialled(socket.path) as stub:
                return await _get_info(stub, socket.path)
        except (RegistrationError, TimeoutError):
            return None

    found = await asyncio.gather(*(ask(socket) for socket in find_sockets(folder)))
    return tuple(plugin for plugin in found if plugin is not None)


@asynccontextmanager
async def _dialled(path: str) -> AsyncIterator[Any]:
    async with connect(path) as channel:
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_SECONDS):
                await channel.channel_ready()
        except TimeoutError as error:
            raise RegistrationError(
                f"RegisterPlugin error -- dial failed at socket {path}, err: context deadline exceeded"
            ) from error
        yield RegistrationStub(channel)


async def _get_info(stub: Any, path: str) -> Plugin:
    try:
        info = await stub.GetInfo(pb.InfoRequest(), timeout=GET_INFO_TIMEOUT_SECONDS)
    except grpc.aio.AioRpcError as error:
        raise RegistrationError(
            "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket "
            f"{path}, err: {error_text(error)}"
        ) from error
    return Plugin(info.type, info.name, info.endpoint or path, tuple(info.supported_versions), path)


async def _refuse(stub: Any, path: str, text: str) -> NoReturn:
    """Notify the plugin of the failure, and raise it."""
    try:
        await _notify(stub, pb.RegistrationStatus(plugin_registered=False, error=text))
    except grpc.aio.AioRpcError as error:
        raise RegistrationError(
            f"RegisterPlugin error -- failed to send error at socket {path}, err: {text}: {error_text(error)}"
        ) from error
    raise RegistrationError(text)


async def _notify(stub: Any, status: pb.RegistrationStatus) -> None:
    await stub.NotifyRegistrationStatus(status, timeout=NOTIFY_TIMEOUT_SECONDS)
