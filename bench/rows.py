"""Rows of the results: name, value, unit, parameters and an optional target; how they are printed and stored."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "latest.json"


@dataclass(frozen=True, slots=True)
class Target:
    """An upper or lower limit of the value."""

    limit: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        """Return whether the value is within the limit."""
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {number(self.limit)}"


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement."""

    name: str
    value: float
    unit: str
    parameters: dict[str, Any] = field(default_factory=dict)
    target: Target | None = None

    def document(self) -> dict[str, Any]:
        """Return the row as written to the results."""
        found: dict[str, Any] = {
            "name": self.name,
            "value": round(self.value, 4),
            "unit": self.unit,
            "parameters": self.parameters,
        }
        if self.target is not None:
            found["target"] = str(self.target)
            found["met"] = self.target.met(self.value)
        return found


def number(value: float) -> str:
    """Format with three significant digits and thousands separators."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def show(row: Row) -> None:
    """Print a row."""
    mark, target = "  ", ""
    if row.target is not None:
        mark, target = ("ok" if row.target.met(row.value) else "NO"), str(row.target)
    parameters = " ".join(f"{name}={value}" for name, value in row.parameters.items())
    print(f"{mark} {row.name:<36} {number(row.value):>10} {row.unit:<12} {target:<10} {parameters}", flush=True)


def progress(text: str) -> None:
    """Show the progress on stderr, if that is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def write(rows: Iterable[Row], path: Path = RESULTS) -> None:
    """Write the results as a JSON list."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([row.document() for row in rows], indent=1) + "\n")


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def loop_milliseconds() -> float:
    """Return the processor time of a plain loop, the least of five: by it, results of two machines can be compared."""
    return min(_loop() for _ in range(5))


def _loop() -> float:
    started, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number & 3
    return 1000 * (time.process_time() - started)
