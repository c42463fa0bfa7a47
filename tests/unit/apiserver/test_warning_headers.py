"""Warning headers within kube-apiserver's limits."""

from __future__ import annotations

import pytest

from dray.apiserver.warning_headers import CUT_LENGTH, TEXT_LENGTH_MAX, warning_headers


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["a", "b", "a", ""], ["a", "b"]),
        (['say "no" \\'], ['say \\"no\\" \\\\']),
        (["\u00e4\u2028"], ["\u00e4\u2028"]),
        (["a\r\nSet-Cookie: a=b", "a\x85", "b"], ["b"]),
        (["x" * TEXT_LENGTH_MAX], ["x" * TEXT_LENGTH_MAX]),
        (["x" * TEXT_LENGTH_MAX, "y"], ["x" * CUT_LENGTH, "y"]),
        ([f"{number:03}" + "x" * 300 for number in range(100)], [f"{number:03}" + "x" * 253 for number in range(16)]),
    ],
)
def test_warnings(texts: list[str], expected: list[str]) -> None:
    assert warning_headers(texts) == [("Warning", f'299 - "{text}"') for text in expected]
