"""Standard attributes of PCI devices, read from sysfs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dray.driver.attributes.pci import PCI_BUS_ID, PCIE_ROOT, DeviceAttributeError, pci_bus_id, pcie_root

SYSFS: Final = "/sys"


def pci_attributes(bus_id: str, sysfs: str = SYSFS) -> dict[str, str]:
    """Both standard attributes of the device at the bus id."""
    return {PCI_BUS_ID: pci_bus_id(bus_id), PCIE_ROOT: pcie_root(_resolved(bus_id, sysfs))}


def numa_node(bus_id: str, sysfs: str = SYSFS) -> int | None:
    """The device's NUMA node; None when the machine has no say in it."""
    _resolved(bus_id, sysfs)
    path = Path(sysfs) / "bus/pci/devices" / pci_bus_id(bus_id) / "numa_node"
    try:
        node = int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _resolved(bus_id: str, sysfs: str) -> str:
    path = Path(sysfs) / "bus/pci/devices" / pci_bus_id(bus_id)
    if not path.exists():
        raise DeviceAttributeError(f"there is no PCI device {bus_id}")
    return str(path.resolve())
