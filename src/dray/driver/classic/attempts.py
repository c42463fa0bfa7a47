"""Which calls of the driver have failed, which nodes it has refused, and when the next attempt is due. Pure.

A failed call is repeated after 1 s, doubling to 60 s. Refused nodes count as unsuitable for as long, so that the
scheduler does not select them again at once; a claim that many nodes have refused waits longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from dray.api.document import NamespacedName
from dray.driver.classic.plan import Task

RETRY_SECONDS_FIRST: Final = 1.0
RETRY_SECONDS_MAX: Final = 60.0
# For each refused node: bounds the attempts of a driver that reports no unsuitable nodes in a large cluster.
REFUSED_NODE_SECONDS: Final = 0.5


def next_wait(before: float) -> float:
    """Return the wait after a failure, given the one before it; 0 for the first failure."""
    return min(max(2 * before, RETRY_SECONDS_FIRST), RETRY_SECONDS_MAX)


@dataclass(frozen=True, slots=True)
class Request:
    """What the driver was asked to do; another request does not wait for the failure of this one."""

    uid: str
    task: Task
    node: str = ""


@dataclass(frozen=True, slots=True)
class _Failure:
    request: Request
    wait: float
    due: float
    # It may succeed as soon as something is freed.
    no_room: bool


@dataclass(slots=True)
class _Refusals:
    nodes: set[str] = field(default_factory=set)
    wait: float = 0.0
    due: float = 0.0


class Attempts:
    """The failures of all claims; time is an argument."""

    def __init__(self) -> None:
        self._failures: dict[NamespacedName, _Failure] = {}
        self._refusals: dict[NamespacedName, _Refusals] = {}

    def __bool__(self) -> bool:
        return bool(self._failures or self._refusals)

    # --- Failed calls. ---

    def failed(self, key: NamespacedName, request: Request, now: float, *, no_room: bool = False) -> float:
        """Record a failure; return the seconds to wait."""
        before = self._failures.get(key)
        wait = next_wait(before.wait if before is not None and before.request == request else 0.0)
        self._failures[key] = _Failure(request, wait, now + wait, no_room)
        return wait

    def wait(self, key: NamespacedName, request: Request, now: float) -> float:
        """Return the seconds until the request may be attempted; 0 if it may be now."""
        failure = self._failures.get(key)
        if failure is None or failure.request != request:
            return 0.0
        return max(0.0, failure.due - now)

    def succeeded(self, key: NamespacedName) -> None:
        """Record that the call succeeded."""
        self._failures.pop(key, None)

    # --- Refused nodes. ---

    def refuse(self, key: NamespacedName, nodes: Iterable[str], now: float) -> None:
        """Record nodes that were refused for the claim."""
        refusals = self._refusals.setdefault(key, _Refusals())
        if not refusals.nodes:
            refusals.wait = next_wait(refusals.wait)
        refusals.nodes.update(nodes)
        refusals.due = now + max(refusals.wait, REFUSED_NODE_SECONDS * len(refusals.nodes))

    def refused(self, key: NamespacedName, now: float) -> frozenset[str]:
        """Return the nodes that are not to be selected yet."""
        refusals = self._refusals.get(key)
        if refusals is None:
            return frozenset()
        if now >= refusals.due:
            refusals.nodes.clear()
        return frozenset(refusals.nodes)

    def refused_for(self, key: NamespacedName, now: float) -> float:
        """Return for how long nodes stay refused; 0 if none is."""
        return max(0.0, self._refusals[key].due - now) if self.refused(key, now) else 0.0

    # --- Changes. ---

    def room_was_made(self) -> list[NamespacedName]:
        """Offer everything that had no room again; return the claims whose attempt is due."""
        waiting = [key for key, failure in self._failures.items() if failure.no_room]
        for key in waiting:
            del self._failures[key]
        for refusals in self._refusals.values():
            # The wait stays: if there is still no room, the next one is longer.
            refusals.nodes.clear()
        return waiting

    def forget(self, key: NamespacedName) -> None:
        """Forget the claim: it is allocated, deleted, or its class has changed."""
        self._failures.pop(key, None)
        self._refusals.pop(key, None)
