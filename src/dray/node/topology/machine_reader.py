"""Reads the NUMA topology of a machine from /sys, or from a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from dray.node.topology.machine import CPU, MEMORY, Machine, NUMANode, TopologyError, checked, machine_of, parse_cpus

_SYS: Final = "/sys"
_KIBIBYTES: Final = re.compile(r"MemTotal:\s*([0-9]+) kB")
_PAGES: Final = re.compile(r"hugepages-([0-9]+)kB")
_KIBI: Final = 1024


def read_file(path: str) -> Machine:
    """Return the machine that a YAML file describes; raises `TopologyError`."""
    # Rarely used, and the library takes a megabyte.
    import yaml

    try:
        return machine_of(yaml.safe_load(Path(path).read_text()))
    except (OSError, yaml.YAMLError, TopologyError) as error:
        raise TopologyError(f"{path}: {error}") from error


def read_machine(sys: str = _SYS) -> Machine:
    """Return this machine; without NUMA it has a single node."""
    online = _read(Path(sys) / "devices/system/cpu/online")
    folders = sorted(Path(sys, "devices/system/node").glob("node[0-9]*"), key=_number)
    if not folders:
        cpus = tuple(_cpu(sys, cpu, 0) for cpu in sorted(parse_cpus(online or "0")))
        return Machine(cpus, (NUMANode(0, {}),))
    usable = parse_cpus(online)
    cpus = tuple(
        _cpu(sys, cpu, _number(folder))
        for folder in folders
        for cpu in sorted(parse_cpus(_read(folder / "cpulist")) & usable)
    )
    nodes = tuple(NUMANode(_number(folder), _memory(folder)) for folder in folders)
    return checked(Machine(tuple(sorted(cpus, key=lambda item: item.id)), nodes))


def _cpu(sys: str, cpu: int, node: int) -> CPU:
    folder = Path(sys, f"devices/system/cpu/cpu{cpu}/topology")
    siblings = parse_cpus(_read(folder / "thread_siblings_list")) or {cpu}
    socket = _read(folder / "physical_package_id")
    return CPU(cpu, min(siblings), int(socket) if socket.isdigit() else node, node)


def _memory(folder: Path) -> dict[str, int]:
    found = _KIBIBYTES.search(_read(folder / "meminfo"))
    memory = {MEMORY: int(found.group(1)) * _KIBI if found else 0}
    for pages in sorted(folder.glob("hugepages/hugepages-*")):
        size = _PAGES.fullmatch(pages.name)
        if size:
            kibibytes = int(size.group(1))
            total = int(_read(pages / "nr_hugepages") or 0) * kibibytes * _KIBI
            memory[f"hugepages-{_size(kibibytes)}"] = total
    return memory


def _size(kibibytes: int) -> str:
    for suffix, factor in (("Gi", _KIBI * _KIBI), ("Mi", _KIBI)):
        if kibibytes % factor == 0:
            return f"{kibibytes // factor}{suffix}"
    return f"{kibibytes}Ki"


def _number(folder: Path) -> int:
    return int(folder.name.removeprefix("node"))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
