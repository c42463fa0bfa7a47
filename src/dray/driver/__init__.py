"""The SDK a driver author imports: `from dray.driver import Driver, device, run`; docs/driver-sdk.md is its manual."""

from dray.api.cdi import ContainerEdits, DeviceNode, Hook, Mount
from dray.api.types.resource_v1 import Device, DeviceTaint, NetworkDeviceData
from dray.driver.attributes import numa_attributes, numa_node, pci_attributes
from dray.driver.claims import AllocatedDevice, Claim, ClaimError, PreparedClaim, PreparedDevice
from dray.driver.device_status import DeviceCondition, DeviceStatusError
from dray.driver.devices import Pool, Version, counter_set, device
from dray.driver.health import DeviceHealth, Health
from dray.driver.interface import Driver, DriverError
from dray.driver.runner import DriverRunner, Options, run

__all__ = [
    "AllocatedDevice",
    "Claim",
    "ClaimError",
    "ContainerEdits",
    "Device",
    "DeviceCondition",
    "DeviceHealth",
    "DeviceNode",
    "DeviceStatusError",
    "DeviceTaint",
    "Driver",
    "DriverError",
    "DriverRunner",
    "Health",
    "Hook",
    "Mount",
    "NetworkDeviceData",
    "Options",
    "Pool",
    "PreparedClaim",
    "PreparedDevice",
    "Version",
    "counter_set",
    "device",
    "numa_attributes",
    "numa_node",
    "pci_attributes",
    "run",
]
