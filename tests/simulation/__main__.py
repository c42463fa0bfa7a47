"""Runs simulations and reports steps, faults and violations: `make simulate RUNS=1000 SEED=1`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from itertools import count, islice

from tests.simulation.network import CRASH_OUTCOMES
from tests.simulation.runs import (
    CRASH_VARIANTS,
    STORY_LINES_MAX,
    VARIANTS,
    Outcome,
    crash_points,
    declared_faults,
    run,
    run_with_crash,
)

PROGRESS_SECONDS = 5.0
ALL = "all"


class Report:
    """The sums over all runs so far."""

    def __init__(self, runs: int) -> None:
        self._planned = runs
        self._started = time.monotonic()
        self._printed = self._started
        self._runs = 0
        self._steps = 0
        self.faults: Counter[str] = Counter()
        self.violations: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        self._runs += 1
        self._steps += outcome.steps
        self.faults += outcome.faults
        if outcome.violation:
            self.violations.append(outcome)
            _say(f"VIOLATION in {outcome.variant}, seed {outcome.seed}: {outcome.violation}")
            _say(f"  replay: {outcome.replay}")
        if time.monotonic() - self._printed >= PROGRESS_SECONDS:
            self._printed = time.monotonic()
            self.print_progress()

    def print_progress(self) -> None:
        seconds = time.monotonic() - self._started
        _say(
            f"{seconds:7.1f} s  {self._runs}/{self._planned} runs  {self._steps} steps  "
            f"{self.faults.total()} faults  {len(self.violations)} violations"
        )


def main() -> int:
    """Return 1 if a promise was broken, or a declared fault did not happen in many runs."""
    arguments = _parse()
    logging.disable(logging.CRITICAL)
    variants = [arguments.variant] if arguments.variant else list(CRASH_VARIANTS if arguments.crash else VARIANTS)
    planned = _plan(variants, arguments)
    report = Report(len(planned))
    if len(planned) == 1:
        outcome = _run(*planned[0])
        report.add(outcome)
        if outcome.violation:
            _say("\n".join(outcome.story[-STORY_LINES_MAX:]))
    else:
        with ProcessPoolExecutor(arguments.jobs) as pool:
            for done in as_completed([pool.submit(_run_briefly, *each) for each in planned]):
                report.add(done.result())
    report.print_progress()
    for name, number in sorted(report.faults.items()):
        _say(f"  {name:14} {number}")
    if arguments.crash:
        expected = {f"crash_{outcome}" for outcome in CRASH_OUTCOMES}
    else:
        expected = set().union(*map(declared_faults, variants))
    missing = expected - set(report.faults)
    if missing:
        _say(f"never happened: {', '.join(sorted(missing))}")
    return 1 if report.violations or (missing and len(planned) >= len(variants) * 10) else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="the first seed; each seed is run with every variant")
    parser.add_argument("--variant", choices=VARIANTS, help="only this one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--crash",
        default="",
        help="no faults but one crash: PROCESS:WRITE:OUTCOME, or 'all' to repeat each run for every write",
    )
    return parser.parse_args()


def _plan(variants: list[str], arguments: argparse.Namespace) -> list[tuple[str, int, str]]:
    """Return the runs: variant, seed and crash."""
    seeds = count(arguments.seed)
    runs = list(islice(((variant, seed) for seed in seeds for variant in variants), arguments.runs))
    if arguments.crash != ALL:
        return [(*each, arguments.crash) for each in runs]
    return [(*each, crash) for each in runs for crash in crash_points(*each)]


def _run(variant: str, seed: int, crash: str) -> Outcome:
    return run_with_crash(variant, seed, crash) if crash else run(variant, seed)


def _run_briefly(variant: str, seed: int, crash: str) -> Outcome:
    logging.disable(logging.CRITICAL)
    return replace(_run(variant, seed, crash), story=())


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
