"""Seats, queues and turns: a greedy user gets a share of the time, and delays others by no more than a turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dray.apiserver import fairness
from dray.apiserver.fairness import FairQueue, Limits, Rejected, Ticket, TicketState, is_exempt
from dray.apiserver.request import ANONYMOUS, UserInfo

TURN = 0.001
FEW = Limits(
    seats=2,
    user_seats_divisor=1,
    queue_length_max=3,
    queued_max=5,
    wait_seconds_max=10,
    watches_per_user_max=2,
    watches_max=3,
    turn_seconds=TURN,
)


def user(name: str) -> UserInfo:
    return UserInfo(name)


def admitted(queue: FairQueue, name: str, now: float = 0) -> Ticket:
    ticket = queue.admit(user(name), now)
    assert isinstance(ticket, Ticket)
    return ticket


def queued(queue: FairQueue, name: str, now: float = 0) -> Ticket:
    ticket = admitted(queue, name, now)
    assert ticket.state is TicketState.WAITING
    return ticket


def started(queue: FairQueue, name: str) -> Ticket:
    ticket = admitted(queue, name)
    assert ticket.state is TicketState.RUNNING
    return ticket


def complete(queue: FairQueue, ticket: Ticket, seconds: float) -> None:
    queue.charge(ticket, seconds)
    queue.release(ticket)


def full(limits: Limits = FEW) -> tuple[FairQueue, list[Ticket]]:
    queue = FairQueue(limits)
    return queue, [started(queue, "greedy") for _ in range(limits.seats)]


def test_seats_are_bounded_and_then_requests_wait() -> None:
    queue, running = full()
    assert queue.seats_taken == 2
    ticket = queued(queue, "alice")
    assert queue.next_turn(1) == [], "no seat is free"
    queue.release(running[0])
    assert queue.next_turn(1) == [ticket]
    assert ticket.state is TicketState.RUNNING
    queue.release(ticket)
    queue.release(running[1])
    assert (queue.seats_taken, queue.queued, queue.has_tickets) == (0, 0, False)


def test_one_user_cannot_take_all_seats() -> None:
    queue = FairQueue(replace(FEW, seats=8, user_seats_divisor=4))
    for _ in range(2):
        started(queue, "greedy")
    waiting = queued(queue, "greedy")
    assert queue.next_turn(0) == []
    started(queue, "alice")
    assert waiting.state is TicketState.WAITING
    assert Limits(seats=1).user_seats == 1


def test_the_queue_of_a_user_grows_with_the_seats() -> None:
    assert Limits.for_seats(256, watches_max=1).queue_length_max == Limits().queue_length_max == 384
    assert Limits.for_seats(2, watches_max=1).queue_length_max == 130


def test_a_full_queue_is_refused_and_others_still_get_in() -> None:
    queue, _ = full()
    for _ in range(3):
        queued(queue, "greedy")
    assert queue.admit(user("greedy"), 0) == Rejected(1, "Too many requests, please try again later.")
    queued(queue, "alice")
    queued(queue, "bob")
    assert queue.admit(user("carol"), 0) == Rejected(), "the sum of all queues is bounded too"


def test_a_turn_starts_requests_until_its_time_is_used() -> None:
    queue = FairQueue()
    for _ in range(3):
        complete(queue, started(queue, "greedy"), TURN * 0.4)
    rest = [queued(queue, "greedy") for _ in range(4)]
    woken = queue.next_turn(0)
    assert woken == rest[: len(woken)], "in order"
    assert 2 <= len(woken) <= 3, "as many as are expected to take a turn"


def test_each_user_may_start_one_request_in_a_turn_that_others_have_used_up() -> None:
    queue = FairQueue()
    complete(queue, started(queue, "greedy"), 5 * TURN)
    for _ in range(100):
        queued(queue, "greedy")
    complete(queue, started(queue, "alice"), TURN / 10)
    second = queued(queue, "alice")
    assert queue.next_turn(0)[0] is second, "alice has used less time"


def test_the_user_who_used_the_least_time_is_next() -> None:
    """Alice's requests take a tenth of the time of the greedy user's: ten of them for each of those."""
    queue = FairQueue()
    cost = {"greedy": 10 * TURN, "alice": TURN}
    used = dict.fromkeys(cost, 0.0)
    for name in ("greedy", "alice"):
        complete(queue, started(queue, name), cost[name])
        for _ in range(200):
            queued(queue, name)
    while used["alice"] < 150 * TURN:
        woken = queue.next_turn(0)
        assert len(woken) == 1
        name = woken[0].user_name
        used[name] += cost[name]
        complete(queue, woken[0], cost[name])
    assert used["alice"] == pytest.approx(used["greedy"], abs=cost["greedy"] * 1.5)


def test_time_that_was_used_alone_is_soon_forgotten() -> None:
    queue = FairQueue()
    for _ in range(1000):
        complete(queue, started(queue, "first"), 1.0)
        queue.next_turn(0)
    complete(queue, started(queue, "first"), TURN)
    mine = queued(queue, "first")
    complete(queue, started(queue, "second"), 1.0)
    complete(queue, started(queue, "third"), 0.1)
    for _ in range(30):
        queued(queue, "third")
    for turn in range(30):
        woken = queue.next_turn(0)
        if mine in woken:
            assert turn > 0
            return
        for ticket in woken:
            complete(queue, ticket, 0.1)
    pytest.fail("a debt of 1,000 s was not forgiven after 3 s of others")


def test_a_long_request_continues_in_turns_and_another_user_goes_between() -> None:
    queue = FairQueue()
    long = started(queue, "greedy")
    queue.charge(long, TURN)
    queue.pause(long)
    assert long.state is TicketState.PAUSED
    assert queue.seats_taken == 1, "it keeps its seat"
    another = queued(queue, "greedy")
    modest = started(queue, "alice")
    complete(queue, modest, TURN / 2)
    assert queue.next_turn(0) == [long], "before the user's next request, of which there may be a hundred"
    queue.charge(long, TURN)
    queue.pause(long)
    assert queue.next_turn(0) == [long]
    complete(queue, long, TURN)
    assert queue.next_turn(0) == [another]


def test_paused_requests_of_two_users_alternate() -> None:
    queue = FairQueue()
    tickets = [started(queue, "a"), started(queue, "b")]
    for ticket in tickets:
        queue.charge(ticket, TURN)
        queue.pause(ticket)
    order = []
    for _ in range(6):
        (ticket,) = queue.next_turn(0)
        order.append(ticket.user_name)
        queue.charge(ticket, TURN)
        queue.pause(ticket)
    assert order == ["a", "b"] * 3


def test_a_paused_request_continues_while_no_seat_is_free() -> None:
    queue, running = full()
    queued(queue, "alice")
    queue.charge(running[0], TURN)
    queue.pause(running[0])
    assert queue.next_turn(0) == [running[0]]


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
def test_probes_and_masters_are_exempt(path: str) -> None:
    assert is_exempt(ANONYMOUS, path)
    assert is_exempt(UserInfo("root", groups=("system:masters",)))
    assert not is_exempt(ANONYMOUS, "/version")
    assert not is_exempt(user("alice"))


def test_a_client_that_goes_away_leaves_no_trace() -> None:
    queue, running = full()
    first, second, other = queued(queue, "alice"), queued(queue, "alice"), queued(queue, "bob")
    queue.cancel(first)
    queue.cancel(first)
    assert first.state is TicketState.DONE
    queue.release(running[0])
    assert queue.next_turn(1) == [second]
    queue.cancel(second)
    assert queue.next_turn(1) == [other], "a seat that was assigned already is assigned again"
    queue.charge(other, TURN)
    queue.pause(other)
    queue.cancel(other)
    queue.cancel(running[1])
    assert queue.next_turn(1) == []
    assert (queue.seats_taken, queue.queued, queue.has_tickets) == (0, 0, False)


def test_queued_requests_time_out() -> None:
    queue, running = full()
    early, late = queued(queue, "alice", now=0), queued(queue, "alice", now=5)
    bob = queued(queue, "bob", now=5)
    assert queue.expire(9.9) == []
    assert queue.expire(10) == [early]
    assert early.state is TicketState.DONE
    # A ticket whose time is over when its turn comes is returned as done, and the seat goes to the next.
    fresh = queued(queue, "carol", now=14)
    queue.release(running[0])
    woken = queue.next_turn(20)
    assert {(ticket, ticket.state) for ticket in woken} == {
        (late, TicketState.DONE),
        (bob, TicketState.DONE),
        (fresh, TicketState.RUNNING),
    }


def test_idle_users_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "_USERS_MAX", 10)
    queue = FairQueue()
    kept = started(queue, "busy")
    for number in range(100):
        complete(queue, started(queue, f"u{number}"), 0.0)
    assert len(queue._users) <= 11
    queue.release(kept)
    assert kept.user is queue._users["busy"]


def test_watches_have_their_own_bounds() -> None:
    queue, _ = full()
    alice, bob = user("alice"), user("bob")
    tickets = [queue.admit_watch(who) for who in (alice, alice, bob)]
    assert queue.admit_watch(alice) == Rejected()
    assert queue.admit_watch(bob) == Rejected(), "the sum is bounded"
    first = tickets.pop(0)
    assert isinstance(first, Ticket)
    queue.charge(first, TURN)
    queue.pause(first)
    queue.release_watch(first)
    tickets.append(queue.admit_watch(bob))
    for ticket in tickets:
        assert isinstance(ticket, Ticket)
        queue.release_watch(ticket)
    assert (queue.watches, queue._watches, queue.seats_taken) == (0, {}, 2), "and take no seat"


def test_releasing_twice_is_a_bug() -> None:
    queue = FairQueue()
    ticket = started(queue, "alice")
    queue.release(ticket)
    with pytest.raises(AssertionError):
        queue.release(ticket)
