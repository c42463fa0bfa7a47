"""The commands of every tutorial. Each leaves nothing behind, so that the next one can follow in the same folder."""

from __future__ import annotations

import pytest

from tests.e2e.docs.harness import check_page, pages_in

TUTORIALS = pages_in("docs/tutorials")


@pytest.mark.parametrize("name", TUTORIALS)
def test_commands_of_a_tutorial(name: str) -> None:
    check_page(name, cleans_up=True)


def test_number_of_tutorials() -> None:
    assert len(TUTORIALS) == 6
