"""CPU time and memory of containers and of the machine, from the texts of /proc. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_NANOSECONDS = 1_000_000_000
# Fields of /proc/<pid>/stat after the name of the program, in which there may be spaces.
_OWN_TIMES = slice(11, 13)
_CHILD_TIMES = slice(13, 15)
_RESIDENT_PAGES = 21
# Fields of the line of all CPUs in /proc/stat; guest times are part of user and nice.
_IDLE_TIMES = (3, 4)
_TIMES = 8


@dataclass(frozen=True, slots=True)
class Usage:
    """What something has used so far: CPU time, and the memory that it uses now."""

    cpu_nanoseconds: int
    memory_bytes: int
    # Without the pages of files that the kernel would drop first.
    working_set_bytes: int
    rss_bytes: int


def total(parts: Iterable[Usage]) -> Usage:
    """Return the sum."""
    cpu = memory = working_set = rss = 0
    for part in parts:
        cpu += part.cpu_nanoseconds
        memory += part.memory_bytes
        working_set += part.working_set_bytes
        rss += part.rss_bytes
    return Usage(cpu, memory, working_set, rss)


def parse_counters(text: str) -> dict[str, int]:
    """Return the numbers of lines such as `MemTotal: 16 kB` in bytes."""
    found = {}
    for line in text.splitlines():
        name, *words = line.split()
        if words and words[0].isdigit():
            found[name.rstrip(":")] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return found


def _group_usage(cpu: int, memory: int, inactive_file: int, rss: int) -> Usage:
    return Usage(cpu, memory, max(memory - inactive_file, 0), rss)


@dataclass(frozen=True, slots=True)
class ProcessTimes:
    """The clock ticks of a process and of its children that have ended, and its memory in pages."""

    own: int
    ended_children: int
    resident_pages: int


def parse_process(stat: str) -> ProcessTimes:
    """Return what /proc/<pid>/stat says; raises ValueError or IndexError for other texts."""
    fields = stat.rpartition(")")[2].split()
    return ProcessTimes(
        sum(map(int, fields[_OWN_TIMES])), sum(map(int, fields[_CHILD_TIMES])), int(fields[_RESIDENT_PAGES])
    )


def processes_usage(
    processes: Iterable[ProcessTimes], ended_ticks: int, *, ticks_per_second: int, page_bytes: int
) -> Usage:
    """Return the usage of processes without a cgroup; `ended_ticks` is the time of those that their shim waited for.

    Nothing is known of the pages of files that they use, so that all memory is that of the processes themselves.
    """
    ticks, pages = ended_ticks, 0
    for process in processes:
        ticks += process.own + process.ended_children
        pages += process.resident_pages
    memory = pages * page_bytes
    return Usage(ticks * _NANOSECONDS // ticks_per_second, memory, memory, memory)


@dataclass(frozen=True, slots=True)
class MachineUsage:
    """The usage of the whole machine."""

    usage: Usage
    memory_total_bytes: int

    @property
    def available_bytes(self) -> int:
        """The memory outside the working set."""
        return max(self.memory_total_bytes - self.usage.working_set_bytes, 0)


def machine_usage(stat: str, meminfo: str, *, ticks_per_second: int) -> MachineUsage:
    """Return the usage of the machine from /proc/stat and /proc/meminfo; raises ValueError for other texts."""
    name, *times = stat.partition("\n")[0].split()[: _TIMES + 1]
    if name != "cpu":
        raise ValueError("/proc/stat does not begin with the times of all CPUs")
    busy = sum(int(time) for position, time in enumerate(times) if position not in _IDLE_TIMES)
    memory: Mapping[str, int] = parse_counters(meminfo)
    used = max(memory.get("MemTotal", 0) - memory.get("MemFree", 0), 0)
    usage = _group_usage(
        busy * _NANOSECONDS // ticks_per_second, used, memory.get("Inactive(file)", 0), memory.get("AnonPages", 0)
    )
    return MachineUsage(usage, memory.get("MemTotal", 0))
