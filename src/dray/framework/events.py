"""Cluster events that can make a rejected Pod schedulable, and the plugins' registrations for them."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from dray.api.types.core_v1 import Pod

# Kinds of objects; a custom kind is named `<plural>.<version>.<group>`.
POD: Final = "Pod"
ASSIGNED_POD: Final = "AssignedPod"
UNSCHEDULED_POD: Final = "UnscheduledPod"
NODE: Final = "Node"
NAMESPACE: Final = "Namespace"
PERSISTENT_VOLUME: Final = "PersistentVolume"
PERSISTENT_VOLUME_CLAIM: Final = "PersistentVolumeClaim"
RESOURCE_CLAIM: Final = "ResourceClaim"
RESOURCE_SLICE: Final = "ResourceSlice"
DEVICE_CLASS: Final = "DeviceClass"
DEVICE_TAINT_RULE: Final = "DeviceTaintRule"
POD_GROUP: Final = "PodGroup"
CLASSIC_CLAIM: Final = "resourceclaims.v1alpha1.cdi.k8s.io"
CLASSIC_CLASS: Final = "resourceclasses.v1alpha1.cdi.k8s.io"
WILDCARD: Final = "*"


class Action(enum.Flag):
    """What changed."""

    ADD = enum.auto()
    DELETE = enum.auto()
    UPDATE_NODE_ALLOCATABLE = enum.auto()
    UPDATE_NODE_LABEL = enum.auto()
    UPDATE_NODE_TAINT = enum.auto()
    UPDATE_NODE_CONDITION = enum.auto()
    UPDATE_NODE_ANNOTATION = enum.auto()
    UPDATE_NODE_DECLARED_FEATURE = enum.auto()
    UPDATE_POD_LABEL = enum.auto()
    UPDATE_POD_SCALE_DOWN = enum.auto()
    UPDATE_POD_TOLERATION = enum.auto()
    UPDATE_POD_SCHEDULING_GATES_ELIMINATED = enum.auto()
    UPDATE_POD_GENERATED_RESOURCE_CLAIM = enum.auto()
    # Any other change.
    UPDATE_OTHER = enum.auto()
    UPDATE = (
        UPDATE_NODE_ALLOCATABLE
        | UPDATE_NODE_LABEL
        | UPDATE_NODE_TAINT
        | UPDATE_NODE_CONDITION
        | UPDATE_NODE_ANNOTATION
        | UPDATE_NODE_DECLARED_FEATURE
        | UPDATE_POD_LABEL
        | UPDATE_POD_SCALE_DOWN
        | UPDATE_POD_TOLERATION
        | UPDATE_POD_SCHEDULING_GATES_ELIMINATED
        | UPDATE_POD_GENERATED_RESOURCE_CLAIM
        | UPDATE_OTHER
    )
    ALL = ADD | DELETE | UPDATE

    # Each value has one member only. The inherited function is not a built-in one, and events are looked up by action.
    __hash__ = object.__hash__


class ClusterEvent(msgspec.Struct, frozen=True, gc=False):
    """An action on a kind of object; a registration combines several actions."""

    resource: str
    action: Action
    # The label in metrics; ignored otherwise.
    label: str = ""

    def covers(self, event: ClusterEvent) -> bool:
        """Return whether a registration for this event includes another event."""
        mine, other = self.resource, event.resource
        if WILDCARD in (mine, other):
            return True
        if mine != other and not (mine == POD and other in (ASSIGNED_POD, UNSCHEDULED_POD)):
            return False
        # Combines the numbers, because combining enum members would create a new member.
        return bool(self.action.value & event.action.value)


# Requeues every Pod.
ANYTHING: Final = ClusterEvent(WILDCARD, Action.ALL, "Anything")


class Hint(enum.Enum):
    """Whether an event may make a Pod schedulable that the plugin rejected."""

    SKIP = "QueueSkip"
    QUEUE = "Queue"


# Called with (pod, old, new); an addition has no old object, a deletion no new one. Must not raise.
HintFunction: TypeAlias = Callable[[Pod, Any, Any], Hint]


@dataclass(frozen=True, slots=True)
class EventKeys:
    """Keys that select the Pods for which a change calls the hint: those that have a key in common with it.

    Use it where many Pods are pending and most changes affect one of them. Neither function may raise.
    """

    # Called for a rejected Pod, and again when its spec, labels, annotations or claims change or its nomination ends.
    of_pod: Callable[[Pod], Iterable[str]]
    # Called with (old, new); None means all Pods.
    of_change: Callable[[Any, Any], Iterable[str] | None]


@dataclass(frozen=True, slots=True)
class EventRegistration:
    """A plugin's registration for an event. Without a hint function every such event requeues the Pod."""

    event: ClusterEvent
    hint: HintFunction | None = None
    keys: EventKeys | None = None


def registered_for(
    event: ClusterEvent, registrations: Mapping[str, Sequence[EventRegistration]]
) -> tuple[tuple[str, EventRegistration], ...]:
    """Return the plugins that are registered for such events, with their registrations for it."""
    return tuple(
        (plugin, item) for plugin, items in registrations.items() for item in items if item.event.covers(event)
    )
