"""The behaviour catalogue is complete and consistent, and its tool reads it correctly."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from tools.coverage_of_behaviour import catalogue_ids, prefix_of

CATALOGUE = Path(__file__).parents[3] / "docs" / "behaviour"


def test_index_has_every_prefix_with_its_number_of_ids() -> None:
    index = (CATALOGUE / "README.md").read_text()
    rows = {
        prefix: int(count) for prefix, count in re.findall(r"^\| `([A-Z]{1,2})` \|.*\| (\d+) \|$", index, re.MULTILINE)
    }
    assert rows == Counter(prefix_of(identifier) for identifier in catalogue_ids(CATALOGUE))


def test_ids_of_a_prefix_are_on_one_page_in_order() -> None:
    for page in CATALOGUE.glob("*.md"):
        numbers = [int(identifier.partition("-")[2]) for identifier in catalogue_ids(page)]
        assert numbers == sorted(numbers), page.name
        assert len({prefix_of(identifier) for identifier in catalogue_ids(page)}) <= 1, page.name


def test_any_prefix_of_one_or_two_letters_is_read(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("| id | behaviour |\n|---|---|\n| S-1 | One. |\n| ZZ-100 | Two, unlike AB-2. |\n")
    assert catalogue_ids(page) == ["S-1", "ZZ-100"]
    assert catalogue_ids(tmp_path) == ["S-1", "ZZ-100"]


def test_a_duplicate_id_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("| SP-01 | One. |\n| SP-01 | Two. |\n")
    with pytest.raises(SystemExit, match="SP-01"):
        catalogue_ids(page)
