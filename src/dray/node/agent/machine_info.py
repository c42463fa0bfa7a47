"""Reads the properties of the machine for the Node object."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

from dray.node.agent.node_object import MachineInfo
from dray.node.network.links import is_link_name

# Of Linux: asks for the address of an interface.
_SIOCGIFADDR: Final = 0x8915
_INTERFACE_NAME_MAX: Final = 15


def read_machine(root: Path, hostname: str = "", address: str = "") -> MachineInfo:
    """Return the properties of this machine."""
    memory = _memory()
    disk = shutil.disk_usage(root if root.exists() else "/")
    release = _release()
    return MachineInfo(
        hostname=hostname or socket.gethostname().lower(),
        addresses=(address or _address(),),
        architecture=platform.machine(),
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=memory.get("MemTotal", 0),
        disk_bytes=disk.total,
        kernel=platform.release(),
        os_image=release.get("PRETTY_NAME", "Linux"),
        machine_id=_text("/etc/machine-id"),
        system_uuid=_text("/sys/class/dmi/id/product_uuid") or _text("/etc/machine-id"),
        boot_id=_text("/proc/sys/kernel/random/boot_id"),
        swap_bytes=memory.get("SwapTotal", 0),
    )


def _memory() -> dict[str, int]:
    found = {}
    for line in _text("/proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words:
            found[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return found


def _release() -> dict[str, str]:
    found = {}
    for line in _text("/etc/os-release").splitlines():
        name, _, value = line.partition("=")
        found[name] = value.strip('"')
    return found


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _address() -> str:
    """Return the source address of outgoing packets; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            # There is no default route.
            return _interface_address(probe) or "127.0.0.1"


def _interface_address(probe: socket.socket) -> str:
    """Return the address of the first interface that leads to other machines; empty if there is none."""
    for _, name in socket.if_nameindex():
        if is_link_name(name):
            # Only Pods of this machine are reached by it, and it may be there only since the last start.
            continue
        request = struct.pack("256s", name.encode()[:_INTERFACE_NAME_MAX])
        with suppress(OSError):
            address = socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24])
            if not address.startswith("127."):
                return address
    return ""
