"""Prints which behaviour ids no test names, with counts per group.

Tests name ids by the marker `behaviour("SP-07", …)`; pytest collects them, so that ids which a table gives to its
rows count as well. Works without the list of behaviours too: it then counts the ids that tests name.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
from pathlib import Path

import pytest

_ROW = re.compile(r"^\|\s*((?:CL|SP|PL|XR|DP|PR)-\d{2,3})\s*\|", re.MULTILINE)
_GROUPS = ("CL", "SP", "PL", "XR", "DP", "PR")


class Collector:
    """A pytest plugin that notes the ids of every collected test."""

    def __init__(self) -> None:
        self.named: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Read the markers."""
        for item in items:
            for marker in item.iter_markers("behaviour"):
                self.named.update(str(argument) for argument in marker.args)


def named_in(tests: Path) -> set[str]:
    """Every id that a test names."""
    collector = Collector()
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = pytest.main(["--collect-only", "-q", str(tests)], plugins=[collector])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(f"the tests cannot be collected:\n{output.getvalue()[-2000:]}")
    return collector.named


def known_in(path: Path) -> set[str]:
    """Every id of the list of behaviours; empty when there is no list."""
    return set(_ROW.findall(path.read_text(encoding="utf-8"))) if path.is_file() else set()


def in_order(identifier: str) -> tuple[int, int]:
    """Sort by group, then by number."""
    group, _, number = identifier.partition("-")
    return (_GROUPS.index(group) if group in _GROUPS else len(_GROUPS), int(number) if number.isdigit() else 0)


def main() -> int:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--behaviours", type=Path, required=True, help="the list of behaviours")
    parser.add_argument("tests", type=Path, help="directory of the tests")
    arguments = parser.parse_args()
    named, known = named_in(arguments.tests), known_in(arguments.behaviours)
    if not known:
        print(f"{arguments.behaviours} is not there; counting the ids that tests name")
    print(f"{'group':<6} {'ids':>5} {'tested':>7} {'missing':>8}")
    for group in _GROUPS:
        ids = {item for item in known or named if item.startswith(group)}
        tested = ids & named
        print(f"{group:<6} {len(ids) if known else '?':>5} {len(tested):>7} {len(ids - tested) if known else '?':>8}")
    missing = sorted(known - named, key=in_order)
    if missing:
        print("\nno test names: " + " ".join(missing))
    unknown = sorted(named - known, key=in_order) if known else []
    if unknown:
        print("\nnamed by tests but not in the list: " + " ".join(unknown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
