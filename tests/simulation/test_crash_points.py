"""A process may crash at any write, whether the write is executed, lost or executed later: everything settles.

The full version repeats whole runs for every write: `make simulate RUNS=6 CRASH=all`.
"""

from __future__ import annotations

import pytest

from tests.simulation.network import CRASH_OUTCOMES, CrashPoint
from tests.simulation.runs import CRASH_VARIANTS, STORY_LINES_MAX, crash_points, run_with_crash

# Variant -> actions of the short run, and the stride over its crash points: no multiple of the number of outcomes.
SHORT = {
    "one_scheduler": (6, 1),
    "two_schedulers": (6, 2),
    "extended_one_scheduler": (6, 7),
    "classic_one_scheduler": (6, 2),
    "device_taints": (8, 4),
    "workloads": (0, 110),
    "housekeeping": (15, 8),
    "evictions": (4, 16),
}


@pytest.mark.parametrize("variant", CRASH_VARIANTS)
def test_a_crash_at_any_write(variant: str) -> None:
    actions, stride = SHORT[variant]
    points = crash_points(variant, 1, actions)[::stride]
    assert points
    for point in points:
        outcome = run_with_crash(variant, 1, point, actions)
        if outcome.violation:
            print("\n".join(outcome.story[-STORY_LINES_MAX:]))
            pytest.fail(f"{outcome.violation} (crash at {point})")
        assert dict(outcome.faults) == {f"crash_{CrashPoint.parse(point).outcome}": 1}


def test_every_write_has_every_outcome() -> None:
    points = [CrashPoint.parse(text) for text in crash_points("one_scheduler", 1, 6)]
    processes = {point.process for point in points}
    assert processes == {"default-scheduler", "controller-0"}
    assert {point.outcome for point in points} == set(CRASH_OUTCOMES)
    for process in processes:
        writes = sorted({point.write for point in points if point.process == process})
        assert writes == list(range(1, len(writes) + 1))
