"""`KUBE_SCHEDULER=path python -m tests.differential record FILE VERSION DATE START END`: record its answers.

`compare FILE [SEED …]` compares Dray's scheduler with what is recorded, and prints every difference. `reduce SEED` asks
both, and prints the smallest case in which they still differ.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from dray.api.errors import APIError
from dray.sim.replica.virtual_time import run_virtually
from tests.differential.cases import Case, make_case
from tests.differential.compare import compare_case
from tests.differential.driver import Answer
from tests.differential.kube_scheduler import ask
from tests.differential.own_scheduler import decide
from tests.differential.recorded_answers import RecordedCase, read_recording, recording_text
from tests.differential.reduce import smallest_case


def record(file: Path, version: str, date: str, seeds: range) -> None:
    """Add the answers about these seeds to the file."""
    header, cases = {"kubernetes": version, "date": date}, {}
    if file.exists():
        _, known = read_recording(file)
        cases = {case.seed: case for case in known}
    for seed in seeds:
        case = make_case(seed)
        if seed in cases and cases[seed].digest == case.digest:
            continue
        cases[seed] = RecordedCase(seed, case.digest, tuple(ask_now(case)))
        file.write_text(recording_text(header, (cases[number] for number in sorted(cases))), encoding="utf-8")


def ask_now(case: Case) -> list[Answer]:
    """Return what kube-scheduler answers."""
    with tempfile.TemporaryDirectory(prefix="differential-") as folder:
        return asyncio.run(ask(Path(folder), case))


def are_different(case: Case) -> bool:
    """Return whether an unexplained difference is left; a case that lacks what its objects need has none."""
    try:
        # In virtual time: with a Pod that waits for something that is missing, both would wait.
        run_virtually(decide(case))
        return bool(compare_case(case, ask_now(case)).unexplained)
    except (APIError, AssertionError, ExceptionGroup):
        return False


def compare(file: Path, seeds: frozenset[int]) -> int:
    """Print the differences; return how many have no name."""
    pods = unexplained = 0
    for recorded in read_recording(file)[1]:
        if seeds and recorded.seed not in seeds:
            continue
        comparison = compare_case(make_case(recorded.seed), recorded.answers)
        pods += comparison.pods
        unexplained += len(comparison.unexplained)
        for difference in comparison.differences:
            print(f"seed {recorded.seed}: {difference}")
    print(f"{pods} Pods, {unexplained} unexplained differences")
    return unexplained


def main(action: str, *arguments: str) -> int:
    if action == "record":
        file, version, date, start, end = arguments
        record(Path(file), version, date, range(int(start), int(end)))
        return 0
    if action == "compare":
        file, *seeds = arguments
        return 1 if compare(Path(file), frozenset(map(int, seeds))) else 0
    if action == "reduce":
        case = smallest_case(make_case(int(arguments[0])), are_different)
        print(json.dumps([case.objects, [(step.action, step.objects) for step in case.steps]], indent=1))
        print(*compare_case(case, ask_now(case)).unexplained, sep="\n")
        return 0
    raise SystemExit(__doc__)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
