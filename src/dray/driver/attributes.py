"""Standard attributes of PCI devices, read from sysfs, so that devices of different drivers can be matched."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

SYSFS: Final = "/sys"
PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"

# Domain, bus, device and function, e.g. 0000:01:00.0.
_BUS_ID: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_ROOT: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)


class DeviceAttributeError(ValueError):
    """An attribute that cannot be determined."""


def pci_attributes(bus_id: str, sysfs: str = SYSFS) -> dict[str, str]:
    """Return both standard attributes of the device with the bus id."""
    return {PCI_BUS_ID: pci_bus_id(bus_id), PCIE_ROOT: pcie_root(_resolved(bus_id, sysfs))}


def numa_node(bus_id: str, sysfs: str = SYSFS) -> int | None:
    """Return the device's NUMA node; None if it has none."""
    _resolved(bus_id, sysfs)
    path = Path(sysfs) / "bus/pci/devices" / pci_bus_id(bus_id) / "numa_node"
    try:
        node = int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def pci_bus_id(text: str) -> str:
    """Return the bus id in lower case; raise `DeviceAttributeError` if it is not one."""
    found = text.lower()
    if not _BUS_ID.fullmatch(found):
        raise DeviceAttributeError(f"{text!r} is no PCI bus id (domain:bus:device.function)")
    return found


def pcie_root(resolved: str) -> str:
    """Return the root complex in a device's resolved sysfs path, e.g. `pci0000:00`."""
    for part in resolved.split("/"):
        if _ROOT.fullmatch(part):
            return part
    raise DeviceAttributeError(f"{resolved} has no PCI root")


def _resolved(bus_id: str, sysfs: str) -> str:
    path = Path(sysfs) / "bus/pci/devices" / pci_bus_id(bus_id)
    if not path.exists():
        raise DeviceAttributeError(f"there is no PCI device {bus_id}")
    return str(path.resolve())
