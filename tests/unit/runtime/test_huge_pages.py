"""Which memory is to have huge pages, and that a real kernel gives them."""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
from pathlib import Path
from typing import Any

import pytest

from dray.runtime import huge_pages
from dray.runtime.huge_pages import (
    CHANGE_BYTES_MIN,
    COLLAPSES_MAX,
    FAILURES_MAX,
    HUGE_PAGE_BYTES,
    ROUNDS_SKIPPED_MAX,
    HugePageAdvice,
    Mapping,
    heap_mappings,
)
from dray.runtime.tasks import TaskGroup

MIB = 1 << 20

SMAPS = """\
5646b6595000-5646b6596000 r--p 00000000 fe:00 26723                      /usr/bin/python3
Size:                  4 kB
Rss:                   4 kB
AnonHugePages:         0 kB
VmFlags: rd mr mw me
5646b7000000-5646b7400000 rw-p 00000000 00:00 0                          [heap]
Size:               4096 kB
Rss:                4000 kB
AnonHugePages:      2048 kB
THPeligible:           1
VmFlags: rd wr mr mw me ac
7f0000000000-7f0000800000 rw-p 00000000 00:00 0
Size:               8192 kB
Rss:                8192 kB
AnonHugePages:         0 kB
7f0000800000-7f0000a00000 rw-s 00000000 00:00 0
Rss:                2048 kB
7f0000a00000-7f0000c00000 rw-p 00000000 fe:00 5                          /a file:Rss
Rss:                2048 kB
7ffe00000000-7ffe00021000 rw-p 00000000 00:00 0                          [stack]
Rss:                 132 kB
"""


def test_private_writable_memory_without_a_file_is_found() -> None:
    assert list(heap_mappings(SMAPS)) == [
        Mapping(0x5646B7000000, 0x5646B7400000, 4000 * 1024, 2 * MIB),
        Mapping(0x7F0000000000, 0x7F0000800000, 8 * MIB, 0),
    ]


def test_a_line_break_in_the_name_of_a_file_is_no_end_of_a_line() -> None:
    name = "/a\u2028b\f7f0000000000-7f0000800000 rw-p 00000000 00:00 0"
    assert not list(heap_mappings(f"7f0000a00000-7f0000c00000 rw-p 00000000 fe:00 5  {name}\nRss:  8192 kB\n"))


def test_names_of_files_may_be_in_any_encoding(tmp_path: Path) -> None:
    if not huge_pages._MAPPINGS.exists():
        pytest.skip("the system has no /proc")
    path = os.fsencode(tmp_path) + b"/\xff"
    with open(path, "w+b") as file:
        file.truncate(4096)
        with mmap.mmap(file.fileno(), 4096):
            assert "\ufffd" in huge_pages.read_mappings()


