"""Outcomes kept until something of their node changes: Pods of one template ask the same of the same nodes.

What a search finds depends on what claims ask for, on the node's devices with their taints, and on which devices of the
node's pools are in use; not on whose claims they are. Shares of devices have an identity of their own, and are never
kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from dray.allocator.allocations import Allocations
from dray.allocator.candidates import Candidates
from dray.allocator.outcome import Outcome
from dray.allocator.plan import Plan
from dray.allocator.segments import TaintRules
from dray.allocator.view import NodeView
from dray.api.types.core_v1 import Node
from dray.api.types.resource_v1 import ResourceClaim

# Outcomes kept over all questions, each of which counts as one more; beyond that the question that was not asked for
# longest is forgotten.
OUTCOMES_MAX: Final = 50_000

# Outcomes of earlier kept for one question; beyond that too much comes and goes for keeping to help.
EARLIER_MAX: Final = 4096

# Differs from every set of devices.
_MORE_MATTERS: Final = -1

_encode = msgspec.json.Encoder().encode


class Known:
    """An outcome, and what it was found for."""

    __slots__ = ("blocked", "fits", "node", "outcome", "rules", "stamps", "version", "view")

    def __init__(
        self, view: NodeView, rules: TaintRules, allocations: Allocations, version: int, outcome: Outcome
    ) -> None:
        self.view = view
        self.rules = rules
        self.stamps = tuple([(pool, allocations.stamp(pool)) for pool in view.pool_keys])
        # The devices that could not be had; no set at all where more than that matters.
        self.blocked = _MORE_MATTERS if view.shared | view.consumers else view.blocked(allocations)
        self.outcome = outcome
        self.fits = outcome.allocations is not None
        # The node and the inventory's version for which the view is known to be the newest.
        self.node: Node = view.node
        self.version = version

    def is_used_alike(self, allocations: Allocations) -> bool:
        """Whether the same devices are in use as then."""
        stamp_of = allocations.stamp
        for pool, stamp in self.stamps:  # noqa: SIM110 - a generator costs twice as much here
            if stamp_of(pool) != stamp:
                return False
        return True


class Asked:
    """What is known about one question."""

    __slots__ = ("_by_pool", "_earlier", "_seen", "candidates", "known", "plan", "unsure")

    def __init__(self, plan: Plan) -> None:
        # Of the claims that asked it first.
        self.plan = plan
        self.known: dict[str, Known] = {}
        # Have at least the nodes of which no valid outcome says that they do not fit, or that they do.
        self.candidates = Candidates()
        self.unsure = Candidates()
        # By node and the devices that could not be had, what was found there before some were taken or freed.
        self._earlier: dict[tuple[str, int], Known] = {}
        # Nodes by the pools that they have devices of.
        self._by_pool: dict[str, dict[str, None]] = {}
        # Up to which version of the allocations outdated outcomes are dropped.
        self._seen = 0

    def add(self, known: Known) -> None:
        """Keep an outcome."""
        name = known.view.name
        self.known[name] = known
        # The other one has the node still, until somebody drops it for what is known now.
        (self.candidates if known.fits else self.unsure).note(name)
        for pool, _ in known.stamps:
            self._by_pool.setdefault(pool, {})[name] = None

    def again(self, view: NodeView, rules: TaintRules, allocations: Allocations) -> Outcome | None:
        """What was found on the node when the same devices were free: often one that is freed is the one last taken."""
        known = self._earlier.get((view.name, view.blocked(allocations)))
        if known is None or known.view is not view or known.rules is not rules:
            return None
        return known.outcome

    @property
    def size(self) -> int:
        """How many outcomes are kept, and one for the question."""
        return 1 + len(self.known) + len(self._earlier)

    def drop_outdated(self, allocations: Allocations) -> None:
        """Forget the outcomes of nodes some of whose devices were taken or freed."""
        changed = allocations.changed_since(self._seen)
        self._seen = allocations.version
        if changed is None:
            self.known.clear()
            self._by_pool.clear()
            self.candidates.note_all()
            self.unsure.note_all()
            return
        for pool in changed:
            for name in self._by_pool.pop(pool, ()):
                known = self.known.get(name)
                if known is not None and known.is_used_alike(allocations):
                    self._by_pool.setdefault(pool, {})[name] = None
                else:
                    self._drop(name)

    def _drop(self, name: str) -> None:
        known = self.known.pop(name, None)
        # That nothing fits is found as quickly as remembered.
        if known is not None and known.fits and known.blocked != _MORE_MATTERS:
            if len(self._earlier) >= EARLIER_MAX:
                self._earlier.clear()
            self._earlier[name, known.blocked] = known
        self.candidates.note(name)
        self.unsure.note(name)


class Recall:
    """What is known, by what is asked for."""

    def __init__(self, outcomes_max: int = OUTCOMES_MAX) -> None:
        self._outcomes_max = outcomes_max
        self._asked: dict[tuple[object, ...], Asked] = {}

    def known_for(self, claims: Sequence[ResourceClaim], classes_version: int, plan: Callable[[], Plan]) -> Asked:
        """What is known for claims that ask for this; `plan` is called if nobody has asked it before."""
        key = (classes_version, *[_encode(claim.spec.devices) for claim in claims])
        # The newest goes last.
        asked = self._asked.pop(key, None)
        if asked is None:
            asked = Asked(plan())
            self._make_room()
        self._asked[key] = asked
        return asked

    def _make_room(self) -> None:
        count = sum(asked.size for asked in self._asked.values())
        while count > self._outcomes_max:
            count -= self._asked.pop(next(iter(self._asked))).size


def may_keep(outcome: Outcome) -> bool:
    """Whether another claim that asks for the same may have this very outcome."""
    return outcome.allocations is None or not any(
        result.share_id is not None for allocation in outcome.allocations for result in allocation.devices.results
    )
