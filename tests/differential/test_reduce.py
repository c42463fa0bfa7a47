"""The reducer keeps what matters, and nothing else."""

from __future__ import annotations

from tests.differential.cases import Case, make_case
from tests.differential.reduce import smallest_case


def test_only_what_matters_is_kept() -> None:
    case = make_case(3)
    wanted = case.objects[-1], case.steps[2].objects[-1], case.steps[5].objects[-1]
    tried: list[Case] = []

    def holds(part: Case) -> bool:
        tried.append(part)
        there = [*part.objects, *(item for step in part.steps for item in step.objects)]
        return all(item in there for item in wanted)

    found = smallest_case(case, holds)
    assert found.objects == wanted[:1]
    assert [step.objects for step in found.steps] == [wanted[1:2], wanted[2:]]
    assert len(tried) < 10 * (len(case.objects) + len(case.steps))


def test_a_case_that_always_holds_becomes_empty() -> None:
    found = smallest_case(make_case(3), lambda _: True)
    assert (found.objects, found.steps) == ((), ())


def test_a_case_that_needs_everything_stays_as_it_is() -> None:
    case = make_case(3)
    assert smallest_case(case, lambda part: part == case) == case
