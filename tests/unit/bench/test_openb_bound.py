"""The bound of the trace: what no packing can exceed, on cases whose optimum is known."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from bench.openb.bound import best_pattern, bound
from bench.openb.trace import WHOLE, TraceNode, TracePod

pytest.importorskip("highspy")


def test_the_most_valuable_shares_of_a_gpu() -> None:
    assert best_pattern({600: 5.0, 500: 3.0, 400: 3.5}, 100) == (8.5, {600: 1, 400: 1})
    assert best_pattern({300: 1.0, 1000: 2.5}, 100) == (3.0, {300: 3})
    assert best_pattern({300: 0.0}, 100) == (0.0, {})


def pods(count: int, milli: int, gpus: int = 1, milli_cpu: int = 0, models: tuple[str, ...] = ()) -> list[TracePod]:
    return [TracePod(milli_cpu, 0, gpus, milli, models)] * count


TWO = TraceNode("n", 8000, 8192, 2, "T4")
CASES: dict[str, tuple[list[TracePod], float]] = {
    "two large shares never share a GPU": (pods(3, 600), 1200),
    "small ones fill what is left": (pods(3, 600) + pods(2, 400), 2000),
    "all that were requested": (pods(1, 300), 300),
    "CPU": (pods(4, 500, milli_cpu=8000), 500),
    "too much CPU for any node": (pods(4, 500, milli_cpu=8001), 0),
    "another model": (pods(4, 500, models=("G2",)), 0),
    "more GPUs than a node has": (pods(1, WHOLE, gpus=3), 0),
    "no GPUs": (pods(4, 0, gpus=0), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_the_optimum_of_small_cases(name: str) -> None:
    wanted, optimum = CASES[name]
    assert bound([TWO], wanted) == pytest.approx(optimum)


def optimum(free: list[int], wanted: Sequence[int]) -> int:
    """Try every GPU for every share."""
    if not wanted:
        return 0
    first, rest = wanted[0], wanted[1:]
    best = optimum(free, rest)
    for index in range(len(free)):
        if free[index] >= first:
            free[index] -= first
            best = max(best, first + optimum(free, rest))
            free[index] += first
    return best


def test_no_packing_exceeds_the_bound() -> None:
    rng = random.Random(5)
    for _ in range(30):
        shares = [rng.choice((150, 300, 450, 600, 850)) for _ in range(6)]
        found = bound([TWO], [TracePod(0, 0, 1, milli) for milli in shares])
        assert optimum([WHOLE, WHOLE], shares) <= found + 1e-6 <= min(2 * WHOLE, sum(shares)) + 1e-5
