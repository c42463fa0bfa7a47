"""The most GPUs that any packing of the trace's Pods can allocate: a linear program over patterns of shares. Pure.

Two Pods with 0.6 of a GPU never share one, so that the sum of what is free says little. A pattern is a multiset of
shares that fit on one GPU together. The program chooses how often each pattern is used on each type of nodes, and how
many Pods of each kind are there, within the sums of CPU and memory. All numbers may be fractions, and CPU and memory
are summed up over the nodes of a type: the optimum is at least that of every real packing. Patterns are found when they
are needed, by a knapsack problem over the dual prices of shares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import gcd
from typing import Final, NamedTuple

from bench.openb.trace import WHOLE, TraceNode, TracePod

# The search for patterns ends when the bound is this close to the optimum, as a part of it; or after so many rounds.
TOLERANCE: Final = 1e-5
ROUNDS_MAX: Final = 200
_EPSILON: Final = 1e-9


class _NodeType(NamedTuple):
    """Equal nodes."""

    milli_cpu: int
    memory_mib: int
    gpus: int
    model: str


class _TypeRows(NamedTuple):
    """The rows of a type of nodes in the program."""

    gpus: int
    # How many GPUs there are.
    available: int
    # Size of a share -> the row that shares of this size need patterns.
    shares: Mapping[int, int]


def bound(nodes: Iterable[TraceNode], pods: Iterable[TracePod]) -> float:
    """Return the thousandths of GPUs that the Pods can have allocated at most, in any packing."""
    kinds = Counter(pod for pod in pods if pod.gpus and pod.milli_gpu)
    types = Counter(_NodeType(node.milli_cpu, node.memory_mib, node.gpus, node.model) for node in nodes if node.gpus)
    return _Program(kinds, types).solve() if kinds and types else 0.0


class _Program:
    """The linear program, with the patterns found so far."""

    def __init__(self, kinds: Counter[TracePod], types: Counter[_NodeType]) -> None:
        import highspy

        self._solver = highspy.Highs()
        self._solver.silent()
        self._solver.changeObjectiveSense(highspy.ObjSense.kMaximize)
        self._infinity = highspy.kHighsInf
        self._unit = gcd(WHOLE, *(pod.milli_gpu for pod in kinds))
        self._row_count = 0
        kind_rows = {kind: self._row(count) for kind, count in kinds.items()}
        self._types = [self._add_type(key, number, kind_rows) for key, number in types.items()]
        # A first pattern for each size: as many of it as fit.
        for rows in self._types:
            for size in rows.shares:
                self._add_pattern(rows, {size: WHOLE // size})

    def _row(self, limit: float) -> int:
        self._solver.addRow(-self._infinity, limit, 0, [], [])
        self._row_count += 1
        return self._row_count - 1

    def _column(self, value: float, entries: Mapping[int, float]) -> None:
        self._solver.addCol(value, 0.0, self._infinity, len(entries), list(entries), list(entries.values()))

    def _add_type(self, key: _NodeType, number: int, kind_rows: Mapping[TracePod, int]) -> _TypeRows:
        """Add the nodes of a type, and the Pods that they can have."""
        usable = [pod for pod in kind_rows if _fits(pod, key)]
        milli_cpu, memory = self._row(key.milli_cpu * number), self._row(key.memory_mib * number)
        shares = {size: self._row(0) for size in sorted({pod.milli_gpu for pod in usable})}
        available = key.gpus * number
        for pod in usable:
            entries: dict[int, float] = {kind_rows[pod]: 1, shares[pod.milli_gpu]: pod.gpus}
            if pod.milli_cpu:
                entries[milli_cpu] = pod.milli_cpu
            if pod.memory_mib:
                entries[memory] = pod.memory_mib
            self._column(pod.total_milli_gpu, entries)
        return _TypeRows(self._row(available), available, shares)

    def _add_pattern(self, rows: _TypeRows, pattern: Mapping[int, int]) -> None:
        self._column(0, {rows.gpus: 1, **{rows.shares[size]: -count for size, count in pattern.items()}})

    def solve(self) -> float:
        """Return the bound: of the optimum, or close to it."""
        best = float("inf")
        for _ in range(ROUNDS_MAX):
            self._solver.run()
            optimum = float(self._solver.getInfo().objective_function_value)
            prices: Sequence[float] = self._solver.getSolution().row_dual
            # By duality: what all missing patterns together could add at most.
            missing = 0.0
            for rows in self._types:
                values = {size: prices[row] for size, row in rows.shares.items()}
                worth, pattern = best_pattern(values, self._unit)
                gain = worth - prices[rows.gpus]
                if gain > _EPSILON:
                    missing += gain * rows.available
                    self._add_pattern(rows, pattern)
            best = min(best, optimum + missing)
            if best - optimum <= TOLERANCE * optimum:
                break
        return best


def _fits(pod: TracePod, key: _NodeType) -> bool:
    return (
        pod.gpus <= key.gpus
        and (not pod.models or key.model in pod.models)
        and pod.milli_cpu <= key.milli_cpu
        and pod.memory_mib <= key.memory_mib
    )


def best_pattern(values: Mapping[int, float], unit: int) -> tuple[float, dict[int, int]]:
    """Return the value of the most valuable shares that fit on one GPU, and these; sizes are multiples of `unit`."""
    worth: list[float] = [0.0]
    last: list[int] = [0]
    sizes = [(size // unit, value) for size, value in values.items() if value > 0]
    for room in range(1, WHOLE // unit + 1):
        best, taken = worth[room - 1], 0
        for size, value in sizes:
            if size <= room and worth[room - size] + value > best:
                best, taken = worth[room - size] + value, size
        worth.append(best)
        last.append(taken)
    pattern: Counter[int] = Counter()
    room = WHOLE // unit
    while room:
        pattern[last[room] * unit] += 1
        room -= last[room] or 1
    del pattern[0]
    return worth[-1], dict(pattern)
