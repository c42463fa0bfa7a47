"""The SDK of device plugins: subclass `DevicePlugin` and call `run`. It works with any kubelet."""

from dray.driver.device_plugin.interface import Allocation, Device, DevicePlugin, HostDevice, Mount
from dray.driver.device_plugin.runner import Options, RegistrationRefusedError, run, serve

__all__ = [
    "Allocation",
    "Device",
    "DevicePlugin",
    "HostDevice",
    "Mount",
    "Options",
    "RegistrationRefusedError",
    "run",
    "serve",
]
