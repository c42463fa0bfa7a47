"""Values of capacity plans. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a Pod goes."""

    pod: str
    node: str
    is_new_node: bool = False
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PendingPod:
    """A Pod without a place, and why."""

    pod: str
    why: str


@dataclass(frozen=True, slots=True)
class AddedNode:
    """A node to add, the Pods on it, and why they need it."""

    name: str
    shape: str
    price: float
    pods: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """Nodes to add so that Pods fit."""

    added: tuple[AddedNode, ...]
    placements: tuple[Placement, ...]
    unplaced: tuple[PendingPod, ...]
    price: float
    # No plan costs less.
    bound: float
    # Whether the price equals the bound.
    is_optimal: bool
    notes: tuple[str, ...] = ()
    # Pods that wait for something else than room.
    blocked: tuple[PendingPod, ...] = ()


@dataclass(frozen=True, slots=True)
class RemovableNode:
    """A node that can be removed, and where its Pods go."""

    name: str
    placements: tuple[Placement, ...] = ()


@dataclass(frozen=True, slots=True)
class KeptNode:
    """A node that cannot be removed, and why."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class RemovalPlan:
    """Nodes that can be removed, one after the other in this order."""

    removable: tuple[RemovableNode, ...]
    kept: tuple[KeptNode, ...]
    # Never more can be removed.
    at_most: int
    # Pods that were pending before, and stay so.
    pending: int = 0

    @property
    def is_optimal(self) -> bool:
        """Whether no more nodes can be removed."""
        return len(self.removable) == self.at_most


@dataclass(frozen=True, slots=True)
class JointPlan:
    """Where Pods go if they are placed together."""

    placements: tuple[Placement, ...]
    # Pods that stay pending if they are placed one by one, and if they are placed together.
    pending_alone: tuple[PendingPod, ...]
    unplaced: tuple[PendingPod, ...]
    # Whether it is proved that not all fit.
    is_proved: bool = False
    # Whether the scheduler places all of them if they arrive in the order of the placements.
    is_order: bool = False
    notes: tuple[str, ...] = ()
    blocked: tuple[PendingPod, ...] = ()
