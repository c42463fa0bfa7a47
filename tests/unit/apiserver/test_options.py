"""Query parameters as numbers, at the bounds of Go's types."""

from __future__ import annotations

import pytest

from dray.api.errors import APIError
from dray.apiserver.options import parse_revision

INT64_MAX = 2**63 - 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("007", 7),
        ("12345", 12345),
        ("9" * 18, 10**18 - 1),
        (str(INT64_MAX), INT64_MAX),
        (str(2**64 - 1), INT64_MAX),
        ("0" * 30 + "5", 5),
    ],
)
def test_a_revision_is_the_number_or_the_largest(text: str, expected: int) -> None:
    assert parse_revision(text) == expected


@pytest.mark.parametrize("text", ["", "-1", "1.0", "x", "\u0661", str(2**64), "9" * 30])
def test_what_is_no_revision_is_refused(text: str) -> None:
    with pytest.raises(APIError):
        parse_revision(text)
