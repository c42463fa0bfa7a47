"""Usage from the texts of /proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from dray.node.runtimes.usage import Usage, machine_usage, parse_process, processes_usage, total
from dray.node.runtimes.usage_reader import read_machine_usage, read_processes

STAT = "{pid} ({name}) S {parent} 1 1 0 -1 4194560 500 900 0 0 {user} {system} {ended} 0 20 0 1 0 100 5000000 {pages} 0"


def write(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


@pytest.mark.behaviour("EX-48")
def test_processes_below_a_shim_with_those_that_have_ended(tmp_path: Path) -> None:
    def process(pid: int, parent: int, children: str, *, ended: int = 0, pages: int = 0) -> None:
        stat = STAT.format(pid=pid, name="a b) c", parent=parent, user=30, system=10, ended=ended, pages=pages)
        write(tmp_path, {f"{pid}/stat": stat, f"{pid}/task/{pid}/children": children})

    process(10, 1, "11", ended=200, pages=99)
    process(11, 10, "12", ended=20, pages=2)
    process(12, 11, "", pages=3)
    usage = read_processes(11, tmp_path)
    assert usage is not None
    # The shim's own time and memory are not the container's.
    ticks = 40 + 20 + 40 + 200
    assert usage.cpu_nanoseconds == ticks * 10_000_000
    assert usage.memory_bytes == usage.working_set_bytes == 5 * 4096
    # Without a shim, only what is below the container's own process counts.
    process(11, 1, "12", ended=20, pages=2)
    usage = read_processes(11, tmp_path)
    assert usage is not None
    assert usage.cpu_nanoseconds == (40 + 20 + 40) * 10_000_000
    assert read_processes(13, tmp_path) is None


def test_texts_of_another_form_are_errors() -> None:
    with pytest.raises(IndexError):
        parse_process("1 (a) S 1 2 3")
    with pytest.raises(ValueError, match="times of all CPUs"):
        machine_usage("intr 1 2", "", ticks_per_second=100)


@pytest.mark.behaviour("EX-48")
def test_the_machine_without_idle_times_and_without_file_pages() -> None:
    found = machine_usage(
        "cpu  100 20 30 9999 8888 1 2 3 50 0\ncpu0 1 2\n",
        "MemTotal: 1000 kB\nMemFree: 300 kB\nInactive(file): 100 kB\nAnonPages: 200 kB\nHugePages_Total: 7\n",
        ticks_per_second=100,
    )
    assert found.usage == Usage(156 * 10_000_000, 700 * 1024, 600 * 1024, 200 * 1024)
    assert found.available_bytes == 400 * 1024


def test_the_machine_itself_can_be_read() -> None:
    found = read_machine_usage()
    assert 0 < found.usage.working_set_bytes < found.memory_total_bytes
    assert found.usage.cpu_nanoseconds > 0


def test_sums() -> None:
    assert total([Usage(1, 2, 3, 4), Usage(10, 20, 30, 40)]) == Usage(11, 22, 33, 44)
    assert processes_usage([], 3, ticks_per_second=1, page_bytes=1) == Usage(3_000_000_000, 0, 0, 0)
