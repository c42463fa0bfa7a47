"""What is made of the newest thing: once per purpose, and anew for the next thing."""

from __future__ import annotations

from dray.lib.latest_memo import LatestMemo


def test_is_made_once_for_each_purpose_until_another_source_comes() -> None:
    made: list[tuple[list[int], str]] = []

    def make(source: list[int], purpose: str) -> str:
        made.append((source, purpose))
        return f"{purpose}{source}"

    newest = LatestMemo(make)
    first, equal = [1], [1]
    assert [newest.get(first, "a"), newest.get(first, "b"), newest.get(first, "a")] == ["a[1]", "b[1]", "a[1]"]
    assert made == [(first, "a"), (first, "b")]
    newest.get(equal, "a")
    newest.get(first, "a")
    assert [source is first for source, _ in made[2:]] == [False, True]


def test_a_source_that_is_computed_meanwhile_keeps_its_own_values() -> None:
    """Computing can be suspended while the value of another source is asked for."""
    first, second = object(), object()

    def compute(source: object, key: str) -> str:
        if source is first:
            assert memo.get(second, key) == "second"
            return "first"
        return "second"

    memo: LatestMemo[object, str, str] = LatestMemo(compute)
    assert memo.get(first, "k") == "first"
    assert memo.get(second, "k") == "second"
