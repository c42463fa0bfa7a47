"""The audit of the proposals cites what exists, and leaves no behaviour out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools.coverage_of_behaviour import catalogue_ids

ROOT = Path(__file__).parents[3]
CATALOGUE = ROOT / "docs" / "behaviour"
AUDIT = (CATALOGUE / "audit.md").read_text()
# The text of each proposal, by its name as in `kep-3063`.
PROPOSALS = {f"kep-{part[:4]}": part for part in AUDIT.split("\n## KEP-")[1:]}
KEPT = ("yes", "differently", "outside")
_ID = re.compile(r"\b[A-Z]{1,2}-\d+\b")
_PATH = re.compile(r"`([\w.-]+(?:/[\w.-]+)+)`")


def _rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] != "promise" and set(row[0]) != {"-"}]


@pytest.mark.parametrize("proposal", PROPOSALS)
def test_every_promise_is_decided_and_shown(proposal: str) -> None:
    assert _rows(PROPOSALS[proposal])
    for row in _rows(PROPOSALS[proposal]):
        assert len(row) == 3, row
        promise, kept, shown = row
        assert promise, row
        assert kept.lstrip("[").startswith(KEPT), row
        if "differently" in kept:
            assert re.search(r"\]\(\.\./(?:differences\.md|adr/)", kept), "link the reason"
        if not kept.startswith("outside"):
            assert _ID.search(shown) or _PATH.search(shown), row


@pytest.mark.parametrize("proposal", PROPOSALS)
def test_everything_cited_exists(proposal: str) -> None:
    known = set(catalogue_ids(CATALOGUE))
    for row in _rows(PROPOSALS[proposal]):
        assert not set(_ID.findall(row[2])) - known, row
        assert not [path for path in _PATH.findall(row[2]) if not (ROOT / path).exists()], row


@pytest.mark.parametrize("proposal", PROPOSALS)
def test_no_behaviour_of_the_proposal_is_left_out(proposal: str) -> None:
    (behaviours,) = CATALOGUE.glob(f"{proposal}-*.md")
    missing = set(catalogue_ids(behaviours)) - set(_ID.findall(PROPOSALS[proposal]))
    assert not missing