async def test_a_failure_does_not_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without a file descriptor to spare; it is tried again."""
    tried = asyncio.Event()
    failures: list[Exception] = [OSError("Too many open files"), RuntimeError("can't start new thread")]

    async def to_thread(_function: Any) -> None:
        if failures:
            raise failures.pop()
        tried.set()

    monkeypatch.setattr(huge_pages, "is_supported", lambda: True)
    monkeypatch.setattr(huge_pages, "SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    async with TaskGroup("test") as group:
        group.spawn(huge_pages.run(), "huge pages")
        await asyncio.wait_for(tried.wait(), 10)


@pytest.mark.parametrize(
    ("mapping", "gains"),
    [
        (Mapping(0, 8 * MIB, 8 * MIB, 0), True),
        (Mapping(0, 8 * MIB, 8 * MIB, 6 * MIB), True),
        (Mapping(0, 8 * MIB, 8 * MIB, 8 * MIB), False),
        # The stack of a thread: nearly all of it was never used.
        (Mapping(0, 8 * MIB, MIB, 0), False),
        # No whole huge page lies within.
        (Mapping(MIB, 3 * MIB, 2 * MIB, 0), False),
        (Mapping(MIB, 5 * MIB, 4 * MIB, 2 * MIB), False),
    ],
)
def test_memory_gains_that_is_used_and_not_huge(mapping: Mapping, gains: bool) -> None:
    assert mapping.gains is gains


@pytest.mark.parametrize(
    ("start", "end", "addresses"),
    [
        (0, 4 * MIB, [0, 2 * MIB]),
        (MIB, 5 * MIB, [2 * MIB]),
        (1, 6 * MIB - 1, [2 * MIB]),
        (MIB, 3 * MIB, []),
        (4096, 8192, []),
    ],
)
def test_huge_pages_are_aligned(start: int, end: int, addresses: list[int]) -> None:
    assert list(Mapping(start, end, 0, 0).huge_pages) == addresses


class Kernel:
    """Records which huge pages it was asked for."""

    def __init__(self, *, succeeds: bool) -> None:
        self._succeeds = succeeds
        self.advised: list[int] = []
        self.collapsed: list[int] = []

    def madvise(self, start: int, length: int, advice: int) -> bool:
        if advice == huge_pages._MADV_HUGEPAGE:
            self.advised.append(length)
            return True
        assert length == HUGE_PAGE_BYTES
        self.collapsed.append(start)
        return self._succeeds


def test_a_round_is_due_after_a_change_or_a_while() -> None:
    advice = HugePageAdvice(Kernel(succeeds=True).madvise)
    size = 10 * CHANGE_BYTES_MIN
    assert advice.is_due(size)
    assert not advice.is_due(size + CHANGE_BYTES_MIN - 1)
    assert advice.is_due(size + CHANGE_BYTES_MIN)
    assert advice.is_due(size)
    assert [advice.is_due(size) for _ in range(ROUNDS_SKIPPED_MAX)] == [False] * ROUNDS_SKIPPED_MAX
    assert advice.is_due(size)


def test_the_resident_memory_is_read() -> None:
    if not huge_pages.is_supported():
        pytest.skip("the kernel gives no huge pages")
    # What earlier tests have left must not be released in between.
    gc.collect()
    before = huge_pages.resident_bytes()
    # Written to: pages of zeros are not resident.
    memory = bytearray(b"x") * (64 * MIB)
    assert huge_pages.resident_bytes() - before > len(memory) // 2


def test_a_round_is_bounded_and_the_next_one_goes_on() -> None:
    kernel, pages = Kernel(succeeds=True), COLLAPSES_MAX + 10
    advice = HugePageAdvice(kernel.madvise)
    mapping = Mapping(0, pages * HUGE_PAGE_BYTES, pages * HUGE_PAGE_BYTES, 0)
    advice.advise([mapping])
    assert kernel.collapsed == list(mapping.huge_pages)[:COLLAPSES_MAX]
    advice.advise([mapping])
    assert set(kernel.collapsed) == set(mapping.huge_pages)


def test_a_round_ends_after_some_failures_but_all_memory_is_advised() -> None:
    kernel = Kernel(succeeds=False)
    mappings = [Mapping(start * MIB, (start + 32) * MIB, 32 * MIB, 0) for start in (0, 64)]
    HugePageAdvice(kernel.madvise).advise(mappings)
    assert kernel.advised == [32 * MIB] * 2
    assert len(kernel.collapsed) == FAILURES_MAX


def test_the_kernel_gives_huge_pages() -> None:
    if not huge_pages.is_supported():
        pytest.skip("the kernel gives no huge pages")
    with mmap.mmap(-1, 16 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.write(b"x" * (16 * MIB))
        advice = HugePageAdvice(huge_pages._system_call())
        advice.give()
        mappings = heap_mappings(huge_pages.read_mappings())
        assert any(mapping.huge for mapping in mappings), "MADV_COLLAPSE needs Linux 6.1"
        memory.seek(0)
        assert memory.read() == b"x" * (16 * MIB)
