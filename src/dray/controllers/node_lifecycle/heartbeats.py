"""When each node last gave a sign of life; only times at which the controller saw it count, so clocks may differ.

A heartbeat costs one write to a dictionary. The heap has one entry for each node that is well: an entry that comes up
too early, because heartbeats came since, goes back with its later time.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from datetime import datetime

from dray.api.types.core_v1 import Node
from dray.controllers.node_lifecycle.plan import OWN_REASONS, READY, condition


@dataclass(slots=True)
class _Node:
    """What is known of one node's signs of life."""

    # When the last one was seen, in monotonic seconds.
    seen: float
    # Ready's own heartbeat; None while there is no such condition, or none of the node's own.
    heartbeat: datetime | None
    starting: bool
    renewed: datetime | None = None
    silent: bool = False
    # The time of its entry in the heap; others of its name are void.
    due: float = 0.0


class HeartbeatBook:
    """All nodes' signs of life; time is an argument."""

    def __init__(self, *, grace_seconds: float, startup_grace_seconds: float) -> None:
        self._grace = grace_seconds
        self._startup_grace = startup_grace_seconds
        self._nodes: dict[str, _Node] = {}
        # (when, name); a node that is not silent has exactly one entry that is not void.
        self._due: list[tuple[float, str]] = []

    def observe_node(self, node: Node, now: float, wall: datetime) -> None:
        """Take in a Node as the informer has it."""
        name = node.metadata.name or ""
        ready = condition(node, READY)
        heartbeat = None if ready is None or ready.reason in OWN_REASONS else ready.last_heartbeat_time
        known = self._nodes.get(name)
        if known is None:
            seen = now if ready is not None else now - _age(node, wall)
            self._nodes[name] = _Node(seen, heartbeat, starting=ready is None)
            self._push(name)
            return
        if known.starting and ready is not None:
            # The shorter time counts from here on.
            known.starting = False
            self._push(name)
        if heartbeat is not None and heartbeat != known.heartbeat:
            known.heartbeat = heartbeat
            self._sign(name, known, now)

    def observe_lease(self, name: str, renewed: datetime | None, now: float) -> bool:
        """Take in a renewal; returns whether a silent node spoke again."""
        known = self._nodes.get(name)
        if known is None or renewed is None or (known.renewed is not None and renewed <= known.renewed):
            return False
        known.renewed = renewed
        return self._sign(name, known, now)

    def forget(self, name: str) -> None:
        """The Node is gone."""
        self._nodes.pop(name, None)

    def is_silent(self, name: str) -> bool:
        """Whether the node has been silent for longer than it may."""
        known = self._nodes.get(name)
        return known is not None and known.silent

    def fallen_silent(self, now: float) -> list[str]:
        """The nodes that have become silent since the last question."""
        fallen = []
        while self._due and self._due[0][0] < now:
            due, name = heapq.heappop(self._due)
            known = self._nodes.get(name)
            if known is None or known.silent or known.due != due:
                continue
            if self._deadline(known) < now:
                known.silent = True
                fallen.append(name)
            else:
                self._push(name)
        return fallen

    def excuse_all(self, now: float) -> None:
        """Count as if every node had just spoken: it may have been the controller that could not hear."""
        for name, known in self._nodes.items():
            self._sign(name, known, now)

    def _sign(self, name: str, known: _Node, now: float) -> bool:
        known.seen = now
        if not known.silent:
            return False
        known.silent = False
        self._push(name)
        return True

    def _push(self, name: str) -> None:
        known = self._nodes[name]
        known.due = self._deadline(known)
        heapq.heappush(self._due, (known.due, name))

    def _deadline(self, known: _Node) -> float:
        return known.seen + (self._startup_grace if known.starting else self._grace)


def _age(node: Node, wall: datetime) -> float:
    created = node.metadata.creation_timestamp
    return max((wall - created).total_seconds(), 0.0) if created is not None else 0.0
