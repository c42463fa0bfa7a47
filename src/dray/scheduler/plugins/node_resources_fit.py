"""Checks that a node has the requested resources; by default prefers less allocated nodes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from dray.api.types.core_v1 import Pod
from dray.framework.cycle_state import CycleState
from dray.framework.events import EventRegistration
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import PreFilterResult
from dray.framework.resources import CPU, MEMORY, Resources
from dray.framework.status import SUCCESS, Code, Status
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.arguments import Arguments
from dray.scheduler.plugins.fit_events import FitEvents
from dray.scheduler.plugins.fit_strategies import (
    PLACEMENT_STRATEGY,
    SCORING_STRATEGY,
    make_placement_scorer,
    make_scorer,
)

TOO_MANY_PODS: Final = "Too many pods"
_NAME: Final = "NodeResourcesFit"
_REQUEST: Final = "NodeResourcesFit/request"
# Rejections that are shared by nodes.
_REJECTIONS_MAX: Final = 256


class Shortage(NamedTuple):
    """A resource of which a node has too little for a Pod; of cpu, amounts are in thousandths."""

    resource: str
    requested: int
    free: int
    # What the node would have without Pods.
    total: int

    @property
    def reason(self) -> str:
        """Return it in Kubernetes' words."""
        return TOO_MANY_PODS if self.resource == "pods" else f"Insufficient {self.resource}"

    @property
    def is_final(self) -> bool:
        """Return whether the node lacks it even without other Pods."""
        return self.requested > self.total


class NodeResourcesFit:
    """Filters and scores on requests."""

    name = _NAME

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._extended_resources = handle.extended_resources
        given = Arguments(args)
        self._ignored = frozenset(given.label_names("ignoredResources"))
        self._ignored_groups = frozenset(_group_names(given))
        strategy, placement = given.mapping(SCORING_STRATEGY), given.mapping(PLACEMENT_STRATEGY)
        given.end()
        self._scorer = make_scorer(strategy, handle.extended_resources.device_usage)
        self.score_placement = make_placement_scorer(placement, strategy, handle.extended_resources.device_usage)
        self._scalars = frozenset(item["name"] for item in strategy.get("resources") or ()) - {CPU, MEMORY}
        self._events = FitEvents(handle)

    def pre_filter(self, state: CycleState, _pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Compute the requests to check, without ignored ones."""
        request = state.pod_info.requests
        served: frozenset[str] = frozenset()
        if request.scalars:
            scalars = sorted(request.scalars.items())
            kept = {name: wanted for name, wanted in scalars if wanted and not self._is_ignored(name)}
            request = Resources(request.milli_cpu, request.memory, request.ephemeral_storage, kept)
            # On nodes that do not have them, DynamicResources serves them by devices.
            served = frozenset(filter(self._extended_resources.serves_resource, kept))
        state[_REQUEST] = request, served
        return None, SUCCESS

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        """Check that all requests fit."""
        return self.filter_all(state, pod, (node,))[0]

    def filter_all(self, state: CycleState, _pod: Pod, nodes: Sequence[NodeInfo]) -> list[Status]:
        """Check all nodes."""
        request: Resources
        request, served = state[_REQUEST]
        found = [self._shortages(request, served, node) for node in nodes]
        return [_rejection(tuple(lacking)) if lacking else SUCCESS for lacking in found]

    def shortages(self, state: CycleState, node: NodeInfo) -> Sequence[Shortage]:
        """Return all that the node lacks, in Kubernetes' order; empty if the Pod fits."""
        request, served = state[_REQUEST]
        return self._shortages(request, served, node)

    def _shortages(self, request: Resources, served: frozenset[str], node: NodeInfo) -> Sequence[Shortage]:
        found: list[Shortage] = []
        if node.free_pods < 1:
            found.append(Shortage("pods", 1, node.free_pods, 1))
        # Free amounts are negative on overcommitted nodes; a request of zero fits there, too.
        wanted = request.milli_cpu
        if wanted > node.free_milli_cpu and wanted:
            found.append(Shortage("cpu", wanted, node.free_milli_cpu, node.allocatable.milli_cpu))
        wanted = request.memory
        if wanted > node.free_memory and wanted:
            found.append(Shortage("memory", wanted, node.free_memory, node.allocatable.memory))
        wanted = request.ephemeral_storage
        if wanted > node.free_ephemeral_storage and wanted:
            total = node.allocatable.ephemeral_storage
            found.append(Shortage("ephemeral-storage", wanted, node.free_ephemeral_storage, total))
        for name, wanted in request.scalars.items():
            total = node.allocatable.scalars.get(name, 0)
            if (total or name not in served) and wanted > (free := total - self._used(name, node)):
                found.append(Shortage(name, wanted, free, total))
        return found

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """Score a node by the profile's strategy."""
        return self.score_all(state, pod, (node,))[0]

    def score_all(self, state: CycleState, _pod: Pod, nodes: Sequence[NodeInfo]) -> list[int]:
        """Score all nodes."""
        return self._scorer(state.pod_info, nodes)

    def score_cache_key(self, state: CycleState) -> Hashable | None:
        """Return the requests; None if devices count, since they are allocated without a change of the node."""
        if self._scalars and any(map(self._extended_resources.serves_resource, self._scalars)):
            return None
        pod = state.pod_info
        return pod.non_zero_milli_cpu, pod.non_zero_memory, pod.requests

    def events_to_register(self) -> Sequence[EventRegistration]:
        """Return the events that may provide resources, or reduce the requests."""
        return self._events.registrations()

    def _is_ignored(self, name: str) -> bool:
        return name in self._ignored or name.partition("/")[0] in self._ignored_groups

    def _used(self, name: str, node: NodeInfo) -> int:
        """Return what Pods use of the resource, including devices of a driver that a device plugin replaced."""
        taken = node.requested.scalars.get(name, 0)
        from_devices = node.device_requested.scalars.get(name, 0)
        if from_devices and not self._extended_resources.device_usage(node, name)[1]:
            taken += from_devices
        return taken


def _rejection(lacking: tuple[Shortage, ...]) -> Status:
    return _shared_rejection(tuple([item.reason for item in lacking]), any(item.is_final for item in lacking))


@lru_cache(_REJECTIONS_MAX)
def _shared_rejection(reasons: tuple[str, ...], is_final: bool) -> Status:  # noqa: FBT001 - part of the key
    """Return the same object for all nodes that lack the same: identical rejections are counted, not compared."""
    return Status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE if is_final else Code.UNSCHEDULABLE, reasons, _NAME)


def _group_names(given: Arguments) -> Sequence[str]:
    for index, name in enumerate(given.texts("ignoredResourceGroups")):
        if "/" in name:
            text = "resource group name can't contain '/'"
            raise ValueError(f'ignoredResourceGroups[{index}]: Invalid value: "{name}": {text}')
    return given.label_names("ignoredResourceGroups")
