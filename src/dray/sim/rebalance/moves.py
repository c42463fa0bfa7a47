"""Values of a rebalancing plan."""

from __future__ import annotations

from dataclasses import dataclass

from dray.sim.headroom import KindHeadroom


@dataclass(frozen=True, slots=True)
class Move:
    """A Pod that is evicted; its controller creates a replacement, which the scheduler places elsewhere."""

    namespace: str
    name: str
    uid: str
    # The uid of its controller, which owns the replacement too.
    controller_uid: str
    # Kind and name of the controller.
    controller: str
    from_node: str
    # Where the scheduler's code placed the replacement.
    to_node: str
    why: str
    devices: tuple[str, ...] = ()

    @property
    def pod(self) -> str:
        """Return `namespace/name`."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Step:
    """Moves that make room for one Pod on one node, which is held until they are done.

    A Pod of a gang may need no moves: its node is held while room is made for the others.
    """

    # The pending Pod; empty if room is made for a Pod that does not exist yet.
    namespace: str
    name: str
    uid: str
    # The Pod, or the shape or kind of Pod that fits afterwards.
    description: str
    node: str
    moves: tuple[Move, ...]
    # Whether the room is for a Pod that a later step moves, instead of one that is to fit.
    for_move: bool = False
    # Nodes that are held as well: they have room for Pods that are not there yet, and replacements must not take it.
    also_held: tuple[str, ...] = ()

    @property
    def is_pod(self) -> bool:
        """Whether the room is for a Pod that exists."""
        return bool(self.uid)


@dataclass(frozen=True, slots=True)
class NotHelped:
    """A Pod for which no moves were found, and why."""

    pod: str
    why: str


@dataclass(frozen=True, slots=True)
class RebalancePlan:
    """The steps in order, and what they do not achieve."""

    steps: tuple[Step, ...] = ()
    # Pending Pods that fit without any move.
    fitting: tuple[str, ...] = ()
    not_helped: tuple[NotHelped, ...] = ()
    # Reason -> number of Pods that must stay for it.
    unmovable: tuple[tuple[str, int], ...] = ()
    pods: int = 0
    moves_max: int = 0
    # How many more typical Pods fit before and after.
    before: tuple[KindHeadroom, ...] = ()
    after: tuple[KindHeadroom, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def helping(self) -> tuple[Step, ...]:
        """Return the steps that make room for Pods that are to fit."""
        return tuple(step for step in self.steps if not step.for_move)

    @property
    def move_count(self) -> int:
        """Return the number of moves."""
        return sum(len(step.moves) for step in self.steps)
