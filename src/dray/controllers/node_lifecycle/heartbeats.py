"""When each node last sent a heartbeat, by the controller's own clock, so that clock skew does not matter. Pure.

A heartbeat costs one write to a dictionary. The heap has one entry for each node whose heartbeats arrive. An entry that
is popped although heartbeats arrived since is pushed again with the later deadline.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from datetime import datetime

from dray.api.types.core_v1 import Node
from dray.controllers.node_lifecycle.plan import OWN_REASONS, READY, condition


@dataclass(slots=True)
class _Node:
    """The heartbeats of one node."""

    # When the last heartbeat was seen, in monotonic seconds.
    seen: float
    # Heartbeat time of the condition Ready; None without that condition, or if this controller wrote it.
    heartbeat: datetime | None
    starting: bool
    renewed: datetime | None = None
    # Whether the grace period has passed since the last heartbeat.
    missed: bool = False
    # Deadline of the node's valid heap entry; others of its name are stale.
    due: float = 0.0


class NodeHeartbeats:
    """The heartbeats of all nodes; time is an argument."""

    def __init__(self, *, grace_seconds: float, startup_grace_seconds: float) -> None:
        self._grace = grace_seconds
        self._startup_grace = startup_grace_seconds
        self._nodes: dict[str, _Node] = {}
        # (deadline, name); a node that has not missed its heartbeats has exactly one valid entry.
        self._due: list[tuple[float, str]] = []

    def observe_node(self, node: Node, now: float, wall: datetime) -> None:
        """Record the heartbeat of a Node's status."""
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
            # From now on the shorter grace period applies.
            known.starting = False
            self._push(name)
        if heartbeat is not None and heartbeat != known.heartbeat:
            known.heartbeat = heartbeat
            self._record(name, known, now)

    def observe_lease(self, name: str, renewed: datetime | None, now: float) -> bool:
        """Record a Lease renewal; return whether a node that had missed its heartbeats is back."""
        known = self._nodes.get(name)
        if known is None or renewed is None or (known.renewed is not None and renewed <= known.renewed):
            return False
        known.renewed = renewed
        return self._record(name, known, now)

    def forget(self, name: str) -> None:
        """Remove a deleted Node."""
        self._nodes.pop(name, None)

    def is_missed(self, name: str) -> bool:
        """Return whether the node's grace period has passed without a heartbeat."""
        known = self._nodes.get(name)
        return known is not None and known.missed

    def newly_missed(self, now: float) -> list[str]:
        """Return the nodes whose grace period has passed since the last call."""
        missed = []
        while self._due and self._due[0][0] < now:
            due, name = heapq.heappop(self._due)
            known = self._nodes.get(name)
            if known is None or known.missed or known.due != due:
                continue
            if self._deadline(known) < now:
                known.missed = True
                missed.append(name)
            else:
                self._push(name)
        return missed

    def reset_all(self, now: float) -> None:
        """Count as if every node had just sent a heartbeat: it may be the controller that was disconnected."""
        for name, known in self._nodes.items():
            self._record(name, known, now)

    def _record(self, name: str, known: _Node, now: float) -> bool:
        known.seen = now
        if not known.missed:
            return False
        known.missed = False
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
