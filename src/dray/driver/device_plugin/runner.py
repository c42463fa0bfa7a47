"""Runs a device plugin: serves its socket and registers it, again after each restart of kubelet.

When kubelet starts it removes all sockets of the directory and creates its own; either is noticed within a second.
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
from dray.runtime.logs import fields
from dray.runtime.system import SystemClock
from dray.runtime.tasks import TaskGroup, pause, stop_on_signals

_log = logging.getLogger(__name__)

FOLDER: Final = "/var/lib/kubelet/device-plugins"
KUBELET_SOCKET: Final = "kubelet.sock"
# During the call kubelet waits up to 10 s for the plugin.
REGISTER_TIMEOUT_SECONDS: Final = 30.0
WATCH_SECONDS: Final = 1.0
STOP_SECONDS: Final = 2.0
# Status codes if kubelet could not be reached; others are rejections.
_TRANSIENT: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
)


class RegistrationRefusedError(Exception):
    """Kubelet rejected the plugin; it should exit and be restarted."""


@dataclass(frozen=True, slots=True)
class Options:
    """Where a plugin runs and how."""

    folder: str = FOLDER
    # If set, the plugin does not call kubelet: kubelet's plugin watcher finds its socket in this directory.
    registry_folder: str = ""
    # By default derived from the resource name.
    socket_name: str = ""
    # How often `devices` is called.
    poll_seconds: float = 5.0

    def socket_path(self, resource_name: str) -> str:
        """Return the path of the plugin's socket."""
        return str(Path(self.registry_folder or self.folder) / self.file_name(resource_name))

    def file_name(self, resource_name: str) -> str:
        """Return the file name of the socket."""
        return self.socket_name or resource_name.replace("/", "_") + ".sock"


def run(plugin: DevicePlugin, options: Options | None = None) -> None:
    """Serve the plugin until SIGTERM or SIGINT; raise `RegistrationRefusedError` if kubelet rejects it."""
    logs.configure()
    asyncio.run(_run(plugin, options or Options()))


async def _run(plugin: DevicePlugin, options: Options) -> None:
    stop = asyncio.Event()
    stop_on_signals(stop)
    async with TaskGroup(plugin.resource_name) as group:
        group.spawn(serve(plugin, options), "serve")
        await group.wait(stop)


async def serve(plugin: DevicePlugin, options: Options | None = None, clock: Clock | None = None) -> None:
    """Serve the plugin until cancelled; raise `RegistrationRefusedError`, or the error of the first `devices` call."""
    server = _PluginServer(plugin, options or Options(), clock or SystemClock())
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
        """Call `devices` periodically; after an error the last devices stay."""
        while True:
            await pause(self._clock, self.wake, self._options.poll_seconds)
            self.wake.clear()
            try:
                await self.devices.refresh()
            except Exception:  # noqa: BLE001 - the author's code; the last devices stay
                _log.exception("reading devices of %s failed", self._plugin.resource_name)

    async def run(self) -> None:
        while True:
            await self._serve_once()

    async def _serve_once(self) -> None:
        """Serve and register until the socket or kubelet's is replaced."""
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
            # ListAndWatch streams never end; only other calls are waited for.
            await server.stop(STOP_SECONDS if service.busy else None)
            # Another process may have created a socket there by now.
            if _identity(self._path) == mine:
                remove_socket(self._path)

    async def _register(self, service: PluginService) -> tuple[int, ...] | None:
        """Register with kubelet as soon as it answers; return the identity of its socket."""
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
                # Kubelet has restarted and cleared the directory.
                return None

    async def _try_register(self, request: pb.RegisterRequest) -> bool:
        async with connect(self._kubelet) as channel:
            try:
                await RegistrationStub(channel).Register(request, timeout=REGISTER_TIMEOUT_SECONDS)
            except grpc.aio.AioRpcError as error:
                if error.code() in _TRANSIENT:
                    _log.warning("kubelet is unavailable: %s", error_text(error))
                    return False
                raise RegistrationRefusedError(error.details() or error_text(error)) from error
        _log.info("registered", extra=fields(resource=request.resource_name))
        return True

    async def _watch(self, mine: tuple[int, ...] | None, kubelet: tuple[int, ...] | None) -> None:
        while _identity(self._path) == mine and (kubelet is None or _identity(self._kubelet) in (kubelet, None)):
            await self._clock.sleep(WATCH_SECONDS)
        _log.info("kubelet has restarted", extra=fields(resource=self._plugin.resource_name))


def _identity(path: str) -> tuple[int, ...] | None:
    """Return values that change when a socket is created again; None if there is none."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns
