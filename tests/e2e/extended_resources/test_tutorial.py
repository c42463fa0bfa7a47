"""The commands of docs/extended-resources.md, one after the other."""

from __future__ import annotations

import pytest

from tests.e2e.docs.harness import check_page


@pytest.mark.behaviour("XR-39")
def test_the_commands_of_the_page() -> None:
    check_page("docs/extended-resources.md")
