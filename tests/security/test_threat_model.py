"""The threat model states nothing without a test: `docs/security.md` has tables only, and each row names its tests."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "security.md"
HEADER: Final = "| at worst, or prevented | enforced in | shown by |"
ACTORS: Final = ("Anonymous", "User", "`edit`", "Node", "Driver", "Image", "Webhook", "Registry")
# What the page says about itself, before the first actor.
PREFACE_LINES_MAX: Final = 8
NAME: Final = re.compile(r"`([\w/]+\.py)::(\w+)`")


class Row(NamedTuple):
    """One statement."""

    actor: str
    text: str
    place: str
    tests: str


def sections(text: str) -> dict[str, list[str]]:
    """Return the lines below each heading of the second level, and those before the first one."""
    found: dict[str, list[str]] = {"": []}
    heading = ""
    for line in filter(None, text.splitlines()):
        if line.startswith("## "):
            heading = line.removeprefix("## ")
            found[heading] = []
        elif not line.startswith("# "):
            found[heading].append(line)
    return found


def rows(text: str) -> list[Row]:
    """Return all statements; fails for text outside of tables."""
    found = []
    for heading, lines in sections(text).items():
        if not heading:
            assert len(lines) <= PREFACE_LINES_MAX, "the page states something before the first table"
            continue
        assert lines[:2] == [HEADER, "|---|---|---|"], heading
        for line in lines[2:]:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert line.startswith("| "), f"text outside of a table: {line}"
            assert len(cells) == 3, line
            found.append(Row(heading.partition(":")[0], *cells))
    return found


def problems(row: Row) -> list[str]:
    """Return what is wrong with a row."""
    named = NAME.findall(row.tests)
    found = [] if named else ["names no test"]
    found += [f"{file}::{test} does not exist" for file, test in named if test not in names_in(file)]
    if NAME.sub("", row.tests).strip(", "):
        found.append("names something that is no test")
    place = row.place.strip("`")
    if not (ROOT / "src" / "dray" / place).exists():
        found.append(f"src/dray/{place} does not exist")
    return found


@cache
def names_in(file: str) -> frozenset[str]:
    """Return the names of the tests in a file below `tests`."""
    path = ROOT / "tests" / file
    if not path.name.startswith("test_") or not path.exists():
        return frozenset()
    functions = (
        item
        for item in ast.walk(ast.parse(path.read_text()))
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return frozenset(item.name for item in functions if item.name.startswith("test_"))


@pytest.mark.parametrize("row", rows(PAGE.read_text()), ids=lambda row: row.text[:60])
def test_each_statement_names_tests_and_a_place_that_exist(row: Row) -> None:
    assert problems(row) == []


def test_each_actor_has_a_table() -> None:
    found = {row.actor for row in rows(PAGE.read_text())}
    assert [actor for actor in ACTORS if not any(actor in name for name in found)] == []


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (("x", "`api`", ""), ["names no test"]),
        (("x", "`api`", "trust me"), ["names no test", "names something that is no test"]),
        (
            ("x", "`nowhere`", "`security/test_threat_model.py::test_each_actor_has_a_table`"),
            ["src/dray/nowhere does not exist"],
        ),
        (
            ("x", "`api`", "`security/test_threat_model.py::test_gone`"),
            ["security/test_threat_model.py::test_gone does not exist"],
        ),
        (("x", "`api`", "`security/test_gone.py::test_gone`"), ["security/test_gone.py::test_gone does not exist"]),
        (("x", "`api`", "`security/attacker.py::send`"), ["security/attacker.py::send does not exist"]),
    ],
)
def test_a_statement_without_its_test_is_found(cells: tuple[str, str, str], expected: list[str]) -> None:
    assert problems(Row("Node", *cells)) == expected


@pytest.mark.parametrize(
    "text", ["## Node\n\nNodes are safe.\n", f"## Node\n\n{HEADER}\n|---|---|---|\nNodes are safe.\n"]
)
def test_a_sentence_outside_of_the_tables_is_found(text: str) -> None:
    with pytest.raises(AssertionError):
        rows(text)
