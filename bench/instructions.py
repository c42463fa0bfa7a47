"""Counts the machine instructions of a scheduler workload for each Pod.

`python -m bench.instructions WORKLOAD [--pods 100 400]` runs the workload under Valgrind with two numbers of Pods and
prints the difference for each Pod beyond the first number, so that the start does not count. Processor time depends on
what else a machine does; this count hardly does, so that two commits can be compared.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import subprocess
import sys
from typing import Final

import uvloop

from bench import scheduler, workloads

_COUNT: Final = re.compile(r"I\s+refs:\s+([\d,]+)")
_SECONDS_MAX: Final = 3600


def run(name: str, pods: int) -> None:
    """Run a workload with so many Pods in this process."""
    workload = workloads.with_pods(workloads.BY_NAME[name], pods)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        # Huge pages are asked for every few seconds, so that the count would depend on how long the run takes.
        runner.run(scheduler.measure(workload, uses_huge_pages=False))


def start(valgrind: str, name: str, pods: int) -> subprocess.Popen[str]:
    """Start a process that runs the workload and counts."""
    counting = [valgrind, "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    command = [*counting, sys.executable, "-m", "bench.instructions", name, "--run", str(pods)]
    # Hashes of text decide on the order of sets.
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def counted(process: subprocess.Popen[str]) -> int:
    """Return the instructions of a process after its end."""
    _, report = process.communicate(timeout=_SECONDS_MAX)
    found = _COUNT.search(report)
    if process.returncode or found is None:
        raise SystemExit(f"the workload failed:\n{report}")
    return int(found[1].replace(",", ""))


def main() -> None:
    """Count for the selected workload."""
    parser = argparse.ArgumentParser(prog="bench.instructions", description=__doc__)
    parser.add_argument("workload", choices=workloads.BY_NAME, metavar="WORKLOAD", help="the whole name of a workload")
    parser.add_argument("--pods", type=int, nargs=2, default=(100, 400), metavar="N", help="the two numbers of Pods")
    parser.add_argument("--run", type=int, metavar="N", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run is not None:
        run(given.workload, given.run)
        return
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise SystemExit("Valgrind is not installed; on Debian: apt-get install valgrind")
    few, many = (workloads.with_pods(workloads.BY_NAME[given.workload], pods).pods for pods in given.pods)
    if few >= many:
        parser.error("the first number of Pods must be the smaller one")
    first, second = start(valgrind, given.workload, few), start(valgrind, given.workload, many)
    difference = -counted(first) + counted(second)
    print(f"{given.workload}: {difference / (many - few) / 1000:,.0f} thousand instructions a Pod")


if __name__ == "__main__":
    main()
