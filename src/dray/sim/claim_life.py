"""State transitions of a ResourceClaim, and which component causes them."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from dray.sim.claims import ClaimState


class Actor(enum.StrEnum):
    """Writers of claims."""

    USER = "user"
    CONTROLLER = "claim controller"
    SCHEDULER = "scheduler"


@dataclass(frozen=True, slots=True)
class Transition:
    """One state transition; None is the state before creation and after deletion."""

    before: ClaimState | None
    after: ClaimState | None
    actors: tuple[Actor, ...]
    what: str


_USER, _CONTROLLER, _SCHEDULER = (Actor.USER,), (Actor.CONTROLLER,), (Actor.SCHEDULER,)
_P, _A, _R, _D = ClaimState.PENDING, ClaimState.ALLOCATED, ClaimState.RESERVED, ClaimState.DELETING

TRANSITIONS: Final = (
    Transition(None, _P, _USER, "create"),
    Transition(None, _P, _CONTROLLER, "create with the finalizer, from a Pod's template"),
    Transition(None, _P, _SCHEDULER, "create with the finalizer, for a Pod's extended resources"),
    Transition(_P, _R, _SCHEDULER, "set the finalizer if it is missing, then the allocation and the first Pod"),
    Transition(_R, _R, _SCHEDULER, "add a Pod"),
    Transition(_R, _R, _CONTROLLER, "remove a finished Pod while others remain"),
    Transition(_R, _P, _CONTROLLER, "the last Pod has finished: deallocate, remove the finalizer"),
    Transition(_R, _P, _SCHEDULER, "roll back the allocation"),
    Transition(_R, _A, _SCHEDULER, "remove the Pod whose binding failed"),
    Transition(_A, _R, _SCHEDULER, "add a Pod"),
    Transition(_A, _R, _CONTROLLER, "add a Pod that was bound without the scheduler"),
    Transition(_A, _P, _SCHEDULER, "deallocate, because the pending Pod cannot use the devices"),
    Transition(_P, None, (Actor.USER, Actor.CONTROLLER), "delete"),
    Transition(_P, _D, _USER, "delete; the finalizer, if there is one, delays it"),
    Transition(_A, _D, (Actor.USER, Actor.CONTROLLER), "delete; the finalizer delays it"),
    Transition(_R, _D, (Actor.USER, Actor.CONTROLLER), "delete; the finalizer delays it"),
    Transition(_D, _D, _CONTROLLER, "remove a finished Pod while others remain"),
    Transition(_D, None, _CONTROLLER, "no users left: deallocate, remove the finalizer"),
)
