"""Compare the behaviour ids that tests name with the behaviour catalogue, and print the ids that no test names.

Tests name ids with the marker `behaviour("SP-07", ...)`. pytest collects the tests, so ids in parametrized rows count
as well. The catalogue is a Markdown file, or a folder of them, with one table row per id. Any prefix of one or two
capital letters is accepted.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
from pathlib import Path

import pytest

_ROW = re.compile(r"^\|\s*([A-Z]{1,2}-\d+)\s*\|", re.MULTILINE)


class MarkerCollector:
    """A pytest plugin that collects the ids of all behaviour markers."""

    def __init__(self) -> None:
        self.ids: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Read the markers of the collected tests."""
        for item in items:
            for marker in item.iter_markers("behaviour"):
                self.ids.update(str(argument) for argument in marker.args)


def tested_ids(tests: Path) -> set[str]:
    """Return every id that a test names."""
    collector = MarkerCollector()
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = pytest.main(["--collect-only", "-q", str(tests)], plugins=[collector])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(f"cannot collect the tests:\n{output.getvalue()[-2000:]}")
    return collector.ids


def catalogue_ids(path: Path) -> list[str]:
    """Return every id of the catalogue, in the order of its pages."""
    pages = sorted(path.glob("*.md")) if path.is_dir() else [path]
    ids = [identifier for page in pages for identifier in _ROW.findall(page.read_text(encoding="utf-8"))]
    duplicates = sorted({identifier for identifier in ids if ids.count(identifier) > 1}, key=sort_key)
    if duplicates:
        sys.exit(f"listed twice in {path}: {' '.join(duplicates)}")
    return ids


def sort_key(identifier: str) -> tuple[str, int]:
    """Sort by prefix, then by number."""
    prefix, _, number = identifier.partition("-")
    return prefix, int(number) if number.isdigit() else 0


def prefix_of(identifier: str) -> str:
    """Return the letters before the hyphen."""
    return identifier.partition("-")[0]


def main() -> int:
    """Print the report; return 1 if tests and catalogue do not agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--behaviours", type=Path, required=True, help="the catalogue: a file or a folder")
    parser.add_argument("tests", type=Path, help="directory of the tests")
    arguments = parser.parse_args()
    known = set(catalogue_ids(arguments.behaviours))
    tested = tested_ids(arguments.tests)
    print(f"{'prefix':<7} {'ids':>5} {'tested':>7} {'missing':>8}")
    for prefix in sorted({prefix_of(identifier) for identifier in known}):
        ids = {identifier for identifier in known if prefix_of(identifier) == prefix}
        print(f"{prefix:<7} {len(ids):>5} {len(ids & tested):>7} {len(ids - tested):>8}")
    print(f"\n{len(known & tested)} of {len(known)} behaviours have a test")
    missing = sorted(known - tested, key=sort_key)
    if missing:
        print("no test names: " + " ".join(missing))
    unknown = sorted(tested - known, key=sort_key)
    if unknown:
        print("not in the catalogue: " + " ".join(unknown))
    return 1 if missing or unknown else 0


if __name__ == "__main__":
    sys.exit(main())
