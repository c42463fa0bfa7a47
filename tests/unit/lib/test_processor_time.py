"""Steps that use more processor time than a slice, on a clock that the work moves."""

from __future__ import annotations

from collections.abc import Callable

from dray.lib import processor_time
from dray.lib.processor_time import StepMeter, metered


class Work:
    def __init__(self) -> None:
        self.seconds = 0.0
        self.suspended_at: list[float] = []
        self.aside_calls = 0
        self.meter = StepMeter(
            self.used, self.used, self.suspend, self.aside, slice_seconds=0.03, expression_seconds=0.1
        )

    def used(self) -> float:
        return self.seconds

    def suspend(self) -> None:
        self.suspended_at.append(round(self.seconds, 3))
        self.meter.end()
        self.meter.begin()

    def aside(self, function: Callable[[], int]) -> tuple[int, float]:
        self.aside_calls += 1
        return function(), 0.2

    def run(self, seconds: float) -> None:
        self.seconds += seconds
        processor_time.check()


def test_a_step_is_suspended_when_it_has_used_its_slice() -> None:
    work = Work()
    with metered(work.meter):
        for _ in range(3):
            work.meter.begin()
            work.run(0.001)
            work.run(0.028)
            work.meter.end()
        assert not work.suspended_at
        work.meter.begin()
        for seconds in (0.0, 0.031, 0.0, 0.02, 0.02):
            work.run(seconds)
    assert work.suspended_at == [0.118, 0.158]


def test_nothing_is_measured_between_steps_and_outside() -> None:
    work = Work()
    with metered(work.meter):
        work.meter.begin()
        work.run(0.0)
        work.meter.end()
        work.run(1.0)
        over = processor_time.expression_limit()
        assert over is not None
        assert not over()
    work.meter.begin()
    work.run(1.0)
    assert processor_time.expression_limit() is None
    assert not work.suspended_at


def test_the_clock_is_read_once_for_many_elements() -> None:
    work = Work()
    readings = 0

    def used() -> float:
        nonlocal readings
        readings += 1
        return 0.0

    meter = StepMeter(used, work.used, work.suspend, work.aside, slice_seconds=0.03, expression_seconds=0.1)
    meter.begin()
    with metered(meter):
        for _ in range(1000):
            processor_time.tick()
    assert 0 < readings <= 1000 // 30


def test_expressions_end_when_the_request_has_used_what_they_may_use() -> None:
    work = Work()
    with metered(work.meter):
        over = processor_time.expression_limit()
        assert over is not None
        work.meter.begin()
        assert not over()
        for expected in (False, False, True):
            work.seconds += 0.04
            assert over() is expected


def test_elements_are_counted_and_long_lists_checked_meanwhile() -> None:
    work = Work()
    with metered(work.meter):
        work.meter.begin()
        seen = []
        for number in processor_time.ticking(range(1000)):
            seen.append(number)
            work.seconds += 0.001
    assert seen == list(range(1000))
    # Every 32 elements.
    assert len(work.suspended_at) == 31
    assert list(processor_time.ticking([1, 2])) == [1, 2]


def test_functions_are_called_in_a_thread_within_steps_and_charged() -> None:
    work = Work()
    assert processor_time.run_aside(lambda: 1) == 1
    with metered(work.meter):
        assert processor_time.run_aside(lambda: 2) == 2
        work.meter.begin()
        assert work.aside_calls == 0
        assert processor_time.run_aside(lambda: 3) == 3
        assert work.aside_calls == 1
        over = processor_time.expression_limit()
        assert over is not None
        assert over()
