"""Runs a device plugin: serves its socket, registers, and does both again whenever kubelet has restarted.

Kubelet removes every socket of the folder when it starts and makes its own anew; either is seen within a second.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from dray.driver.device_plugin.interface import DevicePlugin
from dray.driver.device_plugin.servicer import VERSION, DeviceList, PluginService, WatcherRegistration
from dray.lib.clock import Clock
from dray.rpc.pb.deviceplugin.v1beta1 import api_pb2 as pb
from dray.rpc.pb.deviceplugin.v1beta1.api_pb2_grpc import RegistrationStub, add_DevicePluginServicer_to_server
from dray.rpc.pb.plugin_registration.v1.api_pb2_grpc import add_RegistrationServicer_to_server
from dray.rpc.sockets import connect, error_text, listen, remove_socket
from dray.runtime import logs
from dray.runtime.clock import SystemClock
from dray.runtime.logs import fields
from dray.runtime.signals import stop_on_signals
from dray.runtime.tasks import TaskGroup, pause

_log = logging.getLogger(__name__)

FOLDER: Final = "/var/lib/kubelet/device-plugins"
REGISTRY_FOLDER: Final = "/var/lib/kubelet/plugins_registry"
KUBELET_SOCKET: Final = "kubelet.sock"
# Kubelet waits up to 10 s for the plugin inside of the call.
REGISTER_TIMEOUT_SECONDS: Final = 30.0
WATCH_SECONDS: Final = 1.0
STOP_SECONDS: Final = 2.0
# What kubelet answers with when it could not be reached, as opposed to when it refuses.
_TRANSIENT: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
)


class RegistrationRefusedError(Exception):
    """Kubelet does not want the plugin; it should end, whoever runs it will start it again."""


@dataclass(frozen=True, slots=True)
class Options:
    """Where a plugin runs and how."""

    folder: str = FOLDER
    # When set, the plugin does not call kubelet: its socket in this folder is found by kubelet's plugin watcher.
    registry_folder: str = ""
    # Empty: made from the resource's name.
    socket_name: str = ""
    # How often `devices` is asked.
    poll_seconds: float = 5.0

    def socket_path(self, resource_name: str) -> str:
        """The plugin's own socket."""
        return str(Path(self.registry_folder or self.folder) / self.file_name(resource_name))

    def file_name(self, resource_name: str) -> str:
        """The socket's name in its folder."""
        return self.socket_name or resource_name.replace("/", "_") + ".sock"


def run(plugin: DevicePlugin, options: Options = Options()) -> None:  # noqa: B008 - immutable
    """Serve the plugin until SIGTERM or SIGINT; raises `RegistrationRefusedError`."""
    logs.configure()
    asyncio.run(_run(plugin, options))


async def _run(plugin: DevicePlugin, options: Options) -> None:
    stop = asyncio.Event()
    stop_on_signals(stop)
    async with TaskGroup(plugin.resource_name) as group:
        group.spawn(serve(plugin, options), "serve")
        await group.wait(stop)


async def serve(
    plugin: DevicePlugin,
    options: Options = Options(),  # noqa: B008 - immutable
    clock: Clock | None = None,
) -> None:
    """Serve the plugin until cancelled; raises `RegistrationRefusedError`, and what the first `devices` raises."""
    server = _PluginServer(plugin, options, clock or SystemClock())
    await server.devices.refresh()
    loop = asyncio.get_running_loop()
    plugin._on_changed = lambda: loop.call_soon_threadsafe(server.wake.set)  # noqa: SLF001 - the other half of it
    async with TaskGroup(plugin.resource_name) as group:
        group.spawn(server.poll(), "devices")
        serving = group.spawn(server.run(), "socket")
        await asyncio.wait([serving])
        serving.result()


class _PluginServer:
    def __init__(self, plugin: DevicePlugin, options: Options, clock: Clock) -> None:
        self._plugin = plugin
        self._options = options
        self._clock = clock
        self._path = options.socket_path(plugin.resource_name)
        self._kubelet = str(Path(options.folder) / KUBELET_SOCKET)
        self.devices = DeviceList(plugin)
        self.wake = asyncio.Event()

    async def poll(self) -> None:
        """Ask for the devices again and again; a failure keeps those known."""
        while True:
            await pause(self._clock, self.wake, self._options.poll_seconds)
            self.wake.clear()
            try:
                await self.devices.refresh()
            except Exception:  # noqa: BLE001 - the author's code; the plugin goes on with what it knew
                _log.exception("devices of %s", self._plugin.resource_name)

    async def run(self) -> None:
        while True:
            await self._serve_once()

    async def _serve_once(self) -> None:
        """Serve and register, until the socket or kubelet's is another."""
        service = PluginService(self._plugin, self.devices)
        server = grpc.aio.server()
        add_DevicePluginServicer_to_server(service, server)
        if self._options.registry_folder:
            add_RegistrationServicer_to_server(WatcherRegistration(self._plugin.resource_name), server)
        await listen(server, self._path)
        mine, kubelet = _identity(self._path), None
        try:
            if not self._options.registry_folder:
                kubelet = await self._register(service)
            await self._watch(mine, kubelet)
        finally:
            # Streams of devices never end by themselves; only other calls are worth waiting for.
            await server.stop(STOP_SECONDS if service.busy else None)
            # By now another process may have a socket there; only ours is removed.
            if _identity(self._path) == mine:
                remove_socket(self._path)

    async def _register(self, service: PluginService) -> tuple[int, ...] | None:
        """Register at kubelet's socket as soon as it answers; what the socket was."""
        request = pb.RegisterRequest(
            version=VERSION,
            endpoint=Path(self._path).name,
            resource_name=self._plugin.resource_name,
            options=service.options,
        )
        while True:
            kubelet = _identity(self._kubelet)
            if kubelet is not None and await self._try_register(request):
                return kubelet
            await self._clock.sleep(WATCH_SECONDS)
            if _identity(self._path) is None:
                # Kubelet is just starting and has cleared the folder.
                return None

    async def _try_register(self, request: pb.RegisterRequest) -> bool:
        async with connect(self._kubelet) as channel:
            try:
                await RegistrationStub(channel).Register(request, timeout=REGISTER_TIMEOUT_SECONDS)
            except grpc.aio.AioRpcError as error:
                if error.code() in _TRANSIENT:
                    _log.warning("kubelet does not answer: %s", error_text(error))
                    return False
                raise RegistrationRefusedError(error.details() or error_text(error)) from error
        _log.info("registered", extra=fields(resource=request.resource_name))
        return True

    async def _watch(self, mine: tuple[int, ...] | None, kubelet: tuple[int, ...] | None) -> None:
        while _identity(self._path) == mine and (kubelet is None or _identity(self._kubelet) in (kubelet, None)):
            await self._clock.sleep(WATCH_SECONDS)
        _log.info("kubelet has restarted", extra=fields(resource=self._plugin.resource_name))


def _identity(path: str) -> tuple[int, ...] | None:
    """What is another when a socket has been made again; None when there is none."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns
