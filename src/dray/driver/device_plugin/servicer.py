"""gRPC services of a device plugin. They only translate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, NoReturn

import grpc
import grpc.aio

from dray.driver.device_plugin.interface import Allocation, Device, DevicePlugin
from dray.driver.program import call_author
from dray.rpc.dra_services import DEVICE_PLUGIN
from dray.rpc.pb.deviceplugin.v1beta1 import api_pb2 as pb
from dray.rpc.pb.deviceplugin.v1beta1.api_pb2_grpc import DevicePluginServicer
from dray.rpc.pb.plugin_registration.v1 import api_pb2 as registration_pb
from dray.rpc.pb.plugin_registration.v1.api_pb2_grpc import RegistrationServicer

_log = logging.getLogger(__name__)

VERSION: Final = "v1beta1"
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"
# The limit of Kubernetes.
ID_LENGTH_MAX: Final = 63

Context = grpc.aio.ServicerContext[Any, Any]


class DeviceList:
    """The last devices of the plugin, and the streams that follow them."""

    def __init__(self, plugin: DevicePlugin) -> None:
        self._plugin = plugin
        self._changed = asyncio.Event()
        self.devices: tuple[Device, ...] = ()

    async def refresh(self) -> None:
        """Call `devices`; notify the streams if the result changes."""
        devices = tuple(await call_author(self._plugin.devices))
        for device in devices:
            if not 0 < len(device.id) <= ID_LENGTH_MAX:
                raise ValueError(f'device id "{device.id}" must have 1 to {ID_LENGTH_MAX} characters')
        if devices != self.devices:
            self.devices = devices
            # All waiting streams have this event; the next change uses a new one.
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    async def follow(self) -> AsyncIterator[tuple[Device, ...]]:
        """Yield the devices, and again whenever they change."""
        while True:
            changed = self._changed
            yield self.devices
            await changed.wait()


class PluginService(DevicePluginServicer):  # type: ignore[misc]
    """Translates kubelet's calls."""

    def __init__(self, plugin: DevicePlugin, devices: DeviceList) -> None:
        self._plugin = plugin
        self._devices = devices
        self._calls = 0

    @property
    def busy(self) -> bool:
        """Whether a call is in progress."""
        return self._calls > 0

    @property
    def options(self) -> pb.DevicePluginOptions:
        """Return the optional features of the plugin."""
        return pb.DevicePluginOptions(
            pre_start_required=self._plugin.has_pre_start,
            get_preferred_allocation_available=self._plugin.has_preference,
        )

    async def GetDevicePluginOptions(self, _request: pb.Empty, _context: Context) -> pb.DevicePluginOptions:
        """Return the optional features of the plugin."""
        return self.options

    async def ListAndWatch(self, _request: pb.Empty, _context: Context) -> AsyncIterator[pb.ListAndWatchResponse]:
        """Stream all devices, and again after each change."""
        async for devices in self._devices.follow():
            yield pb.ListAndWatchResponse(devices=[_to_wire(device) for device in devices])

    async def GetPreferredAllocation(
        self, request: pb.PreferredAllocationRequest, context: Context
    ) -> pb.PreferredAllocationResponse:
        """Return the plugin's preference for each container."""
        response = pb.PreferredAllocationResponse()
        for item in request.container_requests:
            arguments = list(item.available_device_ids), list(item.must_include_device_ids), item.allocation_size
            ids = await self._call(context, self._plugin.prefer, *arguments)
            response.container_responses.add(device_ids=ids)
        return response

    async def Allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        """Allocate for each container."""
        response = pb.AllocateResponse()
        for item in request.container_requests:
            ids = await self._known(item.devices_ids, context)
            allocation = await self._call(context, self._plugin.allocate, ids)
            response.container_responses.append(_allocation_to_wire(allocation))
        return response

    async def PreStartContainer(
        self, request: pb.PreStartContainerRequest, context: Context
    ) -> pb.PreStartContainerResponse:
        """Call the plugin's `pre_start`."""
        await self._call(context, self._plugin.pre_start, await self._known(request.devices_ids, context))
        return pb.PreStartContainerResponse()

    async def _known(self, ids: Sequence[str], context: Context) -> list[str]:
        known = {device.id for device in self._devices.devices}
        unknown = [name for name in ids if name not in known]
        if unknown:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown device: {', '.join(unknown)}")
        return list(ids)

    async def _call(self, context: Context, method: Callable[..., Any], *arguments: Any) -> Any:
        self._calls += 1
        try:
            return await call_author(method, *arguments)
        except Exception as error:  # noqa: BLE001 - the author's code; the error goes to kubelet
            _log.exception("%s of %s failed", method.__name__, self._plugin.resource_name)
            await _abort(context, str(error) or type(error).__name__)
        finally:
            self._calls -= 1


class WatcherRegistration(RegistrationServicer):  # type: ignore[misc]
    """Describes the plugin to kubelet's plugin watcher."""

    def __init__(self, resource_name: str) -> None:
        self._resource_name = resource_name

    async def GetInfo(self, _request: registration_pb.InfoRequest, _context: Context) -> registration_pb.PluginInfo:
        """Return name and version; the service has the same socket."""
        return registration_pb.PluginInfo(type=DEVICE_PLUGIN, name=self._resource_name, supported_versions=[VERSION])

    async def NotifyRegistrationStatus(
        self, request: registration_pb.RegistrationStatus, _context: Context
    ) -> registration_pb.RegistrationStatusResponse:
        """Log the registration status; kubelet retries after an error."""
        if request.plugin_registered:
            _log.info("registered %s", self._resource_name)
        else:
            _log.error("%s is not registered: %s", self._resource_name, request.error)
        return registration_pb.RegistrationStatusResponse()


async def _abort(context: Context, text: str) -> NoReturn:
    await context.abort(grpc.StatusCode.UNKNOWN, text)
    raise AssertionError("abort raises")


def _to_wire(device: Device) -> pb.Device:
    message = pb.Device(id=device.id, health=HEALTHY if device.healthy else UNHEALTHY)
    if device.numa_nodes:
        message.topology.CopyFrom(pb.TopologyInfo(nodes=[pb.NUMANode(id=node) for node in device.numa_nodes]))
    return message


def _allocation_to_wire(allocation: Allocation) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs=allocation.envs,
        mounts=[
            pb.Mount(container_path=item.container_path, host_path=item.host_path, read_only=item.read_only)
            for item in allocation.mounts
        ],
        devices=[
            pb.DeviceSpec(container_path=item.container_path, host_path=item.host_path, permissions=item.permissions)
            for item in allocation.devices
        ],
        annotations=allocation.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in allocation.cdi_devices],
    )
