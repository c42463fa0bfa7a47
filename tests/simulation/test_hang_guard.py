"""A run that comes to no end is a violation, with the command that replays it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tests.simulation.faults import Faults
from tests.simulation.runs import run_simulation


class Stuck:
    """A run that never ends, and takes no error for an end."""

    def __init__(self, *, busy: bool) -> None:
        self.story: list[str] = []
        self.rates = Faults()
        self._busy = busy

    async def run(self) -> None:
        while True:
            with suppress(Exception):
                if not self._busy:
                    await asyncio.sleep(1.0)


@pytest.mark.parametrize("busy", [True, False])
def test_a_run_that_hangs_is_a_violation(busy: bool) -> None:
    outcome = run_simulation("workloads", 7, Stuck(busy=busy), hang_seconds=0.2)
    assert outcome.violation.startswith("HangError: hangs: no end after 0.2 s of CPU time at ")
    assert outcome.replay == "make simulate RUNS=1 SEED=7 VARIANT=workloads"
