"""The nodes that drivers have refused for claims, by taking back `selectedNode`. Pure.

A driver need not say which nodes are unsuitable. Without this memory, the scheduler would select the node that it likes
best again and again, and never another one. A refused node is left out for a time that doubles with each refusal, so
that others come first. A claim with many refusals gets nodes at a limited rate, whatever nodes there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dray.api import classic_claims as classic
from dray.api.document import UID
from dray.api.types.cdi_v1alpha1 import ResourceClaim

# As long as the SDK of classic drivers leaves out a node without room.
FIRST_SECONDS: Final = 1.0
SECONDS_MAX: Final = 60.0
# So many nodes are tried one right after the other; then there is a pause after each.
QUICK_MAX: Final = 8
PAUSE_SECONDS: Final = 2.0
# Refused nodes in a message.
NAMED_MAX: Final = 5


@dataclass(slots=True)
class _Node:
    count: int = 0
    # When the node may be selected again.
    until: float = 0.0


@dataclass(slots=True)
class _Claim:
    total: int = 0
    # When any node may be selected again.
    until: float = 0.0
    nodes: dict[str, _Node] = field(default_factory=dict)


class Refusals:
    """The memory of one scheduler, of claims that exist and that no Pod has got since."""

    def __init__(self) -> None:
        self._claims: dict[UID, _Claim] = {}

    def changed(self, old: ResourceClaim | None, new: ResourceClaim | None, now: float) -> tuple[float, ...]:
        """Note a change of a claim; return after how many seconds further nodes can be tried, if one was refused."""
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid or _is_used(new)):
            self._claims.pop(UID(old.metadata.uid or ""), None)
        if old is None or new is None or not _is_refusal(old, new):
            return ()
        claim = self._claims.setdefault(UID(new.metadata.uid or ""), _Claim())
        node = claim.nodes.setdefault(classic.selected_node(old), _Node())
        claim.total += 1
        node.count += 1
        pause = PAUSE_SECONDS if claim.total >= QUICK_MAX else 0.0
        seconds = min(FIRST_SECONDS * 2 ** min(node.count - 1, 10), SECONDS_MAX)
        claim.until, node.until = now + pause, now + seconds
        return tuple(sorted({seconds, *((pause,) if pause else ())}))

    def is_paused(self, claim: ResourceClaim, now: float) -> bool:
        """Whether no node is selected for the claim now."""
        found = self._claims.get(UID(claim.metadata.uid or ""))
        return found is not None and now < found.until

    def refused(self, claim: ResourceClaim, now: float) -> frozenset[str]:
        """Return the nodes that are not selected for the claim now."""
        found = self._claims.get(UID(claim.metadata.uid or ""))
        return (
            frozenset() if found is None else frozenset(name for name, node in found.nodes.items() if now < node.until)
        )

    def describe(self, claim: ResourceClaim) -> str:
        """Return which nodes were refused and how often, the most frequent first; empty without refusals."""
        found = self._claims.get(UID(claim.metadata.uid or ""))
        if found is None:
            return ""
        nodes = sorted(found.nodes.items(), key=lambda item: (-item[1].count, item[0]))
        parts = [f"{name} {node.count} time{'s' if node.count > 1 else ''}" for name, node in nodes[:NAMED_MAX]]
        more = [f"{len(nodes) - NAMED_MAX} more nodes"] if len(nodes) > NAMED_MAX else []
        return f"has refused node {', '.join([*parts, *more])}"


def _is_used(claim: ResourceClaim) -> bool:
    """Whether a Pod has got the claim; one that is only allocated may be freed again, for want of another claim."""
    return bool(classic.status_of(claim).reserved_for)


def _is_refusal(old: ResourceClaim, new: ResourceClaim) -> bool:
    """Whether the driver has taken back the selected node; one that it calls unsuitable is known to be so."""
    node = classic.selected_node(old)
    if not node or classic.selected_node(new) or old.metadata.uid != new.metadata.uid or classic.is_allocated(new):
        return False
    return node not in classic.driver_status(new).unsuitable_nodes
