"""The life of a claim of resource.k8s.io: who moves it from which state to which, by what."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from dray.sim.claims import ClaimState


class Actor(enum.StrEnum):
    """Who writes claims."""

    USER = "user"
    CONTROLLER = "claim controller"
    SCHEDULER = "scheduler"


@dataclass(frozen=True, slots=True)
class Move:
    """One step of a life; None is before it and after it."""

    before: ClaimState | None
    after: ClaimState | None
    actors: tuple[Actor, ...]
    what: str


_USER, _CONTROLLER, _SCHEDULER = (Actor.USER,), (Actor.CONTROLLER,), (Actor.SCHEDULER,)
_P, _A, _R, _D = ClaimState.PENDING, ClaimState.ALLOCATED, ClaimState.RESERVED, ClaimState.DELETING

TRANSITIONS: Final = (
    Move(None, _P, _USER, "create"),
    Move(None, _P, _CONTROLLER, "create, from a Pod's template"),
    Move(None, _P, _SCHEDULER, "create, for a Pod's extended resources"),
    Move(_P, _R, _SCHEDULER, "set the finalizer, then the allocation and the first Pod"),
    Move(_R, _R, _SCHEDULER, "add a Pod"),
    Move(_R, _R, _CONTROLLER, "remove a Pod that is done, others remain"),
    Move(_R, _P, _CONTROLLER, "the last Pod is done: free the devices, remove the finalizer"),
    Move(_R, _P, _SCHEDULER, "give up what was just allocated"),
    Move(_R, _A, _SCHEDULER, "remove the Pod whose binding failed"),
    Move(_A, _R, _SCHEDULER, "add a Pod"),
    Move(_A, _R, _CONTROLLER, "add a Pod that was bound without the scheduler"),
    Move(_A, _P, _SCHEDULER, "free devices that are of no use to the Pod that waits"),
    Move(_P, None, (Actor.USER, Actor.CONTROLLER), "delete"),
    Move(_A, _D, (Actor.USER, Actor.CONTROLLER), "delete; the finalizer keeps it"),
    Move(_R, _D, (Actor.USER, Actor.CONTROLLER), "delete; the finalizer keeps it"),
    Move(_D, _D, _CONTROLLER, "remove a Pod that is done, others remain"),
    Move(_D, None, _CONTROLLER, "nobody uses it: free the devices, remove the finalizer"),
)
