"""Shares the server between its users: bounded seats, one queue per user, served in turn.

A state machine without a clock of its own and without waiting: the hand that serves HTTP waits for the
tickets it is told to wake. One client in a loop fills its own queue and nobody else's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, TypeAlias

from dray.apiserver.request import UserInfo

TOO_MANY_REQUESTS: Final = "Too many requests, please try again later."
RETRY_AFTER_SECONDS: Final = 1
HEALTH_PATHS: Final = frozenset({"/healthz", "/livez", "/readyz"})
_MASTERS: Final = "system:masters"


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of what the server takes on at once."""

    # Requests being worked on; enough to fill a group commit of the store several times over.
    seats: int = 256
    # Waiting requests of one user; at 1,000 requests a second they are served within the wait below.
    queue_length_max: int = 128
    # Waiting requests of all users together: what bounds the memory they hold.
    queued_max: int = 4096
    # How long a request may wait for a seat.
    wait_seconds_max: float = 15.0
    # An informer holds one watch per kind; the largest component watches some tens of kinds.
    watches_per_user_max: int = 1024
    watches_max: int = 16384


class TicketState(Enum):
    """Where a queued request stands."""

    WAITING = auto()
    ADMITTED = auto()
    # Gone: released, expired, or given up by its client.
    DONE = auto()


@dataclass(slots=True, eq=False)
class Ticket:
    """A queued request; changed only by `FairQueue`."""

    user_name: str
    deadline: float
    state: TicketState = TicketState.WAITING


@dataclass(frozen=True, slots=True)
class Admitted:
    """Go on; `release` must follow, exactly once."""

    # Exempt requests take no seat.
    exempt: bool = False


@dataclass(frozen=True, slots=True)
class Queued:
    """Wait until the ticket is woken."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Rejected:
    """Answer 429 with this Retry-After."""

    retry_after_seconds: int = RETRY_AFTER_SECONDS
    message: str = TOO_MANY_REQUESTS


Admission: TypeAlias = Admitted | Queued | Rejected

_ADMITTED: Final = Admitted()
_EXEMPT: Final = Admitted(exempt=True)
_REJECTED: Final = Rejected()


@dataclass(slots=True)
class FairQueue:
    """Who is being served, who waits, and whose turn is next."""

    limits: Limits = field(default_factory=Limits)
    _seats_taken: int = 0
    _queued: int = 0
    # By user name; only users with someone waiting are in either.
    _queues: dict[str, deque[Ticket]] = field(default_factory=dict)
    _turns: deque[str] = field(default_factory=deque)
    _watches: dict[str, int] = field(default_factory=dict)
    _watches_total: int = 0

    @property
    def seats_taken(self) -> int:
        """Requests being worked on."""
        return self._seats_taken

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return self._queued

    @property
    def watches(self) -> int:
        """Watches that are open."""
        return self._watches_total

    def admit(self, user: UserInfo, now: float, *, path: str = "") -> Admission:
        """Seat, queue or refuse a request; `path` is given for requests that are not for a resource."""
        if is_exempt(user, path):
            return _EXEMPT
        # A free seat while others wait cannot be: seats are handed on when they are given back.
        if self._seats_taken < self.limits.seats:
            self._seats_taken += 1
            return _ADMITTED
        return self._enqueue(user.name, now)

    def release(self, admission: Admitted | Ticket, now: float) -> list[Ticket]:
        """Give a seat back; the returned tickets have been admitted or, if DONE, have waited too long."""
        if isinstance(admission, Ticket):
            assert admission.state is TicketState.ADMITTED
            admission.state = TicketState.DONE
        elif admission.exempt:
            return []
        self._seats_taken -= 1
        assert self._seats_taken >= 0
        return self._hand_on(now)

    def cancel(self, ticket: Ticket, now: float) -> list[Ticket]:
        """The client of a queued request went away; returns what `release` returns."""
        if ticket.state is TicketState.ADMITTED:
            return self.release(ticket, now)
        if ticket.state is TicketState.WAITING:
            self._queues[ticket.user_name].remove(ticket)
            self._left_queue(ticket)
        return []

    def expire(self, now: float) -> list[Ticket]:
        """Take out and return, as DONE, the tickets that have waited too long; to be called now and then."""
        late: list[Ticket] = []
        for queue in list(self._queues.values()):
            while queue and queue[0].deadline <= now:
                late.append(queue.popleft())
                self._left_queue(late[-1])
        return late

    def admit_watch(self, user: UserInfo) -> Admission:
        """Count a watch in, or refuse it; watches wait for nothing and hold no seat."""
        open_watches = self._watches.get(user.name, 0)
        if open_watches >= self.limits.watches_per_user_max or self._watches_total >= self.limits.watches_max:
            return _REJECTED
        self._watches[user.name] = open_watches + 1
        self._watches_total += 1
        return _ADMITTED

    def release_watch(self, user: UserInfo) -> None:
        """Count a watch out."""
        left = self._watches[user.name] - 1
        if left:
            self._watches[user.name] = left
        else:
            del self._watches[user.name]
        self._watches_total -= 1

    def _enqueue(self, user_name: str, now: float) -> Admission:
        queue = self._queues.get(user_name)
        if self._queued >= self.limits.queued_max:
            return _REJECTED
        if queue is None:
            queue = self._queues[user_name] = deque()
            self._turns.append(user_name)
        elif len(queue) >= self.limits.queue_length_max:
            return _REJECTED
        ticket = Ticket(user_name, now + self.limits.wait_seconds_max)
        queue.append(ticket)
        self._queued += 1
        return Queued(ticket)

    def _hand_on(self, now: float) -> list[Ticket]:
        """Give the free seats to the users whose turn it is, one request each."""
        woken: list[Ticket] = []
        while self._turns and self._seats_taken < self.limits.seats:
            user_name = self._turns.popleft()
            queue = self._queues[user_name]
            ticket = queue.popleft()
            self._queued -= 1
            late = ticket.deadline <= now
            ticket.state = TicketState.DONE if late else TicketState.ADMITTED
            self._seats_taken += not late
            woken.append(ticket)
            if not queue:
                del self._queues[user_name]
            elif late:
                # A request that came to nothing does not use up its user's turn.
                self._turns.appendleft(user_name)
            else:
                self._turns.append(user_name)
        return woken

    def _left_queue(self, ticket: Ticket) -> None:
        ticket.state = TicketState.DONE
        self._queued -= 1
        if not self._queues[ticket.user_name]:
            del self._queues[ticket.user_name]
            self._turns.remove(ticket.user_name)


def is_exempt(user: UserInfo, path: str = "") -> bool:
    """Administrators must get through to mend things, and probes must not mistake load for death."""
    return path in HEALTH_PATHS or _MASTERS in user.groups
