"""Randomness fetched in bulk is spread like any other, and never given twice."""

from __future__ import annotations

from dray.runtime.system import PooledRandom


def test_numbers_stay_in_their_range_and_are_spread() -> None:
    source = PooledRandom()
    numbers = [source.random() for _ in range(10_000)]
    assert all(0.0 <= number < 1.0 for number in numbers)
    assert 0.45 < sum(numbers) / len(numbers) < 0.55
    assert len(set(numbers)) == len(numbers)


def test_bits_are_as_many_as_asked_for_and_never_repeat() -> None:
    source = PooledRandom()
    drawn = [source.getrandbits(128) for _ in range(5_000)]
    assert len(set(drawn)) == len(drawn)
    assert max(drawn).bit_length() == 128
    assert source.getrandbits(0) == 0
    assert {source.getrandbits(1) for _ in range(200)} == {0, 1}
    # More than is fetched at a time.
    assert source.getrandbits(80_000).bit_length() > 79_000
