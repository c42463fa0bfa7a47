"""When the kit repeats a failed call, and for how long a node stays refused."""

from __future__ import annotations

import pytest

from dray.api.document import NamespacedName
from dray.driver.classic.attempts import Attempts, Request
from dray.driver.classic.plan import Task

KEY = NamespacedName("team", "c")
REQUEST = Request("uid", Task.ALLOCATE, "n1")


@pytest.mark.behaviour("CL-52")
def test_the_wait_doubles_up_to_a_minute() -> None:
    attempts, now, waits = Attempts(), 0.0, []
    for _ in range(9):
        waits.append(attempts.failed(KEY, REQUEST, now))
        assert attempts.wait(KEY, REQUEST, now) == waits[-1]
        now += waits[-1]
        assert attempts.wait(KEY, REQUEST, now) == 0
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.behaviour("CL-52")
def test_another_request_does_not_wait() -> None:
    attempts = Attempts()
    attempts.failed(KEY, REQUEST, 0.0)
    assert attempts.wait(KEY, Request("uid", Task.ALLOCATE, "n2"), 0.0) == 0
    assert attempts.wait(KEY, Request("another", Task.ALLOCATE, "n1"), 0.0) == 0
    attempts.succeeded(KEY)
    assert attempts.wait(KEY, REQUEST, 0.0) == 0
    assert not attempts


@pytest.mark.behaviour("CL-53")
def test_refused_nodes_are_offered_again_together() -> None:
    attempts = Attempts()
    attempts.refuse(KEY, ["n1"], 0.0)
    attempts.refuse(KEY, ["n2"], 0.5)
    assert attempts.refused(KEY, 1.4) == {"n1", "n2"}
    assert attempts.refused_for(KEY, 1.4) == pytest.approx(0.1)
    assert attempts.refused(KEY, 1.5) == set()
    assert attempts.refused_for(KEY, 1.5) == 0
    # The second time they stay refused for longer.
    attempts.refuse(KEY, ["n1"], 2.0)
    assert attempts.refused_for(KEY, 2.0) == 2.0


@pytest.mark.behaviour("CL-53")
def test_a_claim_that_many_nodes_refused_waits_for_each_of_them() -> None:
    attempts = Attempts()
    attempts.refuse(KEY, [f"n{number}" for number in range(1000)], 0.0)
    assert attempts.refused_for(KEY, 0.0) == 500.0


@pytest.mark.behaviour("CL-53")
def test_freed_resources_end_refusals_and_not_failures() -> None:
    attempts, other = Attempts(), NamespacedName("team", "d")
    attempts.failed(KEY, REQUEST, 0.0)
    attempts.failed(other, REQUEST, 0.0, no_room=True)
    attempts.refuse(KEY, ["n1"], 0.0)
    assert attempts.room_was_made() == [other]
    assert attempts.refused(KEY, 0.0) == set()
    assert attempts.wait(KEY, REQUEST, 0.0) == 1
    assert attempts.wait(other, REQUEST, 0.0) == 0
    attempts.forget(KEY)
    assert not attempts
