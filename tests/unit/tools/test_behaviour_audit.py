"""The audit of the proposals cites what exists, and leaves no behaviour out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools.coverage_of_behaviour import catalogue_ids

ROOT = Path(__file__).parents[3]
CATALOGUE = ROOT / "docs" / "behaviour"
PAGES = sorted(page for page in (CATALOGUE / "audit").glob("*.md") if page.name != "README.md")
KEPT = ("yes", "differently", "outside")
_ID = re.compile(r"\b[A-Z]{1,2}-\d+\b")
_PATH = re.compile(r"`([\w.-]+(?:/[\w.-]+)+)`")


def _rows(page: Path) -> list[list[str]]:
    lines = [line for line in page.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] != "promise" and set(row[0]) != {"-"}]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_promise_is_decided_and_shown(page: Path) -> None:
    assert _rows(page)
    for row in _rows(page):
        assert len(row) == 3, row
        promise, kept, shown = row
        assert promise, row
        assert kept.lstrip("[").startswith(KEPT), row
        if "differently" in kept:
            assert re.search(r"\]\((?:\.\./){2}(?:differences\.md|adr/)", kept), "link the reason"
        if not kept.startswith("outside"):
            assert _ID.search(shown) or _PATH.search(shown), row


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_everything_cited_exists(page: Path) -> None:
    known = set(catalogue_ids(CATALOGUE))
    for row in _rows(page):
        assert not set(_ID.findall(row[2])) - known, row
        assert not [path for path in _PATH.findall(row[2]) if not (ROOT / path).exists()], row


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_behaviour_of_the_proposal_is_left_out(page: Path) -> None:
    # The catalogue's page begins with the name of the proposal.
    behaviours = next(iter(CATALOGUE.glob(f"{page.stem}*.md")), None)
    cited = set(_ID.findall(page.read_text()))
    missing = set() if behaviours is None else set(catalogue_ids(behaviours)) - cited
    assert not missing
