"""Steps that use more processor time than they may, on a clock that the work moves."""

from __future__ import annotations

import pytest

from dray.lib import processor_time
from dray.lib.processor_time import ProcessorTimeExceededError, StepMeter, metered


class Work:
    def __init__(self) -> None:
        self.seconds = 0.0

    def used(self) -> float:
        return self.seconds


def test_a_step_ends_when_it_has_used_its_time() -> None:
    work = Work()
    meter = StepMeter(work.used, 0.03)
    with metered(meter):
        for _ in range(3):
            meter.begin()
            processor_time.check()
            work.seconds += 0.029
            processor_time.check()
            meter.end()
        meter.begin()
        processor_time.check()
        work.seconds += 0.031
        with pytest.raises(ProcessorTimeExceededError):
            processor_time.check()


def test_nothing_is_measured_between_steps_and_outside() -> None:
    work = Work()
    meter = StepMeter(work.used, 0.03)
    with metered(meter):
        meter.begin()
        processor_time.check()
        meter.end()
        work.seconds += 1.0
        processor_time.check()
        expression_limit = processor_time.expression_limit()
        assert expression_limit is not None
        assert not expression_limit()
    meter.begin()
    processor_time.check()
    assert processor_time.expression_limit() is None


def test_expressions_end_earlier_where_nothing_is_repeated() -> None:
    work = Work()
    for expressions_end in (False, True):
        meter = StepMeter(work.used, 0.03, expressions_end=expressions_end)
        meter.begin()
        assert not meter.is_expression_over()
        work.seconds += 0.016
        assert meter.is_expression_over() is expressions_end
        meter.check()
        work.seconds += 0.015
        with pytest.raises(ProcessorTimeExceededError):
            meter.check()
    repeated = StepMeter(work.used, 0.03)
    repeated.begin()
    repeated.check()
    work.seconds += 0.031
    with pytest.raises(ProcessorTimeExceededError):
        repeated.is_expression_over()
