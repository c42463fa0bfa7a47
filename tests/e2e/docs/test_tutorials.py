"""Every command of the tutorials."""

from __future__ import annotations

import pytest

from tests.e2e.docs.harness import check_page, pages_below

TUTORIALS = pages_below("docs/tutorials")


@pytest.mark.parametrize("name", TUTORIALS)
def test_the_commands_of_a_tutorial(name: str) -> None:
    check_page(name)


def test_there_are_tutorials() -> None:
    assert len(TUTORIALS) == 6
