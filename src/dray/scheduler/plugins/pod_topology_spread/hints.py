"""The events that can make a Pod schedulable that PodTopologySpread rejected, and for which Pods they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dray.api.types.core_v1 import Node, Pod
from dray.framework.events import (
    ASSIGNED_POD,
    NODE,
    UNSCHEDULED_POD,
    Action,
    ClusterEvent,
    EventKeys,
    EventRegistration,
    Hint,
)
from dray.scheduler.plugins.parsed_pods import ParsedPods
from dray.scheduler.plugins.pod_topology_spread.constraints import DO_NOT_SCHEDULE, Constraint, parse_constraints


def _namespace_of_change(old: Pod | None, new: Pod | None) -> tuple[str, ...]:
    pod = new if new is not None else old
    assert pod is not None
    return (pod.metadata.namespace or "",)


# A Pod counts for Pods of its own namespace only.
_BY_NAMESPACE: Final = EventKeys(lambda pod: (pod.metadata.namespace or "",), _namespace_of_change)


class Hints:
    """The queueing hints; `defaults` returns the hard constraints of a Pod that has none of its own."""

    def __init__(self, defaults: Callable[[Pod], tuple[Constraint, ...]]) -> None:
        self._defaults = defaults
        self._parsed: ParsedPods[tuple[Constraint, ...]] = ParsedPods(
            lambda pod: parse_constraints(pod, DO_NOT_SCHEDULE)
        )

    def _constraints(self, pod: Pod) -> tuple[Constraint, ...]:
        return self._parsed.get(pod) if pod.spec.topology_spread_constraints else self._defaults(pod)

    def registrations(self) -> Sequence[EventRegistration]:
        """Return the registrations."""
        pods = Action.ADD | Action.DELETE | Action.UPDATE_POD_LABEL
        own = Action.UPDATE_POD_LABEL | Action.UPDATE_POD_TOLERATION
        nodes = Action.ADD | Action.DELETE | Action.UPDATE_NODE_LABEL | Action.UPDATE_NODE_TAINT
        return (
            EventRegistration(ClusterEvent(ASSIGNED_POD, pods), self.after_other_pod, _BY_NAMESPACE),
            EventRegistration(ClusterEvent(UNSCHEDULED_POD, own), self.after_own_change),
            EventRegistration(ClusterEvent(NODE, nodes), self.after_node),
        )

    def after_other_pod(self, pod: Pod, old: Pod | None, new: Pod | None) -> Hint:
        """Queue if a Pod that counts comes or goes."""
        present = new if new is not None else old
        assert present is not None
        if present.metadata.namespace != pod.metadata.namespace:
            return Hint.SKIP
        return self._after_labels(pod, old, new)

    def after_own_change(self, pod: Pod, old: Pod | None, new: Pod | None) -> Hint:
        """Queue if other tolerations count, or the Pod itself counts for other constraints."""
        assert old is not None
        assert new is not None
        if old.spec.tolerations != new.spec.tolerations and any(item.honors_taints for item in self._constraints(new)):
            return Hint.QUEUE
        return self._after_labels(new, old, new)

    def _after_labels(self, pod: Pod, old: Pod | None, new: Pod | None) -> Hint:
        for item in self._constraints(pod):
            before = old is not None and item.selector.matches(old.metadata.labels)
            after = new is not None and item.selector.matches(new.metadata.labels)
            if before != after:
                return Hint.QUEUE
        return Hint.SKIP

    def after_node(self, pod: Pod, old: Node | None, new: Node | None) -> Hint:
        """Queue if a node with all topology keys comes, goes, or changes its domains or taints."""
        keys = [item.topology_key for item in self._constraints(pod)]
        before, after = _values(old, keys), _values(new, keys)
        if before != after:
            return Hint.QUEUE
        if before is None or old is None or new is None:
            return Hint.SKIP
        return Hint.QUEUE if old.spec.taints != new.spec.taints else Hint.SKIP


def _values(node: Node | None, keys: Sequence[str]) -> tuple[str, ...] | None:
    """Return the node's values of the keys; None if it lacks one."""
    labels: Mapping[str, str] = node.metadata.labels if node is not None else {}
    return tuple(labels[key] for key in keys) if node is not None and all(key in labels for key in keys) else None
