"""`python -m bench.openb LIST [--seeds 42,43] [--engine core|stack]`: places a list of the trace."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Sequence
from typing import Final

import uvloop

from bench.openb.published import PUBLISHED
from bench.openb.run import Result, run
from bench.openb.trace import TraceMissingError, read_nodes, read_pods
from bench.rows import progress
from dray.scheduler.named_profiles import NAMED_PROFILES, SPREAD

SEEDS: Final = tuple(range(42, 52))
MARKS: Final = (100, 130)


def _show(name: str, results: Sequence[Result]) -> None:
    for mark in MARKS:
        values = [result.allocated_at(mark) for result in results]
        deviation = f" (deviation {statistics.pstdev(values):.2f})" if len(values) > 1 else ""
        peers = "  ".join(f"{peer} {at[mark]:.2f}" for peer, at in PUBLISHED.get(name, {}).items())
        print(f"{name}, {mark} % arrived: {statistics.fmean(values):.2f} % of the GPUs allocated{deviation}   {peers}")
    pods, seconds = sum(result.pods for result in results), sum(result.seconds for result in results)
    processor = sum(result.processor_seconds for result in results)
    placed = sum(result.placed for result in results)
    print(
        f"{name}: {placed:,} of {pods:,} Pods placed in {len(results)} run(s), {pods / seconds:,.0f} pods/s, "
        f"{1000 * processor / pods:.2f} ms of CPU a Pod"
    )


def main() -> int:
    """Run the list for each seed, and print the means beside the published policies."""
    parser = argparse.ArgumentParser(prog="bench.openb", description=__doc__)
    parser.add_argument("list", help="for example default, gpuspec33, multigpu50, gpushare100, cpu250")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), help="comma-separated")
    parser.add_argument("--engine", choices=("core", "stack"), default="core", help="scheduler code alone or a cluster")
    parser.add_argument("--profile", choices=sorted(NAMED_PROFILES), default=SPREAD, help="of the scheduler")
    arguments = parser.parse_args()
    profile = NAMED_PROFILES[arguments.profile]
    try:
        nodes, pods = read_nodes(), read_pods(arguments.list)
    except TraceMissingError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    results: list[Result] = []
    for seed in map(int, arguments.seeds.split(",")):
        progress(f"{arguments.list}, seed {seed}")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            results.append(runner.run(run(nodes, pods, seed, engine_name=arguments.engine, profile=profile)))
        progress("")
    _show(arguments.list, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
