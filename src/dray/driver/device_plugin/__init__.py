"""The SDK of device plugins: a plugin is a subclass of `DevicePlugin`, run by `run`. It works with any kubelet."""

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
