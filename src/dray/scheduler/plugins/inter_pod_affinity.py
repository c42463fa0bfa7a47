"""Required anti-affinity between Pods.

Only one side is built: an existing Pod's required anti-affinity keeps others away. A Pod that has required affinity
or anti-affinity itself stays pending.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dray.api.codec import to_document
from dray.api.selectors import LabelSelector
from dray.api.types.core_v1 import Pod, PodAffinityTerm
from dray.framework.cycle_state import CycleState
from dray.framework.events import ASSIGNED_POD, NODE, UNSCHEDULED_POD, Action, ClusterEvent, EventRegistration, Hint
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import PreFilterResult
from dray.framework.status import SKIP, SUCCESS, Status, unresolvable, unschedulable
from dray.scheduler.handle import Handle

REASON_EXISTING: Final = "node(s) didn't satisfy existing pods anti-affinity rules"
REASON_OWN: Final = "required inter-pod affinity and anti-affinity are not supported by this scheduler"
_NAME: Final = "InterPodAffinity"
_NO: Final = unschedulable(REASON_EXISTING).with_plugin(_NAME)
_FORBIDDEN: Final = "InterPodAffinity/forbidden"


class InterPodAffinity:
    """Filters on the required anti-affinity of existing Pods."""

    name = _NAME

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def pre_filter(self, state: CycleState, pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Collect the topology pairs (label, value) that existing Pods exclude for this Pod."""
        if _has_required_terms(pod):
            return None, unresolvable(REASON_OWN)
        forbidden = {
            (term.topology_key, value)
            for node in self._handle.snapshot.nodes_with_anti_affinity()
            for other in node.anti_affinity_pods
            for term in other.required_anti_affinity
            if (value := node.labels.get(term.topology_key)) is not None and matches(term, other.pod, pod)
        }
        if not forbidden:
            return None, SKIP
        state[_FORBIDDEN] = forbidden
        return None, SUCCESS

    def filter(self, state: CycleState, _pod: Pod, node: NodeInfo) -> Status:
        """Reject a node with an excluded topology pair."""
        forbidden: set[tuple[str, str]] = state[_FORBIDDEN]
        return _NO if any(node.labels.get(key) == value for key, value in forbidden) else SUCCESS

    def events_to_register(self) -> Sequence[EventRegistration]:
        """Return changes of Pods with anti-affinity, of nodes, and of the Pod's own labels."""
        return (
            EventRegistration(ClusterEvent(ASSIGNED_POD, Action.DELETE | Action.UPDATE_POD_LABEL), _is_forbidding),
            EventRegistration(ClusterEvent(UNSCHEDULED_POD, Action.UPDATE_POD_LABEL)),
            EventRegistration(ClusterEvent(NODE, Action.ADD | Action.UPDATE_NODE_LABEL)),
        )


def matches(term: PodAffinityTerm, owner: Pod, other: Pod) -> bool:
    """Return whether the term of `owner` matches the Pod; a namespace selector matches all namespaces."""
    if term.namespace_selector is None:
        namespaces = term.namespaces or (owner.metadata.namespace,)
        if other.metadata.namespace not in namespaces:
            return False
    selector = to_document(term.label_selector) if term.label_selector is not None else None
    return LabelSelector.from_document(selector).matches(other.metadata.labels)


def _has_required_terms(pod: Pod) -> bool:
    affinity = pod.spec.affinity
    if affinity is None:
        return False
    return any(
        kind is not None and kind.required_during_scheduling_ignored_during_execution
        for kind in (affinity.pod_affinity, affinity.pod_anti_affinity)
    )


def _is_forbidding(pod: Pod, old: Pod | None, _new: Pod | None) -> Hint:
    affinity = old.spec.affinity if old is not None else None
    if old is None or affinity is None or affinity.pod_anti_affinity is None:
        return Hint.SKIP
    terms = affinity.pod_anti_affinity.required_during_scheduling_ignored_during_execution
    return Hint.QUEUE if any(matches(term, old, pod) for term in terms) else Hint.SKIP
