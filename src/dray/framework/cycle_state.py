"""The state of one scheduling attempt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self

from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.framework.evaluation import Evaluation
from dray.framework.node_allocatable import Statuses
from dray.framework.pod_info import NO_NAMES, PodInfo


class StateData(Protocol):
    """A value in the cycle state that Filter, `add_pod` or `remove_pod` change."""

    def clone(self) -> Self:
        """Return a copy that can be changed without an effect on this one."""


class GroupState:
    """What the attempts of one group cycle share."""

    __slots__ = ("fixed", "group", "nodes", "reserved")

    def __init__(
        self, group: PodGroup, nodes: frozenset[str] | None = None, fixed: Mapping[str, str] | None = None
    ) -> None:
        self.group = group
        # The only nodes that the group may use in this cycle; None means all.
        self.nodes = nodes
        # The only node of each Pod, by uid, in a dry run that looks whether a known placement still fits.
        self.fixed: Mapping[str, str] = fixed or {}
        # Uids of the Pods that have a place, with what is reserved for them.
        self.reserved: set[str] = set()

    def nodes_of(self, uid: str) -> frozenset[str] | None:
        """Return the only nodes that a Pod of the group may use; None means all."""
        return frozenset((self.fixed[uid],)) if uid in self.fixed else self.nodes


class CycleState(dict[str, Any]):
    """Values of plugins by key, from PreFilter to PostBind or Unreserve; each key is written by one plugin."""

    __slots__ = (
        "claim_statuses",
        "device_resources",
        "evaluation",
        "group",
        "pod_info",
        "pod_version",
        "preempted",
        "skip_filter",
        "skip_score",
    )

    def __init__(self, pod_info: PodInfo) -> None:
        super().__init__()
        # The Pod, with the values computed from it.
        self.pod_info = pod_info
        # Plugins whose PreFilter (PreScore) returned Skip; written by the scheduler.
        self.skip_filter: set[str] = set()
        self.skip_score: set[str] = set()
        # Returns the Pod's extended resources that devices would serve on a node; set by DynamicResources.
        self.device_resources: Callable[[str], frozenset[str]] | None = None
        # Returns what the Pod's claims would use of a node; set by DynamicResources if the feature is enabled.
        self.claim_statuses: Callable[[str], Statuses] | None = None
        # The resourceVersion that the Pod must still have when it is bound; empty means any.
        self.pod_version = ""
        # Whether the attempt was ended in PreBind, so that others get what it reserved.
        self.preempted = False
        # The group cycle that the attempt is part of; None for a Pod alone.
        self.group: GroupState | None = None
        # What the search found out about the nodes, if decisions are recorded; set by the scheduling cycle.
        self.evaluation: Evaluation | None = None

    def pod_on(self, node_name: str) -> PodInfo:
        """Return the Pod as bound to a node that it fits on."""
        served = NO_NAMES if self.device_resources is None else self.device_resources(node_name)
        statuses = None if self.claim_statuses is None else self.claim_statuses(node_name)
        return self.pod_info.on_node(node_name, served, statuses)

    def clone(self) -> CycleState:
        """Return a copy for a dry run, or for filtering with nominated Pods.

        A value that is no `StateData` is shared with the copy, so it must not be changed after PreFilter.
        """
        copy = CycleState(self.pod_info)
        for key, value in self.items():
            # Faster than looking whether the value implements the protocol.
            clone = getattr(value, "clone", None)
            copy[key] = value if clone is None else clone()
        copy.skip_filter = set(self.skip_filter)
        copy.skip_score = set(self.skip_score)
        copy.device_resources = self.device_resources
        copy.claim_statuses = self.claim_statuses
        copy.pod_version = self.pod_version
        copy.group = self.group
        return copy
