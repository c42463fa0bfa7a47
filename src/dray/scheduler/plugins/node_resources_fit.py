"""Checks that a node has the requested resources; by default prefers less allocated nodes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

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
            kept = {name: wanted for name, wanted in request.scalars.items() if wanted and not self._is_ignored(name)}
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
        return [
            SUCCESS if self._fits(request, served, node) else self._explain(request, served, node) for node in nodes
        ]

    def _fits(self, request: Resources, served: frozenset[str], node: NodeInfo) -> bool:
        # Free amounts are negative on overcommitted nodes; a request of zero fits there, too.
        return (
            node.free_pods >= 1
            and (request.milli_cpu <= node.free_milli_cpu or not request.milli_cpu)
            and (request.memory <= node.free_memory or not request.memory)
            and (request.ephemeral_storage <= node.free_ephemeral_storage or not request.ephemeral_storage)
            and (not request.scalars or self._scalars_fit(request.scalars, served, node))
        )

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

    def _explain(self, request: Resources, served: frozenset[str], node: NodeInfo) -> Status:
        """Return all insufficient resources, in Kubernetes' order."""
        reasons: list[str] = []
        unresolvable = False
        if node.free_pods < 1:
            reasons.append(TOO_MANY_PODS)
        allocatable = node.allocatable
        for name, wanted, free, total in (
            ("cpu", request.milli_cpu, node.free_milli_cpu, allocatable.milli_cpu),
            ("memory", request.memory, node.free_memory, allocatable.memory),
            (
                "ephemeral-storage",
                request.ephemeral_storage,
                node.free_ephemeral_storage,
                allocatable.ephemeral_storage,
            ),
        ):
            if wanted and wanted > free:
                reasons.append(f"Insufficient {name}")
                unresolvable = unresolvable or wanted > total
        for name, wanted in sorted(request.scalars.items()):
            total = allocatable.scalars.get(name, 0)
            if not total and name in served:
                continue
            if wanted > total - self._used(name, node):
                reasons.append(f"Insufficient {name}")
                unresolvable = unresolvable or wanted > total
        if not reasons:
            return SUCCESS
        return _rejection(tuple(reasons), unresolvable)

    def _scalars_fit(self, wanted: Mapping[str, int], served: frozenset[str], node: NodeInfo) -> bool:
        totals = node.allocatable.scalars
        for name, amount in wanted.items():
            total = totals.get(name, 0)
            if (total or name not in served) and amount > total - self._used(name, node):
                return False
        return True

    def _used(self, name: str, node: NodeInfo) -> int:
        """Return what Pods use of the resource, including devices of a driver that a device plugin replaced."""
        taken = node.requested.scalars.get(name, 0)
        from_devices = node.device_requested.scalars.get(name, 0)
        if from_devices and not self._extended_resources.device_usage(node, name)[1]:
            taken += from_devices
        return taken


@lru_cache(_REJECTIONS_MAX)
def _rejection(reasons: tuple[str, ...], unresolvable: bool) -> Status:  # noqa: FBT001 - part of the key
    """Return the same object for all nodes that lack the same: identical rejections are counted, not compared."""
    code = Code.UNSCHEDULABLE_AND_UNRESOLVABLE if unresolvable else Code.UNSCHEDULABLE
    return Status(code, reasons, _NAME)


def _group_names(given: Arguments) -> Sequence[str]:
    for index, name in enumerate(given.texts("ignoredResourceGroups")):
        if "/" in name:
            text = "resource group name can't contain '/'"
            raise ValueError(f'ignoredResourceGroups[{index}]: Invalid value: "{name}": {text}')
    return given.label_names("ignoredResourceGroups")
