"""`python -m bench.openb LIST [--seeds 42..51] [--profile pack,spread] [--plot FILE]`: places a list of the trace."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvloop

from bench.openb.engines import ENGINES
from bench.openb.kept import KeptResults
from bench.openb.plot import Curve, draw, mean_curve
from bench.openb.published import PUBLISHED
from bench.openb.run import ALL_PERCENT, Result, run
from bench.openb.trace import TraceMissingError, arrivals, arrived, milli_gpus, read_nodes, read_pods
from bench.rows import progress
from dray.scheduler.config import ConfigError
from dray.scheduler.config_loader import profile_named
from dray.scheduler.named_profiles import NAMED_PROFILES, SPREAD

MARKS: Final = (100, 130)


def _show(name: str, profile: str, results: Sequence[Result]) -> None:
    for mark in MARKS:
        values = [result.allocated_at(mark) for result in results]
        deviation = f" (deviation {statistics.pstdev(values):.2f})" if len(values) > 1 else ""
        peers = "  ".join(f"{peer} {at[mark]:.2f}" for peer, at in PUBLISHED.get(name, {}).items())
        print(
            f"{name}, {profile}, {mark} % arrived: {statistics.fmean(values):.2f} % of the GPUs allocated{deviation}"
            f"   {peers}"
        )
    pods, seconds = sum(result.pods for result in results), sum(result.seconds for result in results)
    processor = sum(result.processor_seconds for result in results)
    placed = sum(result.placed for result in results)
    unusable = statistics.fmean(result.unusable for result in results)
    print(
        f"{name}, {profile}: {placed:,} of {pods:,} Pods placed in {len(results)} run(s), "
        f"{pods / seconds:,.0f} pods/s, {1000 * processor / pods:.2f} ms of CPU a Pod, "
        f"{unusable:.2f} % of the GPUs free but unusable",
        flush=True,
    )


def _seeds(text: str) -> list[int]:
    """Read `42,43` or `42..51`."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("..")
        found += range(int(first), int(last or first) + 1)
    return found


def _profiles(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        try:
            profile_named(name)
        except ConfigError as error:
            known = ", ".join(sorted(NAMED_PROFILES))
            raise argparse.ArgumentTypeError(f"{name!r} is none of {known}, and no configuration: {error}") from error
    return names


def _run_all(name: str, profile: str, seeds: Sequence[int], engine: str, kept: KeptResults) -> list[Result]:
    nodes, pods = read_nodes(), read_pods(name)
    results: list[Result] = []
    for seed in seeds:
        result = kept.find(name, profile, engine, seed)
        if result is None:
            progress(f"{name}, {profile}, seed {seed}")
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                result = runner.run(run(nodes, pods, seed, engine_name=engine, profile=profile))
            progress("")
            kept.keep(name, profile, engine, result)
        results.append(result)
    return results


def _rebalance(name: str, profile: str, seeds: Sequence[int]) -> None:
    """Print the allocation at 100 % before and after moves, for each seed."""
    from bench.openb.rebalance import rebalance

    nodes, pods = read_nodes(), read_pods(name)
    for seed in seeds:
        found = rebalance(nodes, pods, seed, profile_named(profile), progress)
        progress("")
        print(
            f"{name}, {profile}, seed {seed}, 100 % arrived: {found.before:.2f} % of the GPUs allocated by "
            f"{found.pods:,} Pods"
        )
        for percent, (moves, allocated) in found.after.items():
            print(f"  at most {percent} % of the Pods moved: {allocated:.2f} % after {moves:,} moves")
        print(f"  at most, however packed: {found.bound:.2f} %", flush=True)


def _bounds(name: str, seeds: Sequence[int]) -> None:
    """Print what no policy can exceed, for each seed."""
    from bench.openb.bound import bound

    nodes, pods = read_nodes(), read_pods(name)
    total = milli_gpus(nodes)
    for seed in seeds:
        arriving = arrivals(pods, total, seed)
        for mark in MARKS:
            most = bound(nodes, arrived(arriving, total * mark // ALL_PERCENT))
            print(f"{name}, seed {seed}, {mark} % arrived: at most {ALL_PERCENT * most / total:.2f} %", flush=True)


def main() -> int:
    """Run the list with each profile and seed, and print the means beside the published policies."""
    parser = argparse.ArgumentParser(prog="bench.openb", description=__doc__)
    parser.add_argument("list", help="for example default, gpuspec33, multigpu50, gpushare100, cpu250")
    parser.add_argument("--seeds", type=_seeds, default="42..51", help="for example 42,43 or 42..51 (default)")
    parser.add_argument(
        "--engine", choices=ENGINES, default="core", help="scheduler code alone, a cluster, or one over TLS"
    )
    profiles = ", ".join(sorted(NAMED_PROFILES))
    parser.add_argument(
        "--profile",
        type=_profiles,
        default=SPREAD,
        help=f"of the scheduler, some of: {profiles}, or files with a KubeSchedulerConfiguration",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw allocation over arrival as SVG")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep the result of each run there, and do not repeat what is kept"
    )
    parser.add_argument("--rebalance", action="store_true", help="move Pods at 100 %%, and report what that gains")
    parser.add_argument("--bound", action="store_true", help="print what no policy can exceed, and place nothing")
    arguments = parser.parse_args()
    curves: dict[str, Curve] = {}
    try:
        if arguments.bound:
            _bounds(arguments.list, arguments.seeds)
            return 0
        for profile in arguments.profile:
            if arguments.rebalance:
                _rebalance(arguments.list, profile, arguments.seeds)
                continue
            results = _run_all(arguments.list, profile, arguments.seeds, arguments.engine, KeptResults(arguments.keep))
            _show(arguments.list, profile, results)
            curves[profile] = mean_curve([result.curve for result in results])
    except TraceMissingError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if arguments.plot is not None and curves:
        seeds = arguments.seeds
        title = (
            f"{arguments.list}, seed {seeds[0]}" if len(seeds) == 1 else f"{arguments.list}, mean of {len(seeds)} seeds"
        )
        arguments.plot.write_text(draw(title, curves, PUBLISHED.get(arguments.list, {})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
