"""`python -m bench [--only PATTERN] [--quick]`: runs the benchmarks, prints a table, writes the results."""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import os
import sys
import time
from collections.abc import Callable, Iterator

from bench import allocator, classic, node, rows, scheduler, server, store, workloads
from bench.rows import Row, Target
from bench.server import Size


def store_rows(_size: Size) -> Iterator[Row]:
    """The stores alone, below the API."""
    for found in asyncio.run(store.rows()):
        yield Row(f"store: {found['name']}", found["value"], found["unit"], found["parameters"])


def allocator_rows(_size: Size) -> Iterator[Row]:
    """The allocator alone, on one node after the other."""
    targets = {"one device, fits": Target(100)}
    for found in allocator.rows():
        name = found["name"]
        yield Row(f"allocator: {name}", found["value"], found["unit"], found["parameters"], targets.get(name))


def node_rows(size: Size) -> Iterator[Row]:
    """The node agent: Pods with devices, PodResources, containers, simulated nodes."""
    return node.rows(node.QUICK if size is server.QUICK else node.FULL)


def scheduler_rows(size: Size) -> Iterator[Row]:
    """Pods on their way through a whole cluster."""
    return scheduler.rows(workloads.QUICK if size is server.QUICK else workloads.DEFAULT)


def classic_rows(size: Size) -> Iterator[Row]:
    """Pods whose claims a classic driver allocates."""
    return classic.rows(classic.QUICK if size is server.QUICK else classic.FULL)


BENCHMARKS: dict[str, Callable[[Size], Iterator[Row]]] = {
    **server.BENCHMARKS,
    "store": store_rows,
    "allocator": allocator_rows,
    "scheduler": scheduler_rows,
    "classic": classic_rows,
    "node": node_rows,
}


def chosen(pattern: str) -> list[str]:
    """The benchmarks whose name matches; a pattern without wildcards may be part of a name."""
    wanted = pattern if any(sign in pattern for sign in "*?[") else f"*{pattern}*"
    return [name for name in BENCHMARKS if fnmatch.fnmatch(name, wanted)]


def main() -> int:
    """Run what was asked for; the exit code says whether anything ran, not whether targets were met."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--only", default="", metavar="PATTERN", help=f"one or some of: {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, for a look")
    arguments = parser.parse_args()
    names = chosen(arguments.only)
    if not names:
        sys.stderr.write(f"no benchmark matches {arguments.only!r}; there are: {', '.join(BENCHMARKS)}\n")
        return 2
    size = server.QUICK if arguments.quick else server.FULL
    started = time.monotonic()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {'quick' if arguments.quick else 'full'} sizes")
    found: list[Row] = []
    for name in names:
        for row in BENCHMARKS[name](size):
            rows.progress("")
            rows.show(row)
            found.append(row)
    rows.write(found)
    missed = [row for row in found if row.target is not None and not row.target.met(row.value)]
    print(f"{len(found)} rows in {time.monotonic() - started:.0f} s, {len(missed)} targets missed; see {rows.RESULTS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
