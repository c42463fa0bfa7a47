"""Fair queuing of requests by the time they use: seats, one queue per user, and turns of the event loop. Pure.

All requests share one thread. In a turn, every user may start one request, and more until the turn has used
`turn_seconds`; the rest wait, and the next turns wake them, those of the user who has used the least time first. A
request that takes longer than a turn pauses, and continues in a later one by the same rule. One user's requests
therefore delay those of another by about a turn, however many there are and however long they take.
`dray.apiserver.request_limiter` measures the time and awaits the tickets.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count
from typing import Final

from dray.apiserver.request import UserInfo

TOO_MANY_REQUESTS: Final = "Too many requests, please try again later."
RETRY_AFTER_SECONDS: Final = 1
HEALTH_PATHS: Final = frozenset({"/healthz", "/livez", "/readyz"})
_MASTERS: Final = "system:masters"
# A user who was alone is not made to wait for long by what was used before others came.
_LEAD_SECONDS_MAX: Final = 1.0
# The assumed time of a user's first request, and the weight of each cheaper one in the average.
_FIRST_SECONDS: Final = 0.0005
_WEIGHT: Final = 0.25
_QUEUE_BEYOND_SEATS: Final = 128
# Idle users are forgotten beyond this number.
_USERS_MAX: Final = 2048


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on concurrent and queued requests."""

    # Requests in flight; enough to fill a group commit of the store several times over.
    seats: int = 256
    # One user's share of the seats: requests that wait for the store or for a revision cannot take them all.
    user_seats_divisor: int = 4
    # Queued requests per user; at 1,000 requests per second they are served within `wait_seconds_max`.
    queue_length_max: int = 384
    # Queued requests of all users; bounds their memory.
    queued_max: int = 4096
    # Time a request may be queued.
    wait_seconds_max: float = 15.0
    # The time that requests may use before the event loop looks for others.
    turn_seconds: float = 0.001
    # An informer holds one watch per kind; the largest component watches some tens of kinds.
    watches_per_user_max: int = 1024
    watches_max: int = 16384

    @classmethod
    def for_seats(cls, seats: int, *, watches_max: int) -> Limits:
        """Return the limits of a server with so many seats; a user can queue as many requests, and 128 more."""
        return cls(seats=seats, queue_length_max=seats + _QUEUE_BEYOND_SEATS, watches_max=watches_max)

    @property
    def user_seats(self) -> int:
        """The seats that one user can take."""
        return max(1, self.seats // self.user_seats_divisor)


class TicketState(Enum):
    """The state of a request."""

    WAITING = auto()
    RUNNING = auto()
    # Holds its seat and waits for a turn to continue.
    PAUSED = auto()
    # Completed, expired, or cancelled by the client.
    DONE = auto()


@dataclass(slots=True, eq=False)
class _User:
    """The requests and the used time of one user; changed only by `FairQueue`."""

    name: str
    seats: int = 0
    waiting: deque[Ticket] = field(default_factory=deque)
    paused: deque[Ticket] = field(default_factory=deque)
    # Virtual time: the used seconds, but never less than those of a user that was served while this one was idle.
    used_seconds: float = 0.0
    # The time that the next request, or part of a long one, is expected to use: an average of the last ones.
    seconds_each: float = _FIRST_SECONDS
    # The last turn in which a request was started.
    turn: int = -1
    # Whether the user is in the heap of those with tickets.
    listed: bool = False

    @property
    def is_idle(self) -> bool:
        """Whether there are no requests."""
        return not (self.seats or self.waiting or self.paused)


@dataclass(slots=True, eq=False)
class Ticket:
    """One request; `started_at` belongs to its owner, the rest is changed only by `FairQueue`."""

    user: _User
    deadline: float
    state: TicketState
    # Since it was started or continued: the time it was assumed to use when it was woken, and the time it has used.
    expected_seconds: float = 0.0
    used_seconds: float = 0.0
    # When the running part of the request was started.
    started_at: float = 0.0
    # Watches take none.
    seats: int = 1
    # Whether it has paused, and so is expected to use a whole turn again.
    is_long: bool = False

    @property
    def user_name(self) -> str:
        """The name of the user."""
        return self.user.name


@dataclass(frozen=True, slots=True)
class Rejected:
    """The request is answered with 429 and this Retry-After."""

    retry_after_seconds: int = RETRY_AFTER_SECONDS
    message: str = TOO_MANY_REQUESTS


REJECTED: Final = Rejected()


@dataclass(slots=True)
class FairQueue:
    """The occupied seats, the waiting and paused requests, and the time that each user has used."""

    limits: Limits = field(default_factory=Limits)
    _seats_taken: int = 0
    _queued: int = 0
    _paused: int = 0
    _users: dict[str, _User] = field(default_factory=dict)
    # The users with waiting or paused requests, by used time when they were listed.
    _heap: list[tuple[float, int, _User]] = field(default_factory=list)
    _order: count[int] = field(default_factory=count)
    # The largest used time of a user that was woken.
    _virtual_seconds: float = 0.0
    _turn: int = 0
    _turn_used_seconds: float = 0.0
    _watches: dict[str, int] = field(default_factory=dict)
    _watches_total: int = 0

    @property
    def seats_taken(self) -> int:
        """The number of requests in flight."""
        return self._seats_taken

    @property
    def queued(self) -> int:
        """The number of queued requests, without the paused ones."""
        return self._queued

    @property
    def has_tickets(self) -> bool:
        """Whether a request is queued or paused."""
        return bool(self._heap)

    @property
    def watches(self) -> int:
        """The number of open watches."""
        return self._watches_total

    def admit(self, user: UserInfo, now: float) -> Ticket | Rejected:
        """Start, queue or reject a request that is not exempt."""
        flow = self._users.get(user.name) or self._enter(user.name)
        # The user's own requests are served in order, and a paused one is completed before another is started.
        if not flow.listed and self._has_seat(flow):
            is_first = flow.turn != self._turn
            if is_first or self._turn_used_seconds < self.limits.turn_seconds:
                self._start(flow)
                return Ticket(flow, 0.0, TicketState.RUNNING)
        return self._enqueue(flow, now)

    def charge(self, ticket: Ticket, seconds: float) -> None:
        """Record time that a running request has used."""
        ticket.used_seconds += seconds
        self._turn_used_seconds += seconds

    def pause(self, ticket: Ticket) -> None:
        """Let others go before the rest of a running request; `next_turn` returns it when it may continue."""
        assert ticket.state is TicketState.RUNNING
        ticket.state = TicketState.PAUSED
        ticket.is_long = True
        self._settle(ticket)
        ticket.user.paused.append(ticket)
        self._paused += 1
        self._join(ticket.user)

    def release(self, ticket: Ticket) -> None:
        """Release the seat of a running request; the next turn assigns it."""
        assert ticket.state is TicketState.RUNNING
        ticket.state = TicketState.DONE
        self._settle(ticket)
        ticket.user.seats -= ticket.seats
        self._seats_taken -= ticket.seats
        assert ticket.user.seats >= 0

    def cancel(self, ticket: Ticket) -> None:
        """Remove a request whose client disconnected, in any state."""
        if ticket.state is TicketState.WAITING:
            ticket.user.waiting.remove(ticket)
            self._queued -= 1
            ticket.state = TicketState.DONE
        elif ticket.state is TicketState.PAUSED:
            ticket.user.paused.remove(ticket)
            self._paused -= 1
            ticket.state = TicketState.RUNNING
        if ticket.state is TicketState.RUNNING:
            self.release(ticket)

    def next_turn(self, now: float) -> list[Ticket]:
        """Begin a turn: return the requests that start or continue in it, and as DONE those that expired."""
        self._turn += 1
        self._turn_used_seconds = 0.0
        woken: list[Ticket] = []
        without_seat: list[_User] = []
        while self._heap and (not woken or self._turn_used_seconds < self.limits.turn_seconds):
            if not self._paused and self._seats_taken >= self.limits.seats:
                break
            listed_at, _, flow = heapq.heappop(self._heap)
            flow.listed = False
            if listed_at < flow.used_seconds and self._heap and self._heap[0][0] < flow.used_seconds:
                # It has used time since it was listed.
                self._list(flow)
                continue
            ticket = self._next_ticket(flow, now, woken)
            if ticket is None:
                if flow.waiting:
                    without_seat.append(flow)
                continue
            if not without_seat:
                self._virtual_seconds = max(self._virtual_seconds, flow.used_seconds)
            least = self.limits.turn_seconds if ticket.is_long else 0.0
            ticket.expected_seconds = max(flow.seconds_each, least)
            flow.used_seconds += ticket.expected_seconds
            self._turn_used_seconds += ticket.expected_seconds
            flow.turn = self._turn
            woken.append(ticket)
            if flow.waiting or flow.paused:
                self._list(flow)
        for flow in without_seat:
            self._list(flow)
        return woken

    def expire(self, now: float) -> list[Ticket]:
        """Remove and return, as DONE, the tickets past their deadline; to be called periodically."""
        late: list[Ticket] = []
        for flow in self._users.values():
            self._drop_late(flow, now, late)
        return late

    def admit_watch(self, user: UserInfo) -> Ticket | Rejected:
        """Start or reject a watch; watches are never queued and occupy no seat, but long parts of them pause."""
        open_watches = self._watches.get(user.name, 0)
        if open_watches >= self.limits.watches_per_user_max or self._watches_total >= self.limits.watches_max:
            return REJECTED
        self._watches[user.name] = open_watches + 1
        self._watches_total += 1
        return Ticket(self._users.get(user.name) or self._enter(user.name), 0.0, TicketState.RUNNING, seats=0)

    def release_watch(self, ticket: Ticket) -> None:
        """Release a watch, in any state."""
        self.cancel(ticket)
        name = ticket.user.name
        left = self._watches[name] - 1
        if left:
            self._watches[name] = left
        else:
            del self._watches[name]
        self._watches_total -= 1

    def _enter(self, name: str) -> _User:
        if len(self._users) >= _USERS_MAX:
            self._users = {name: flow for name, flow in self._users.items() if not flow.is_idle}
        flow = self._users[name] = _User(name)
        return flow

    def _enqueue(self, flow: _User, now: float) -> Ticket | Rejected:
        if self._queued >= self.limits.queued_max or len(flow.waiting) >= self.limits.queue_length_max:
            return REJECTED
        ticket = Ticket(flow, now + self.limits.wait_seconds_max, TicketState.WAITING)
        flow.waiting.append(ticket)
        self._queued += 1
        self._join(flow)
        return ticket

    def _has_seat(self, flow: _User) -> bool:
        return self._seats_taken < self.limits.seats and flow.seats < self.limits.user_seats

    def _start(self, flow: _User) -> None:
        flow.turn = self._turn
        flow.seats += 1
        self._seats_taken += 1

    def _join(self, flow: _User) -> None:
        """List a user after a new ticket; time that was left unused is not saved up."""
        if not flow.listed:
            flow.used_seconds = max(flow.used_seconds, self._virtual_seconds)
            self._list(flow)

    def _list(self, flow: _User) -> None:
        if not flow.listed:
            flow.listed = True
            heapq.heappush(self._heap, (flow.used_seconds, next(self._order), flow))

    def _next_ticket(self, flow: _User, now: float, expired: list[Ticket]) -> Ticket | None:
        """Take the ticket of the user's next request that can run, if there is one."""
        if flow.paused:
            ticket = flow.paused.popleft()
            self._paused -= 1
        else:
            self._drop_late(flow, now, expired)
            if not flow.waiting or not self._has_seat(flow):
                return None
            ticket = flow.waiting.popleft()
            self._queued -= 1
            self._start(flow)
        ticket.state = TicketState.RUNNING
        return ticket

    def _drop_late(self, flow: _User, now: float, late: list[Ticket]) -> None:
        while flow.waiting and flow.waiting[0].deadline <= now:
            ticket = flow.waiting.popleft()
            ticket.state = TicketState.DONE
            self._queued -= 1
            late.append(ticket)

    def _settle(self, ticket: Ticket) -> None:
        """Account for the time that a request has used since it was started or continued."""
        flow, used = ticket.user, ticket.used_seconds
        lead_max = self._virtual_seconds + _LEAD_SECONDS_MAX
        flow.used_seconds = min(flow.used_seconds + used - ticket.expected_seconds, lead_max)
        # Expensive requests are expected at once, cheap ones gradually.
        flow.seconds_each = max(used, flow.seconds_each + (used - flow.seconds_each) * _WEIGHT)
        ticket.expected_seconds = ticket.used_seconds = 0.0


def is_exempt(user: UserInfo, path: str = "") -> bool:
    """Return whether a request is never queued: those of administrators, and health checks under load."""
    return path in HEALTH_PATHS or _MASTERS in user.groups
