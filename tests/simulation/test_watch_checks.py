"""Each guarantee of watches can be found broken."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.watch_checks import WatchRecord, WatchViolationError

# Two events have one revision, as those of a transaction.
WRITTEN = [(2, "a"), (3, "b"), (5, "c"), (5, "d"), (8, "e")]


def record() -> WatchRecord[str]:
    return WatchRecord(1, lambda after, until: [item for item in WRITTEN if after < item[0] <= until])


Step = Callable[[WatchRecord[str]], None]

BROKEN: dict[str, list[Step]] = {
    "ordered": [lambda watch: watch.receive([(3, "b"), (2, "a")])],
    "unique": [lambda watch: watch.receive(WRITTEN[:2]), lambda watch: watch.receive([(3, "b")])],
    "atomic": [lambda watch: watch.receive(WRITTEN[:3])],
    "reliable": [lambda watch: watch.receive([(2, "a"), (5, "c"), (5, "d")])],
    "resumable": [lambda watch: watch.receive(WRITTEN[:4]), lambda watch: watch.finish(8)],
    "bookmarkable": [lambda watch: watch.receive(WRITTEN[:1]), lambda watch: watch.bookmark(4)],
}
OTHERS: dict[str, tuple[str, list[Step]]] = {
    "an older event after a bookmark": (
        "unique",
        [lambda watch: watch.receive(WRITTEN[:1]), lambda watch: watch.receive(WRITTEN[:1])],
    ),
    "an event twice in a batch": ("unique", [lambda watch: watch.receive([(2, "a"), (2, "a")])]),
    "another event than was written": ("reliable", [lambda watch: watch.receive([(2, "x")])]),
    "an event that was not written": ("reliable", [lambda watch: watch.receive([(2, "a"), (4, "x")])]),
}


def test_what_was_written_is_accepted() -> None:
    watch = record()
    watch.receive(WRITTEN[:2])
    watch.bookmark(4)
    watch.receive(())
    watch.receive(WRITTEN[2:])
    watch.bookmark(8)
    watch.finish(8)
    assert (watch.position, watch.events, watch.bookmarks) == (8, 5, 2)


@pytest.mark.parametrize(("guarantee", "steps"), [*BROKEN.items(), *OTHERS.values()], ids=[*BROKEN, *OTHERS])
def test_a_broken_guarantee_is_named(guarantee: str, steps: list[Step]) -> None:
    watch = record()
    for step in steps[:-1]:
        step(watch)
    with pytest.raises(WatchViolationError, match=f"not {guarantee}:"):
        steps[-1](watch)
