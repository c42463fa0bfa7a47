"""Safety and fairness of the request queue under random arrivals, costs, pauses and disconnects."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from dray.apiserver.fairness import FairQueue, Limits, Rejected, Ticket, TicketState
from dray.apiserver.request import UserInfo

TURN = 0.001
LIMITS = Limits(seats=6, user_seats_divisor=2, queue_length_max=4, queued_max=9, turn_seconds=TURN)
NAMES = ("a", "b", "c")
_ACTIONS = st.one_of(
    st.tuples(st.just("admit"), st.sampled_from(NAMES)),
    st.tuples(st.sampled_from(("release", "pause", "cancel")), st.integers(0, 50)),
    st.tuples(st.just("turn"), st.just(0)),
)


@given(st.lists(_ACTIONS, max_size=120))
@settings(max_examples=150, deadline=None)
def test_counts_are_right_and_nothing_is_lost(actions: list[tuple[str, str | int]]) -> None:
    queue = FairQueue(LIMITS)
    tickets: list[Ticket] = []
    for action, value in actions:
        live = [ticket for ticket in tickets if ticket.state is not TicketState.DONE]
        running = [ticket for ticket in live if ticket.state is TicketState.RUNNING]
        if action == "admit":
            ticket = queue.admit(UserInfo(str(value)), 0.0)
            if not isinstance(ticket, Rejected):
                tickets.append(ticket)
        elif action == "turn":
            queue.next_turn(0.0)
        elif action == "cancel" and live:
            queue.cancel(live[int(value) % len(live)])
        elif action in ("release", "pause") and running:
            ticket = running[int(value) % len(running)]
            queue.charge(ticket, int(value) / 50 * TURN)
            (queue.pause if action == "pause" else queue.release)(ticket)
        states = Counter(ticket.state for ticket in tickets)
        seats = states[TicketState.RUNNING] + states[TicketState.PAUSED]
        assert queue.seats_taken == seats <= LIMITS.seats
        assert queue.queued == states[TicketState.WAITING] <= LIMITS.queued_max
    # Everything completes once the turns go on.
    for _ in range(3 * len(tickets) + 1):
        for ticket in tickets:
            if ticket.state is TicketState.RUNNING:
                queue.release(ticket)
        queue.next_turn(0.0)
    assert all(ticket.state is TicketState.DONE for ticket in tickets)
    assert (queue.seats_taken, queue.queued, queue.has_tickets) == (0, 0, False)


@given(st.lists(st.floats(TURN / 20, 20 * TURN), min_size=2, max_size=5))
@settings(max_examples=60, deadline=None)
def test_backlogged_users_get_equal_time_whatever_their_requests_cost(costs: list[float]) -> None:
    queue = FairQueue(Limits(queue_length_max=10_000, queued_max=100_000, turn_seconds=TURN))
    used: dict[int, float] = dict.fromkeys(range(len(costs)), 0.0)
    backlog: Counter[int] = Counter()
    while sum(used.values()) < len(costs) * max(*costs, TURN) * 40:
        for number in range(len(costs)):
            while backlog[number] < 50:
                ticket = queue.admit(UserInfo(str(number)), 0.0)
                assert isinstance(ticket, Ticket)
                if ticket.state is TicketState.RUNNING:
                    used[number] += costs[number]
                    queue.charge(ticket, costs[number])
                    queue.release(ticket)
                else:
                    backlog[number] += 1
        for ticket in queue.next_turn(0.0):
            number = int(ticket.user_name)
            backlog[number] -= 1
            used[number] += costs[number]
            queue.charge(ticket, costs[number])
            queue.release(ticket)
    shares = [used[number] for number in range(len(costs))]
    assert max(shares) - min(shares) <= 6 * max(*costs, TURN)


@given(st.floats(TURN / 20, 3 * TURN), st.integers(1, 100))
@settings(max_examples=60, deadline=None)
def test_a_modest_user_is_delayed_by_a_turn_however_many_requests_another_sends(cost: float, connections: int) -> None:
    """Counted in the time that the greedy user's requests take between the arrival and the start of another's."""
    queue = FairQueue(Limits(turn_seconds=TURN))
    pending = connections
    woken: list[Ticket] = []
    for _ in range(30):
        spent = 0.0
        # In one turn of the event loop: the requests that the last turn woke, then the new ones of both users.
        for ticket in woken:
            spent += cost
            queue.charge(ticket, cost)
            queue.release(ticket)
            pending += 1
        woken = queue.next_turn(0.0)
        while pending:
            pending -= 1
            admitted = queue.admit(UserInfo("greedy"), 0.0)
            if isinstance(admitted, Ticket) and admitted.state is TicketState.RUNNING:
                spent += cost
                queue.charge(admitted, cost)
                queue.release(admitted)
        modest = queue.admit(UserInfo("modest"), 0.0)
        assert isinstance(modest, Ticket)
        assert modest.state is TicketState.RUNNING, "started at once"
        queue.charge(modest, TURN / 10)
        queue.release(modest)
        assert spent <= 3 * TURN + 2 * cost
