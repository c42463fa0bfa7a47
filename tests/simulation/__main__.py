"""Runs simulations and reports steps, faults and violations: `make simulate RUNS=1000 SEED=1`.

Fails if a promise is broken, or if a fault never happens in a variant that declares it. Whether one run has a rare
fault is a matter of its seed: a variant that lacks one gets further seeds, until it is clear that it never happens.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from itertools import count, islice
from typing import NamedTuple

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
# Further seeds for a variant that lacks a declared fault. The rarest one happens in every sixth run.
MORE_RUNS_MAX = 40
# Their distance. A variant crashes at a step that its seed says, neighbouring seeds beside it, and a run may not have
# so many steps. A prime number, so that all steps are tried, and odd, for what the lowest bit decides.
MORE_RUNS_APART = 719


class Planned(NamedTuple):
    """A run; without a crash point it has the faults of its variant."""

    variant: str
    seed: int
    crash: str = ""


class Report:
    """The sums over all runs so far."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._printed = self._started
        self._runs = 0
        self._steps = 0
        # By variant.
        self.faults: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.violations: list[Outcome] = []

    def add(self, outcome: Outcome, planned: int) -> None:
        self._runs += 1
        self._steps += outcome.steps
        self.faults[outcome.variant] += outcome.faults
        if outcome.violation:
            self.violations.append(outcome)
            _say(f"VIOLATION in {outcome.variant}, seed {outcome.seed}: {outcome.violation}")
            _say(f"  replay: {outcome.replay}")
        if time.monotonic() - self._printed >= PROGRESS_SECONDS:
            self._printed = time.monotonic()
            self.print_progress(planned)

    def print_progress(self, planned: int) -> None:
        seconds = time.monotonic() - self._started
        faults = self.all_faults()
        _say(
            f"{seconds:7.1f} s  {self._runs}/{planned} runs  {self._steps} steps  "
            f"{faults.total()} faults  {len(self.violations)} violations"
        )

    def all_faults(self) -> Counter[str]:
        """Return the faults of all variants together."""
        return sum(self.faults.values(), Counter())


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if a promise was broken, or a declared fault did not happen in one of the variants."""
    options = _parse(arguments)
    logging.disable(logging.CRITICAL)
    variants = [options.variant] if options.variant else list(CRASH_VARIANTS if options.crash else VARIANTS)
    planned = _plan(variants, options)
    report = Report()
    if len(planned) == 1:
        outcome = _run(*planned[0])
        report.add(outcome, 1)
        if outcome.violation:
            _say("\n".join(outcome.story[-STORY_LINES_MAX:]))
    else:
        _run_all(planned, report, options.jobs)
    if options.crash:
        missing = _missing_crashes(report, options.crash)
    else:
        planned_variants = dict.fromkeys(each.variant for each in planned)
        next_seed = options.seed + -(-options.runs // len(variants))
        missing = {} if report.violations else _search_missing(planned_variants, next_seed, report)
    report.print_progress(len(planned))
    for name, number in sorted(report.all_faults().items()):
        _say(f"  {name:14} {number}")
    for variant, names in missing.items():
        _say(f"never happened in {variant}: {', '.join(sorted(names))}")
    return 1 if report.violations or missing else 0


def _run_all(planned: Sequence[Planned], report: Report, jobs: int) -> None:
    with ProcessPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(_run_briefly, *each) for each in planned]):
            report.add(done.result(), len(planned))


def _missing_crashes(report: Report, crash: str) -> dict[str, set[str]]:
    """Return the crashes that did not happen, by variant."""
    expected = {f"crash_{outcome}" for outcome in (CRASH_OUTCOMES if crash == ALL else (crash.rpartition(":")[2],))}
    missing = {variant: expected - faults.keys() for variant, faults in report.faults.items()}
    return {variant: names for variant, names in missing.items() if names}


def _search_missing(variants: Iterable[str], next_seed: int, report: Report) -> dict[str, set[str]]:
    """Run each variant with further seeds until its declared faults have happened; return those that have not."""
    missing = {}
    for variant in variants:
        names = declared_faults(variant) - report.faults[variant].keys()
        for seed in range(next_seed, next_seed + MORE_RUNS_MAX * MORE_RUNS_APART, MORE_RUNS_APART):
            if not names or report.violations:
                break
            report.add(_run_briefly(variant, seed, ""), 0)
            names -= report.faults[variant].keys()
        if names:
            missing[variant] = names
    return missing


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
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
    return parser.parse_args(arguments)


def _plan(variants: list[str], options: argparse.Namespace) -> list[Planned]:
    """Return the runs."""
    seeds = count(options.seed)
    runs = list(islice((Planned(variant, seed) for seed in seeds for variant in variants), options.runs))
    if options.crash != ALL:
        return [each._replace(crash=options.crash) for each in runs]
    return [each._replace(crash=crash) for each in runs for crash in crash_points(each.variant, each.seed)]


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
