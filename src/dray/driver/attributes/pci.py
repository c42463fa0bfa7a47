"""Names and forms of the standard PCI attributes. Pure; `files` reads them from sysfs."""

from __future__ import annotations

import re
from typing import Final

PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"

# Domain, bus, device and function, e.g. 0000:01:00.0.
_BUS_ID: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_ROOT: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)


class DeviceAttributeError(ValueError):
    """An attribute that cannot be told."""


def pci_bus_id(text: str) -> str:
    """The bus id in its standard form: lower case."""
    found = text.lower()
    if not _BUS_ID.fullmatch(found):
        raise DeviceAttributeError(f"{text!r} is no PCI bus id (domain:bus:device.function)")
    return found


def pcie_root(resolved: str) -> str:
    """The root complex in a device's resolved sysfs path, e.g. `pci0000:00`."""
    for part in resolved.split("/"):
        if _ROOT.fullmatch(part):
            return part
    raise DeviceAttributeError(f"{resolved} has no PCI root")
