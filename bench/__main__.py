"""`python -m bench [--only PATTERN] [--quick]`: runs the benchmarks, prints a table, writes the results."""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import os
import sys
import time
from collections.abc import Callable, Iterator

from bench import (
    allocator,
    classic,
    dashboard,
    fairness,
    long_requests,
    node,
    plan,
    rows,
    scheduler,
    server,
    sharing,
    store,
    streams,
    wake_up,
    workloads,
)
from bench.openb import benchmark
from bench.rows import Row, Target
from bench.server import Size


def store_rows(_size: Size) -> Iterator[Row]:
    """Measure the stores without the API server."""
    for found in asyncio.run(store.rows()):
        yield Row(f"store: {found['name']}", found["value"], found["unit"], found["parameters"])


def allocator_rows(_size: Size) -> Iterator[Row]:
    """Measure the allocator without a scheduler."""
    targets = {
        "one device, fits": Target(100),
        "shared devices, first time": Target(25),
        "shared devices, asked again": Target(3),
    }
    for found in allocator.rows():
        name = found["name"]
        yield Row(f"allocator: {name}", found["value"], found["unit"], found["parameters"], targets.get(name))


def fairness_rows(size: Size) -> Iterator[Row]:
    """Measure the requests of one user beside another's many connections."""
    return fairness.rows(fairness.QUICK if size is server.QUICK else fairness.FULL)


def long_request_rows(_size: Size) -> Iterator[Row]:
    """Measure the requests that take the longest, and those of others beside them."""
    return long_requests.rows()


def node_rows(size: Size) -> Iterator[Row]:
    """Measure the node agent: Pods with devices, PodResources, containers, simulated nodes."""
    return node.rows(node.QUICK if size is server.QUICK else node.FULL)


def scheduler_rows(size: Size) -> Iterator[Row]:
    """Measure the scheduling of Pods in a whole cluster, and how pending ones are woken."""
    yield from scheduler.rows(workloads.QUICK if size is server.QUICK else workloads.DEFAULT)
    yield from wake_up.rows(wake_up.QUICK if size is server.QUICK else wake_up.FULL)


def openb_rows(size: Size) -> Iterator[Row]:
    """Measure the placement of the Pods of a production trace."""
    return benchmark.rows(quick=size is server.QUICK)


def classic_rows(size: Size) -> Iterator[Row]:
    """Measure the scheduling of Pods whose claims a classic driver allocates."""
    return classic.rows(classic.QUICK if size is server.QUICK else classic.FULL)


def sharing_rows(_size: Size) -> Iterator[Row]:
    """Measure the scheduling of Pods that share one claim."""
    return sharing.rows()


def plan_rows(size: Size) -> Iterator[Row]:
    """Measure `dray plan` and the fragmentation of `dray top`."""
    return plan.rows(plan.QUICK if size is server.QUICK else plan.FULL)


def stream_rows(_size: Size) -> Iterator[Row]:
    """Measure exec, and the API beside many sessions."""
    return streams.rows()


def dashboard_rows(size: Size) -> Iterator[Row]:
    """Measure the dashboard in a browser."""
    return dashboard.rows(dashboard.QUICK if size is server.QUICK else dashboard.FULL)


BENCHMARKS: dict[str, Callable[[Size], Iterator[Row]]] = {
    **server.BENCHMARKS,
    "fairness": fairness_rows,
    "long requests": long_request_rows,
    "store": store_rows,
    "allocator": allocator_rows,
    "scheduler": scheduler_rows,
    "openb": openb_rows,
    "classic": classic_rows,
    "sharing": sharing_rows,
    "node": node_rows,
    "streams": stream_rows,
    "plan": plan_rows,
    "dashboard": dashboard_rows,
}


def matching(pattern: str) -> list[str]:
    """Return the names of matching benchmarks; a pattern without wildcards may be part of a name."""
    glob = pattern if any(char in pattern for char in "*?[") else f"*{pattern}*"
    return [name for name in BENCHMARKS if fnmatch.fnmatch(name, glob)]


def main() -> int:
    """Run the selected benchmarks; return 2 if none matches, 0 even if targets are missed."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--only", default="", metavar="PATTERN", help=f"select benchmarks: {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="use smaller sizes")
    arguments = parser.parse_args()
    names = matching(arguments.only)
    if not names:
        sys.stderr.write(f"no benchmark matches {arguments.only!r}; available: {', '.join(BENCHMARKS)}\n")
        return 2
    size = server.QUICK if arguments.quick else server.FULL
    # Servers start with compiled files, as those of an installed package do.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    started = time.monotonic()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {'quick' if arguments.quick else 'full'} sizes")
    print(f"a loop of a million additions takes {rows.loop_milliseconds():.0f} ms of processor time")
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
