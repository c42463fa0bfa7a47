"""Full collections of garbage, at times that the test chooses."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from dray.runtime import garbage


class Cycle:
    def __init__(self) -> None:
        self.own = self


class Stop(Exception):  # noqa: N818 - ends the endless task
    pass


@pytest.fixture
def old_garbage() -> Iterator[weakref.ref[Cycle]]:
    """A cycle that only a full collection finds."""
    gc.disable()
    cycles = [Cycle()]
    gc.collect()
    gone = weakref.ref(cycles[0])
    cycles.clear()
    # Counted as one that has moved objects to those of full collections.
    gc.collect(1)
    yield gone
    gc.enable()


async def collect(*, periods: int, used_in_each: float) -> None:
    seconds = 0.0

    async def sleep(_seconds: float) -> None:
        nonlocal seconds, periods
        if not periods:
            raise Stop
        periods -= 1
        seconds += used_in_each

    with pytest.raises(Stop):
        await garbage.run(sleep, lambda: seconds)


async def test_an_idle_process_collects_everything(old_garbage: weakref.ref[Cycle]) -> None:
    assert old_garbage() is not None
    await collect(periods=1, used_in_each=0.1)
    assert old_garbage() is None


async def test_a_busy_process_collects_nothing_for_an_hour(old_garbage: weakref.ref[Cycle]) -> None:
    await collect(periods=360, used_in_each=9.0)
    assert old_garbage() is not None
    await collect(periods=361, used_in_each=9.0)
    assert old_garbage() is None
