"""Asks Linux to back the memory of this process with transparent huge pages.

Each Pod touches objects all over a heap of hundreds of megabytes. With pages of 4 KiB, the processor has to translate
addresses again and again, which is slow in a virtual machine. The setting `never` in
`/sys/kernel/mm/transparent_hugepage/enabled` turns it off.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

SECONDS_BETWEEN: Final = 2.0
# Parsing the mappings takes some milliseconds. It is done only if the resident memory has changed by this much, and now
# and then, since memory may have been freed and allocated again.
CHANGE_BYTES_MIN: Final = 8 << 20
ROUNDS_SKIPPED_MAX: Final = 30
HUGE_PAGE_BYTES: Final = 2 << 20
# A failed attempt may have moved pages in vain, so a round ends after some, or after half a gigabyte.
FAILURES_MAX: Final = 8
COLLAPSES_MAX: Final = 256
# Sparse mappings, such as the stacks of threads, would take far more memory with huge pages.
_RESIDENT_MIN: Final = 7 / 8
_SETTING: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MAPPINGS: Final = Path("/proc/self/smaps")
_SIZES: Final = Path("/proc/self/statm")
# Of the kernel's interface; not in Python's `mmap` for memory that it did not map itself.
_MADV_HUGEPAGE: Final = 14
_MADV_COLLAPSE: Final = 25


class Mapping(NamedTuple):
    """A part of the address space, in bytes."""

    start: int
    end: int
    resident: int
    huge: int

    @property
    def huge_pages(self) -> range:
        """Return the addresses of the huge pages that lie within."""
        first = -(-self.start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        return range(first, self.end - HUGE_PAGE_BYTES + 1, HUGE_PAGE_BYTES)

    @property
    def gains(self) -> bool:
        """Return whether most of it is in memory, and some of that is in small pages that could be huge ones."""
        is_dense = self.resident >= (self.end - self.start) * _RESIDENT_MIN
        return is_dense and self.huge < len(self.huge_pages) * HUGE_PAGE_BYTES


async def run() -> None:
    """Ask for them whenever the process has grown."""
    if not is_supported():
        return
    advice = HugePageAdvice(_system_call())
    while True:
        # A process that ends soon does not pay for it.
        await asyncio.sleep(SECONDS_BETWEEN)
        # Without a file descriptor or a thread to spare, the process must go on without more huge pages.
        with suppress(OSError, RuntimeError):
            if advice.is_due(resident_bytes()):
                await asyncio.to_thread(advice.give)


def is_supported() -> bool:
    """Return whether the kernel gives huge pages to a process that asks for them."""
    if sys.platform != "linux":
        return False
    try:
        return "[never]" not in _SETTING.read_text() and _MAPPINGS.exists()
    except OSError:
        return False


def resident_bytes() -> int:
    """Return how much memory this process has."""
    return int(_SIZES.read_text().split()[1]) * mmap.PAGESIZE


def read_mappings() -> str:
    """Return what the kernel says of the memory of this process; names of files may be in any encoding."""
    return _MAPPINGS.read_text(errors="replace")


def heap_mappings(smaps: str) -> Iterator[Mapping]:
    """Yield the private, writable memory without a file, as `/proc/PID/smaps` lists it."""
    head: list[str] = []
    sizes: dict[str, int] = {}
    # Not `splitlines`: in the names of files, the kernel escapes no other line breaks.
    for line in [*smaps.split("\n"), "0-0 ---p"]:
        name, separator, value = line.partition(":")
        if separator and " " not in name:
            number = value.removesuffix(" kB").strip()
            sizes[name] = int(number) * 1024 if number.isdecimal() else 0
            continue
        if _is_heap(head):
            start, _, end = head[0].partition("-")
            yield Mapping(int(start, 16), int(end, 16), sizes.get("Rss", 0), sizes.get("AnonHugePages", 0))
        head, sizes = line.split(), {}


def _is_heap(head: list[str]) -> bool:
    """Return whether it has the right permissions, and no name but that of the heap; given the mapping's first line."""
    permissions, name = head[1:2], head[5:]
    return permissions == ["rw-p"] and name in ([], ["[heap]"])


class HugePageAdvice:
    """What the kernel is asked for; `madvise` is its system call and returns whether that was possible."""

    def __init__(self, madvise: Callable[[int, int, int], bool]) -> None:
        self._madvise = madvise
        # Where the next round goes on.
        self._next = 0
        # The resident memory in the last round, and how many have been skipped since.
        self._resident = 0
        self._skipped = 0

    def is_due(self, resident: int) -> bool:
        """Return whether it is time for another round, and count it."""
        if abs(resident - self._resident) < CHANGE_BYTES_MIN and self._skipped < ROUNDS_SKIPPED_MAX:
            self._skipped += 1
            return False
        self._resident, self._skipped = resident, 0
        return True

    def give(self) -> None:
        """Ask for huge pages for all memory that gains from them."""
        self.advise([mapping for mapping in heap_mappings(read_mappings()) if mapping.gains])

    def advise(self, mappings: list[Mapping]) -> None:
        """Ask for huge pages for these mappings, which are in the order of their addresses."""
        for mapping in mappings:
            self._madvise(mapping.start, mapping.end - mapping.start, _MADV_HUGEPAGE)
        addresses = [address for mapping in mappings for address in mapping.huge_pages]
        position = bisect_left(addresses, self._next)
        failures = 0
        for address in (addresses[position:] + addresses[:position])[:COLLAPSES_MAX]:
            self._next = address + HUGE_PAGE_BYTES
            # Linux before 6.1 cannot do it at once, but does it in the background.
            failures += not self._madvise(address, HUGE_PAGE_BYTES, _MADV_COLLAPSE)
            if failures >= FAILURES_MAX:
                return


def _system_call() -> Callable[[int, int, int], bool]:
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def madvise(start: int, length: int, advice: int) -> bool:
        return bool(function(start, length, advice) == 0)

    return madvise
