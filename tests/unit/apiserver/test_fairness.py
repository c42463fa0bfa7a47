"""Seats, queues and turns: a greedy client gets its share and no more."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from dray.apiserver.fairness import Admitted, FairQueue, Limits, Queued, Rejected, Ticket, TicketState
from dray.apiserver.request import ANONYMOUS, UserInfo

MASTER = UserInfo("root", groups=("system:masters",))
FEW = Limits(seats=2, queue_length_max=3, queued_max=5, wait_seconds_max=10, watches_per_user_max=2, watches_max=3)


def user(name: str) -> UserInfo:
    return UserInfo(name)


def queued(queue: FairQueue, name: str, now: float = 0) -> Ticket:
    admission = queue.admit(user(name), now)
    assert isinstance(admission, Queued)
    return admission.ticket


def full(limits: Limits = FEW) -> FairQueue:
    queue = FairQueue(limits)
    for _ in range(limits.seats):
        assert queue.admit(user("greedy"), 0) == Admitted()
    return queue


def test_seats_are_bounded_and_then_requests_wait() -> None:
    queue = full()
    assert queue.seats_taken == 2
    ticket = queued(queue, "alice")
    assert ticket.state is TicketState.WAITING
    assert queue.release(Admitted(), 1) == [ticket]
    assert ticket.state is TicketState.ADMITTED
    assert queue.release(ticket, 1) == []
    assert queue.release(Admitted(), 1) == []
    assert (queue.seats_taken, queue.queued) == (0, 0)


def test_a_full_queue_is_refused_and_others_still_get_in() -> None:
    queue = full()
    for _ in range(3):
        queued(queue, "greedy")
    assert queue.admit(user("greedy"), 0) == Rejected(1, "Too many requests, please try again later.")
    queued(queue, "alice")
    queued(queue, "bob")
    assert queue.admit(user("carol"), 0) == Rejected(), "the sum of all queues is bounded too"


def test_users_take_turns() -> None:
    queue = full(Limits(seats=1, queue_length_max=10))
    greedy = [queued(queue, "greedy") for _ in range(4)]
    alice = [queued(queue, "alice") for _ in range(2)]
    bob = [queued(queue, "bob")]
    order: list[Ticket] = []
    woken = queue.release(Admitted(), 1)
    while woken:
        order += woken
        woken = queue.release(woken[0], 1)
    assert order == [greedy[0], alice[0], bob[0], greedy[1], alice[1], greedy[2], greedy[3]]


def test_one_greedy_client_does_not_starve_another() -> None:
    """The greedy one keeps its queue full at all times; alice asks one thing after the other."""
    queue = FairQueue(Limits(seats=4, queue_length_max=50))
    running: list[Admitted | Ticket] = []
    served: Counter[str] = Counter()
    rng = random.Random(1)
    alice_waits: int | None = None
    waits: list[int] = []
    for step in range(4000):
        now = step / 1000
        while not isinstance(admission := queue.admit(user("greedy"), now), Rejected):
            if isinstance(admission, Admitted):
                running.append(admission)
        if alice_waits is None:
            admission = queue.admit(user("alice"), now)
            assert isinstance(admission, Queued), "alice is never refused"
            alice_waits = step
        for ticket in queue.release(running.pop(rng.randrange(len(running))), now):
            served[ticket.user_name] += 1
            running.append(ticket)
            if ticket.user_name == "alice":
                assert alice_waits is not None
                waits.append(step - alice_waits)
                alice_waits = None
    assert max(waits) <= 2, "at most one other request goes before hers"
    assert served["alice"] >= 4000 * 0.45


def test_many_equal_clients_get_equal_shares() -> None:
    queue = FairQueue(Limits(seats=3, queue_length_max=20))
    names = [f"u{number}" for number in range(5)]
    running: list[Admitted | Ticket] = []
    served: Counter[str] = Counter()
    for step in range(2000):
        now = step / 1000
        for name in names:
            # The first asks ten times as often.
            for _ in range(10 if name == "u0" else 1):
                admission = queue.admit(user(name), now)
                if isinstance(admission, Admitted):
                    running.append(admission)
        for ticket in queue.release(running.pop(0), now):
            served[ticket.user_name] += 1
            running.append(ticket)
    assert max(served.values()) - min(served.values()) <= 2


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
def test_probes_and_masters_are_exempt(path: str) -> None:
    queue = full()
    for admission in (queue.admit(ANONYMOUS, 0, path=path), queue.admit(MASTER, 0)):
        assert admission == Admitted(exempt=True)
        assert queue.release(admission, 0) == []
    assert queue.seats_taken == 2
    assert isinstance(queue.admit(ANONYMOUS, 0, path="/version"), Queued)


def test_a_client_that_goes_away_leaves_no_trace() -> None:
    queue = full()
    first, second, other = queued(queue, "alice"), queued(queue, "alice"), queued(queue, "bob")
    assert queue.cancel(first, 1) == []
    assert queue.cancel(first, 1) == [], "twice is fine"
    assert queue.release(Admitted(), 1) == [second]
    assert queue.cancel(second, 1) == [other], "a seat that was handed on already is handed on again"
    assert queue.cancel(other, 1) == []
    assert queue.release(Admitted(), 1) == []
    assert (queue.seats_taken, queue.queued, queue._queues, list(queue._turns)) == (0, 0, {}, [])


def test_nobody_waits_for_ever() -> None:
    queue = full()
    early, late = queued(queue, "alice", now=0), queued(queue, "alice", now=5)
    queued(queue, "bob", now=5)
    assert queue.expire(9.9) == []
    assert queue.expire(10) == [early]
    assert early.state is TicketState.DONE
    # A ticket whose time is over when its turn comes is told so, and the seat goes to the next.
    fresh = queued(queue, "carol", now=14)
    woken = queue.release(Admitted(), 20)
    assert [(ticket.user_name, ticket.state) for ticket in woken] == [
        ("alice", TicketState.DONE),
        ("bob", TicketState.DONE),
        ("carol", TicketState.ADMITTED),
    ]
    assert woken[0] is late
    assert woken[2] is fresh


def test_watches_have_their_own_bounds() -> None:
    queue = full()
    alice, bob = user("alice"), user("bob")
    assert queue.admit_watch(alice) == Admitted()
    assert queue.admit_watch(alice) == Admitted()
    assert queue.admit_watch(alice) == Rejected()
    assert queue.admit_watch(bob) == Admitted()
    assert queue.admit_watch(bob) == Rejected(), "the sum is bounded"
    queue.release_watch(alice)
    assert queue.admit_watch(bob) == Admitted()
    for who in (alice, bob, bob):
        queue.release_watch(who)
    assert (queue.watches, queue._watches) == (0, {})


def test_giving_back_what_was_not_taken_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        FairQueue().release(Admitted(), 0)
