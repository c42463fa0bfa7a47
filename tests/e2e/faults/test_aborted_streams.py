"""Streams that a user aborts at random moments leave no descriptor and no command behind."""

from __future__ import annotations

from tests.e2e.faults.aborted_streams import measure

# `python -m tests.e2e.faults.aborted_streams` aborts 5,000.
ABORTS = 60


async def test_aborted_streams_leave_no_descriptor_and_no_command() -> None:
    before, after, answers = await measure(ABORTS, seed=1)
    assert (after.descriptors <= before.descriptors, after.commands) == (True, 0), (before, after, answers)
    # Some were aborted in the middle of a stream, and some before it began.
    assert answers["101"] > 0
    assert answers["nothing yet"] > 0
