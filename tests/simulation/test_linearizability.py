"""The check of histories finds what no order explains, and nothing else."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.linearizability import Operation, check
from tests.simulation.store_history import (
    MODEL,
    Create,
    Delete,
    Exists,
    Read,
    Seen,
    StoreHistory,
    Update,
    Written,
)

KEY = "/pods/a"


def operation(called: float, returned: float, request: object, result: object = None) -> Operation:
    return Operation(KEY, called, returned, request, result, unknown=result is None)


def lost(called: float, request: object, revision: int = -1, until: float = math.inf) -> Operation:
    return Operation(KEY, called, until, request, Written(revision), unknown=True)


CREATED = operation(1, 2, Create(b"1"), Written(2))
UPDATED = operation(3, 4, Update(b"2", 2), Written(3))

GOOD = {
    "nothing": [],
    "one after the other": [CREATED, UPDATED, operation(5, 6, Read(), Seen(3, b"2"))],
    "a read during a write sees either": [
        CREATED,
        operation(3, 8, Update(b"2", 2), Written(3)),
        operation(4, 5, Read(), Seen(2, b"1")),
        operation(6, 7, Read(), Seen(3, b"2")),
    ],
    "refused for the reason that holds": [
        CREATED,
        operation(3, 4, Create(b"2"), Exists()),
        operation(5, 6, Update(b"3", 9), Seen(2, b"1")),
        operation(7, 8, Delete(2), Written(3)),
        operation(9, 10, Delete(2), Seen(0)),
    ],
    "a lost write that took effect": [CREATED, lost(3, Update(b"2", 2), 3), operation(9, 10, Read(), Seen(3, b"2"))],
    "a lost write that did not": [CREATED, lost(3, Update(b"2", 2)), operation(9, 10, Read(), Seen(2, b"1"))],
    "a lost write that took effect late": [
        CREATED,
        lost(3, Update(b"2", 2), 3),
        operation(5, 6, Read(), Seen(2, b"1")),
        operation(7, 8, Read(), Seen(3, b"2")),
    ],
    "a lost deletion explains a refusal": [CREATED, lost(3, Delete(2)), operation(5, 6, Update(b"3", 2), Seen(0))],
}

BAD = {
    "a read of the past": [CREATED, UPDATED, operation(5, 6, Read(), Seen(2, b"1"))],
    "an acknowledged write is lost": [CREATED, operation(3, 4, Read(), Seen(0))],
    "two updates of one revision": [CREATED, UPDATED, operation(5, 6, Update(b"3", 2), Written(4))],
    "two creations": [CREATED, operation(1, 3, Create(b"2"), Written(3))],
    "refused for no reason": [CREATED, operation(3, 4, Update(b"2", 2), Seen(2, b"1"))],
    "created and refused by nothing": [operation(1, 2, Create(b"1"), Exists())],
    "back and forth": [
        CREATED,
        lost(3, Update(b"2", 2), 3),
        operation(5, 6, Read(), Seen(3, b"2")),
        operation(7, 8, Read(), Seen(2, b"1")),
    ],
    "a write that answered a conflict with itself": [CREATED, operation(3, 4, Update(b"2", 2), Seen(3, b"2"))],
    "an effect after its last moment": [
        CREATED,
        lost(3, Update(b"2", 2), 3, until=5),
        operation(6, 7, Read(), Seen(2, b"1")),
        operation(8, 9, Read(), Seen(3, b"2")),
    ],
}


@pytest.mark.parametrize("name", GOOD)
def test_what_an_order_explains_is_accepted(name: str) -> None:
    assert check(GOOD[name], MODEL) is None


@pytest.mark.parametrize("name", BAD)
def test_what_no_order_explains_is_rejected(name: str) -> None:
    violation = check(BAD[name], MODEL)
    assert violation is not None
    assert "is not linearizable" in str(violation)


def explained_by_some_order(history: Sequence[Operation]) -> bool:
    """The plain check: every choice of lost operations in every order."""
    needed = [item for item in history if not item.unknown]
    maybe = [item for item in history if item.unknown]
    choices = itertools.chain.from_iterable(itertools.combinations(maybe, count) for count in range(len(maybe) + 1))
    return any(_is_explanation(order) for chosen in choices for order in itertools.permutations([*needed, *chosen]))


def _is_explanation(order: Sequence[Operation]) -> bool:
    if any(later.returned < earlier.called for earlier, later in itertools.combinations(order, 2)):
        return False
    state: int | None = MODEL.initial
    for item in order:
        assert state is not None
        state = MODEL.step(state, item)
        if state is None:
            return False
    return True


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    count = draw(st.integers(1, 5))
    times = draw(st.permutations(range(2 * count)))
    history = []
    for number in range(count):
        called, returned = sorted(times[2 * number : 2 * number + 2])
        request = draw(
            st.sampled_from(
                [Create(b"%d" % number), Update(b"%d" % number, draw(st.integers(1, 4))), Read(), Delete(2)]
            )
        )
        seen = Seen(draw(st.integers(0, 4)))
        if isinstance(request, Read):
            history.append(operation(called, returned, request, seen))
        elif draw(st.booleans()):
            until = draw(st.sampled_from([math.inf, returned]))
            history.append(lost(called, request, number + 1, until=until))
        elif isinstance(request, Create):
            history.append(operation(called, returned, request, draw(st.sampled_from([Exists(), Written(number + 1)]))))
        else:
            history.append(operation(called, returned, request, draw(st.sampled_from([seen, Written(number + 1)]))))
    return history


@given(histories())
def test_the_search_agrees_with_trying_every_order(history: list[Operation]) -> None:
    assert (check(history, MODEL) is None) == explained_by_some_order(history)


def test_keys_are_independent() -> None:
    other = Operation("/pods/b", 1, 2, Read(), Seen(0))
    assert check([CREATED, UPDATED, other], MODEL) is None
    bad = Operation("/pods/b", 3, 4, Read(), Seen(7))
    violation = check([CREATED, UPDATED, other, bad], MODEL)
    assert violation is not None
    assert violation.key == "/pods/b"


def test_a_revision_given_twice_is_rejected() -> None:
    history = StoreHistory()
    history.record("/pods/a", history.tick(), Create(b"1"), Written(2))
    history.record("/pods/b", history.tick(), Create(b"2"), Written(2))
    with pytest.raises(AssertionError, match="given to two writes"):
        history.check()


def test_revisions_that_go_back_in_time_are_rejected() -> None:
    history = StoreHistory()
    history.record("/pods/a", history.tick(), Create(b"1"), Written(3))
    history.record("/pods/b", history.tick(), Create(b"2"), Written(2))
    with pytest.raises(AssertionError, match="revision 2 answers a call after 3 was answered"):
        history.check()


def test_one_value_at_two_revisions_is_rejected() -> None:
    history = StoreHistory()
    history.record("/pods/a", history.tick(), Read(), Seen(2, b"1"))
    history.record("/pods/a", history.tick(), Read(), Seen(3, b"1"))
    with pytest.raises(AssertionError, match="at revisions 2 and 3"):
        history.check()
