"""Standard attributes of devices, read from sysfs, so that devices of different drivers can be matched.

The NUMA node is a number, or, where the cluster has the feature gate DRAListTypeAttributes, a list: the device's own
node first, then the nodes of the same socket at the smallest distance. A driver cannot find out whether the gate is on,
so that the form is its operator's choice. A device whose node is not known has no attribute: a common `-1` would match.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

StandardAttributes = dict[str, str | int | tuple[int, ...]]

SYSFS: Final = "/sys"
PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
NUMA_NODE: Final = "resource.kubernetes.io/numaNode"
# Linux has at most 1024 nodes.
NUMA_NODE_MAX: Final = 1023

# Domain, bus, device and function, e.g. 0000:01:00.0.
_BUS_ID: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_ROOT: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)
_NODE: Final = re.compile(r"node([0-9]+)", re.ASCII)
_FIRST_CPU: Final = re.compile(r"[0-9]+", re.ASCII)


class DeviceAttributeError(ValueError):
    """An attribute that cannot be determined."""


def pci_attributes(
    bus_id: str, sysfs: str = SYSFS, *, numa_list: bool = False
) -> dict[str, str | int | tuple[int, ...]]:
    """Return the standard attributes of the device with the bus id; the NUMA node only if it is known."""
    root = pcie_root(_resolved(bus_id, sysfs))
    found: StandardAttributes = {PCI_BUS_ID: pci_bus_id(bus_id), PCIE_ROOT: root}
    node = numa_node(bus_id, sysfs)
    return found if node is None else {**found, **numa_attributes(node, sysfs, numa_list=numa_list)}


def numa_attributes(node: int, sysfs: str = SYSFS, *, numa_list: bool = False) -> StandardAttributes:
    """Return the standard attribute of a NUMA node, as a number or as a list with its nearest neighbours."""
    if not 0 <= node <= NUMA_NODE_MAX:
        raise DeviceAttributeError(f"{node} is no NUMA node (0 to {NUMA_NODE_MAX})")
    return {NUMA_NODE: near_numa_nodes(node, sysfs) if numa_list else node}


def numa_node(bus_id: str, sysfs: str = SYSFS) -> int | None:
    """Return the device's NUMA node; None if it has none."""
    _resolved(bus_id, sysfs)
    try:
        return numa_node_of_pci(bus_id, sysfs)
    except DeviceAttributeError:
        return None


def numa_node_of_pci(bus_id: str, sysfs: str = SYSFS) -> int:
    """Return the NUMA node of a PCI device; raises `DeviceAttributeError` if it is not known."""
    path = Path(sysfs) / "bus/pci/devices" / pci_bus_id(bus_id) / "numa_node"
    try:
        node = int(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise DeviceAttributeError(f"the NUMA node of {bus_id} cannot be read: {error}") from error
    if not 0 <= node <= NUMA_NODE_MAX:
        raise DeviceAttributeError(f"{bus_id} has no NUMA node ({node})")
    return node


def numa_node_of_cpu(cpu: int, sysfs: str = SYSFS) -> int:
    """Return the NUMA node of a CPU; raises `DeviceAttributeError` if it is not known."""
    folder = Path(sysfs) / f"devices/system/cpu/cpu{cpu}"
    try:
        found = [int(match[1]) for item in folder.iterdir() if (match := _NODE.fullmatch(item.name))]
    except OSError as error:
        raise DeviceAttributeError(f"the NUMA node of CPU {cpu} cannot be read: {error}") from error
    if len(found) != 1:
        raise DeviceAttributeError(f"CPU {cpu} has {len(found)} NUMA nodes")
    return found[0]


def near_numa_nodes(node: int, sysfs: str = SYSFS) -> tuple[int, ...]:
    """Return the node, and the nodes at the smallest distance to it unless they are known to be of another socket."""
    folder = Path(sysfs) / "devices/system/node"
    try:
        distances = [int(text) for text in (folder / f"node{node}/distance").read_text(encoding="ascii").split()]
        present = sorted(int(match[1]) for item in folder.iterdir() if (match := _NODE.fullmatch(item.name)))
    except (OSError, ValueError):
        return (node,)
    # The row has a column for each node that is present.
    others = {other: distance for other, distance in zip(present, distances, strict=False) if other != node}
    if len(present) != len(distances) or not others:
        return (node,)
    nearest = min(others.values())
    socket = _socket(folder / f"node{node}", sysfs)
    near = (other for other, distance in others.items() if distance == nearest)
    return (node, *(other for other in near if _may_share(socket, _socket(folder / f"node{other}", sysfs))))


def _may_share(one: str, other: str) -> bool:
    return not (one and other) or one == other


def _socket(node: Path, sysfs: str) -> str:
    """Return the physical package of the node's first CPU; empty if it is not known."""
    try:
        cpu = _FIRST_CPU.match((node / "cpulist").read_text(encoding="ascii"))
        if cpu is None:
            return ""
        path = Path(sysfs) / f"devices/system/cpu/cpu{cpu[0]}/topology/physical_package_id"
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


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
