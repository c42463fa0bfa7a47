"""Matches of RE2, in the event loop and beside it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import re2

from dray.api import patterns
from dray.lib.processor_time import StepMeter, metered


class Threads:
    """Counts the calls of other threads, and makes them here."""

    def __init__(self) -> None:
        self.calls = 0

    def call(self, function: Callable[[], Any]) -> tuple[Any, float]:
        self.calls += 1
        return function(), 0.0

    def meter(self) -> StepMeter:
        meter = StepMeter(lambda: 0.0, lambda: 0.0, lambda: None, self.call, slice_seconds=1.0, expression_seconds=1.0)
        meter.begin()
        return meter


@pytest.mark.parametrize("text", ["", "abc", "éb" * 100, "ab " * 300_000])
@pytest.mark.parametrize("pattern", ["b", "[a-b]+", "x", "", "(a.{900})|b"])
def test_matches_are_those_of_the_pattern_and_long_searches_are_made_aside(pattern: str, text: str) -> None:
    compiled, threads = re2.compile(pattern), Threads()
    with metered(threads.meter()):
        found = patterns.search(compiled, text)
        texts = list(islice(patterns.find_all(compiled, text), 3000))
    expected = compiled.search(text)
    assert (found and found.span()) == (expected and expected.span())
    assert texts == [match[0] for match in islice(compiled.finditer(text), 3000)]
    assert bool(threads.calls) == (len(text) * compiled.programsize > 2_000_000)


def test_a_search_without_a_request_is_made_here() -> None:
    assert patterns.search(re2.compile("(a.{900})|b"), "ab " * 300_000)[0].startswith("ab")
