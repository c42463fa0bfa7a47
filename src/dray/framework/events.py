"""What happens in the cluster, as plugins are asked about it: could this make a rejected Pod schedulable?"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from dray.api.types.core_v1 import Pod

# Kinds of objects; other kinds are named `<plural>.<version>.<group>`.
POD: Final = "Pod"
ASSIGNED_POD: Final = "AssignedPod"
UNSCHEDULED_POD: Final = "UnscheduledPod"
NODE: Final = "Node"
RESOURCE_CLAIM: Final = "ResourceClaim"
RESOURCE_SLICE: Final = "ResourceSlice"
DEVICE_CLASS: Final = "DeviceClass"
DEVICE_TAINT_RULE: Final = "DeviceTaintRule"
CLASSIC_CLAIM: Final = "resourceclaims.v1alpha1.cdi.k8s.io"
CLASSIC_CLASS: Final = "resourceclasses.v1alpha1.cdi.k8s.io"
WILDCARD: Final = "*"


class Action(enum.Flag):
    """What happened to the object."""

    ADD = enum.auto()
    DELETE = enum.auto()
    UPDATE_NODE_ALLOCATABLE = enum.auto()
    UPDATE_NODE_LABEL = enum.auto()
    UPDATE_NODE_TAINT = enum.auto()
    UPDATE_NODE_CONDITION = enum.auto()
    UPDATE_NODE_ANNOTATION = enum.auto()
    UPDATE_POD_LABEL = enum.auto()
    UPDATE_POD_SCALE_DOWN = enum.auto()
    UPDATE_POD_TOLERATION = enum.auto()
    UPDATE_POD_SCHEDULING_GATES_ELIMINATED = enum.auto()
    UPDATE_POD_GENERATED_RESOURCE_CLAIM = enum.auto()
    # A change that none of the above names.
    UPDATE_OTHER = enum.auto()
    UPDATE = (
        UPDATE_NODE_ALLOCATABLE
        | UPDATE_NODE_LABEL
        | UPDATE_NODE_TAINT
        | UPDATE_NODE_CONDITION
        | UPDATE_NODE_ANNOTATION
        | UPDATE_POD_LABEL
        | UPDATE_POD_SCALE_DOWN
        | UPDATE_POD_TOLERATION
        | UPDATE_POD_SCHEDULING_GATES_ELIMINATED
        | UPDATE_POD_GENERATED_RESOURCE_CLAIM
        | UPDATE_OTHER
    )
    ALL = ADD | DELETE | UPDATE


class ClusterEvent(msgspec.Struct, frozen=True, gc=False):
    """An action on a kind of object; in a registration the actions of interest."""

    resource: str
    action: Action
    # What the event is called in metrics; not part of its meaning.
    label: str = ""

    def covers(self, happened: ClusterEvent) -> bool:
        """Whether a registration for this event is asked about what happened."""
        mine, other = self.resource, happened.resource
        if WILDCARD in (mine, other):
            return True
        if mine != other and not (mine == POD and other in (ASSIGNED_POD, UNSCHEDULED_POD)):
            return False
        # Of the numbers, since combining the members makes a new one.
        return bool(self.action.value & happened.action.value)


# Wakes every Pod, whoever rejected it.
ANYTHING: Final = ClusterEvent(WILDCARD, Action.ALL, "Anything")


class Hint(enum.Enum):
    """A plugin's guess whether an event makes a Pod schedulable that it had rejected."""

    SKIP = "QueueSkip"
    QUEUE = "Queue"


# Told (pod, old, new); an addition has no old object, a deletion no new one. Must not fail.
HintFunction: TypeAlias = Callable[[Pod, Any, Any], Hint]


@dataclass(frozen=True, slots=True)
class EventKeys:
    """How Pods and changed objects belong together: only Pods that have a key in common are asked about.

    Worth it where many Pods wait and most changes concern one of them. Neither function may fail.
    """

    of_pod: Callable[[Pod], Iterable[str]]
    # Told (old, new); None means that the change concerns every Pod.
    of_change: Callable[[Any, Any], Iterable[str] | None]


@dataclass(frozen=True, slots=True)
class EventRegistration:
    """A plugin's interest in an event; without a hint function every such event queues the Pod."""

    event: ClusterEvent
    hint: HintFunction | None = None
    keys: EventKeys | None = None
