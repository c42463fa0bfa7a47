"""Fair queuing of requests: a limited number of seats, and one queue per user, served round-robin. Pure.

`dray.apiserver.request_limiter` awaits the tickets. A client that sends requests in a loop fills only its own queue.
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
    """Limits on concurrent and queued requests."""

    # Requests in flight; enough to fill a group commit of the store several times over.
    seats: int = 256
    # Queued requests per user; at 1,000 requests per second they are served within `wait_seconds_max`.
    queue_length_max: int = 128
    # Queued requests of all users; bounds their memory.
    queued_max: int = 4096
    # Time a request may be queued.
    wait_seconds_max: float = 15.0
    # An informer holds one watch per kind; the largest component watches some tens of kinds.
    watches_per_user_max: int = 1024
    watches_max: int = 16384


class TicketState(Enum):
    """The state of a queued request."""

    WAITING = auto()
    ADMITTED = auto()
    # Released, expired, or cancelled by the client.
    DONE = auto()


@dataclass(slots=True, eq=False)
class Ticket:
    """A queued request; changed only by `FairQueue`."""

    user_name: str
    deadline: float
    state: TicketState = TicketState.WAITING


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request may run; `release` must follow, exactly once."""

    # Exempt requests occupy no seat.
    exempt: bool = False


@dataclass(frozen=True, slots=True)
class Queued:
    """The request waits until its ticket is admitted or expires."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Rejected:
    """The request is answered with 429 and this Retry-After."""

    retry_after_seconds: int = RETRY_AFTER_SECONDS
    message: str = TOO_MANY_REQUESTS


Admission: TypeAlias = Admitted | Queued | Rejected

_ADMITTED: Final = Admitted()
_EXEMPT: Final = Admitted(exempt=True)
_REJECTED: Final = Rejected()


@dataclass(slots=True)
class FairQueue:
    """The occupied seats, the queues, and the round-robin order of users."""

    limits: Limits = field(default_factory=Limits)
    _seats_taken: int = 0
    _queued: int = 0
    # By user name; contain only users with queued requests.
    _queues: dict[str, deque[Ticket]] = field(default_factory=dict)
    _turns: deque[str] = field(default_factory=deque)
    _watches: dict[str, int] = field(default_factory=dict)
    _watches_total: int = 0

    @property
    def seats_taken(self) -> int:
        """The number of requests in flight."""
        return self._seats_taken

    @property
    def queued(self) -> int:
        """The number of queued requests."""
        return self._queued

    @property
    def watches(self) -> int:
        """The number of open watches."""
        return self._watches_total

    def admit(self, user: UserInfo, now: float, *, path: str = "") -> Admission:
        """Admit, queue or reject a request; `path` is given for non-resource requests."""
        if is_exempt(user, path):
            return _EXEMPT
        # Requests are never queued while a seat is free: a released seat goes to the next one at once.
        if self._seats_taken < self.limits.seats:
            self._seats_taken += 1
            return _ADMITTED
        return self._enqueue(user.name, now)

    def release(self, admission: Admitted | Ticket, now: float) -> list[Ticket]:
        """Release a seat; return the tickets that were admitted, and as DONE those that expired."""
        if isinstance(admission, Ticket):
            assert admission.state is TicketState.ADMITTED
            admission.state = TicketState.DONE
        elif admission.exempt:
            return []
        self._seats_taken -= 1
        assert self._seats_taken >= 0
        return self._hand_on(now)

    def cancel(self, ticket: Ticket, now: float) -> list[Ticket]:
        """Remove a request whose client disconnected; return what `release` returns."""
        if ticket.state is TicketState.ADMITTED:
            return self.release(ticket, now)
        if ticket.state is TicketState.WAITING:
            self._queues[ticket.user_name].remove(ticket)
            self._left_queue(ticket)
        return []

    def expire(self, now: float) -> list[Ticket]:
        """Remove and return, as DONE, the tickets past their deadline; to be called periodically."""
        late: list[Ticket] = []
        for queue in list(self._queues.values()):
            while queue and queue[0].deadline <= now:
                late.append(queue.popleft())
                self._left_queue(late[-1])
        return late

    def admit_watch(self, user: UserInfo) -> Admission:
        """Admit or reject a watch; watches are never queued and occupy no seat."""
        open_watches = self._watches.get(user.name, 0)
        if open_watches >= self.limits.watches_per_user_max or self._watches_total >= self.limits.watches_max:
            return _REJECTED
        self._watches[user.name] = open_watches + 1
        self._watches_total += 1
        return _ADMITTED

    def release_watch(self, user: UserInfo) -> None:
        """Release a watch."""
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
        """Assign the free seats round-robin, one request per user."""
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
                # An expired request does not use up its user's turn.
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
    """Return whether a request bypasses the queue: those of administrators, and health checks under load."""
    return path in HEALTH_PATHS or _MASTERS in user.groups
