"""Prints which behaviour ids no test names, with counts per group.

A test names an id by `@pytest.mark.behaviour("SP-07")` or in a `pytest.param(..., marks=...)`; ranges count as
well: any `XX-nn` in a string on a line with `behaviour(`. Works without the list of behaviours too: it then
counts the ids that tests name.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path

_ID = re.compile(r"\b(CL|SP|PL|XR|DP|PR)-(\d{2,3})\b")
_ROW = re.compile(r"^\|\s*((?:CL|SP|PL|XR|DP|PR)-\d{2,3})\s*\|", re.MULTILINE)
_GROUPS = ("CL", "SP", "PL", "XR", "DP", "PR")
# A marker and its arguments, which may go over several lines.
_MARKER = re.compile(r"behaviour\(([^)]*)\)", re.DOTALL)


def named_in(paths: Iterable[Path]) -> set[str]:
    """Every id that a test names."""
    found: set[str] = set()
    for path in paths:
        for marker in _MARKER.finditer(path.read_text(encoding="utf-8")):
            found.update(match[0] for match in _ID.finditer(marker[1]))
    return found


def known_in(path: Path) -> set[str]:
    """Every id of the list of behaviours; empty when there is no list."""
    return set(_ROW.findall(path.read_text(encoding="utf-8"))) if path.is_file() else set()


def main() -> int:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--behaviours", type=Path, required=True, help="the list of behaviours")
    parser.add_argument("tests", type=Path, help="directory of the tests")
    arguments = parser.parse_args()
    named = named_in(sorted(arguments.tests.rglob("*.py")))
    known = known_in(arguments.behaviours)
    if not known:
        print(f"{arguments.behaviours} is not there; counting the ids that tests name")
    print(f"{'group':<6} {'ids':>5} {'tested':>7} {'missing':>8}")
    for group in _GROUPS:
        ids = {item for item in known or named if item.startswith(group)}
        tested = ids & named
        print(f"{group:<6} {len(ids) if known else '?':>5} {len(tested):>7} {len(ids - tested) if known else '?':>8}")
    missing = sorted(known - named)
    if missing:
        print("\nno test names: " + " ".join(missing))
    unknown = sorted(named - known) if known else []
    if unknown:
        print("\nnamed by tests but not in the list: " + " ".join(unknown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
