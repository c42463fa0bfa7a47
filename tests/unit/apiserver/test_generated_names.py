from __future__ import annotations

import random

from dray.apiserver.metadata import generated_name

ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


def test_a_suffix_is_one_of_equally_many_numbers_below_the_count_of_suffixes() -> None:
    for seed in range(50):
        number = random.Random(seed).randrange(len(ALPHABET) ** 5)
        letters = [ALPHABET[number // len(ALPHABET) ** place % len(ALPHABET)] for place in range(5)]
        assert generated_name("pod-", random.Random(seed)) == f"pod-{''.join(letters)}"


def test_a_long_prefix_is_cut() -> None:
    name = generated_name("p" * 100, random.Random(0))
    assert len(name) == 63
    assert name.startswith("p" * 58)
