"""Which nodes run a DaemonSet's Pods, and how the Pods are pinned to them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from dray.api.document import GroupVersionKind
from dray.api.node_selection import NODE_NAME_FIELD, local_selector, matching_term
from dray.api.tolerations import tolerates
from dray.api.types.apps_v1 import DaemonSet
from dray.api.types.core_v1 import (
    Affinity,
    Node,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    Pod,
    PodSpec,
    Taint,
    Toleration,
)
from dray.controllers.pod_control.ownership import Owner, selector_of
from dray.controllers.pod_control.pod_templates import make_pod, with_labels
from dray.controllers.pod_control.revisions import History, Revised

KIND: Final = GroupVersionKind("apps", "v1", "DaemonSet")
HASH_LABEL: Final = "controller-revision-hash"
_NO_EXECUTE: Final = "NoExecute"
_NO_SCHEDULE: Final = "NoSchedule"
_PREFIX: Final = "node.kubernetes.io/"


def _tolerate(condition: str, effect: str) -> Toleration:
    return Toleration(key=_PREFIX + condition, operator="Exists", effect=effect)


# Daemon Pods stay on a node whatever its condition.
_TOLERATIONS: Final = (
    _tolerate("not-ready", _NO_EXECUTE),
    _tolerate("unreachable", _NO_EXECUTE),
    _tolerate("disk-pressure", _NO_SCHEDULE),
    _tolerate("memory-pressure", _NO_SCHEDULE),
    _tolerate("pid-pressure", _NO_SCHEDULE),
    _tolerate("unschedulable", _NO_SCHEDULE),
)
_HOST_NETWORK_TOLERATION: Final = _tolerate("network-unavailable", _NO_SCHEDULE)


def owner_of(daemon_set: DaemonSet) -> Owner:
    """Return the DaemonSet as an owner of Pods and revisions."""
    return Owner(KIND, daemon_set.metadata, selector_of(daemon_set.spec.selector))


@dataclass(frozen=True, slots=True)
class NodeFit:
    """Whether a Pod should run on the node, and whether an existing one continues to run."""

    should_run: bool
    should_continue: bool


_NO: Final = NodeFit(should_run=False, should_continue=False)
_STAY: Final = NodeFit(should_run=False, should_continue=True)
_YES: Final = NodeFit(should_run=True, should_continue=True)


class Placement:
    """A DaemonSet's node requirements, prepared once for many nodes."""

    def __init__(self, daemon_set: DaemonSet) -> None:
        spec = daemon_set.spec.template.spec
        self._node_name = spec.node_name
        self._labels = spec.node_selector
        self._required = _required(spec)
        self._tolerations = with_tolerations(spec).tolerations

    def evaluate(self, node: Node) -> NodeFit:
        """Return whether the node should run the DaemonSet's Pod."""
        name, labels = node.metadata.name or "", node.metadata.labels
        if self._node_name and self._node_name != name:
            return _NO
        if any(labels.get(key) != value for key, value in self._labels.items()):
            return _NO
        if self._required is not None and matching_term(self._required, name, labels) is None:
            return _NO
        untolerated = [taint for taint in node.spec.taints if self._is_untolerated(taint)]
        if not untolerated:
            return _YES
        return _NO if any(taint.effect == _NO_EXECUTE for taint in untolerated) else _STAY

    def _is_untolerated(self, taint: Taint) -> bool:
        if taint.effect not in (_NO_EXECUTE, _NO_SCHEDULE):
            return False
        return not any(tolerates(toleration, taint) for toleration in self._tolerations)


def _required(spec: PodSpec) -> NodeSelector | None:
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    return None if affinity is None else affinity.required_during_scheduling_ignored_during_execution


def with_tolerations(spec: PodSpec) -> PodSpec:
    """Return the spec with the tolerations of every daemon Pod; they replace equal ones."""
    wanted = (*_TOLERATIONS, *((_HOST_NETWORK_TOLERATION,) if spec.host_network else ()))
    kept = [item for item in spec.tolerations if not any(_is_same(item, other) for other in wanted)]
    return msgspec.structs.replace(spec, tolerations=(*kept, *wanted))


def _is_same(first: Toleration, second: Toleration) -> bool:
    return (first.key, first.effect, first.operator, first.value or "") == (
        second.key,
        second.effect,
        second.operator,
        second.value or "",
    )


def pinned_to(spec: PodSpec, node: str) -> PodSpec:
    """Return the spec with node affinity to that node only; other requirements stay."""
    (only,) = local_selector(node).node_selector_terms
    required = _required(spec)
    terms: Iterable[NodeSelectorTerm] = required.node_selector_terms if required is not None else ()
    narrowed = tuple(msgspec.structs.replace(term, match_fields=only.match_fields) for term in terms) or (only,)
    affinity = spec.affinity or Affinity()
    nodes = msgspec.structs.replace(
        affinity.node_affinity or NodeAffinity(),
        required_during_scheduling_ignored_during_execution=NodeSelector(node_selector_terms=narrowed),
    )
    return msgspec.structs.replace(spec, affinity=msgspec.structs.replace(affinity, node_affinity=nodes))


def make_daemon_pod(owner: Owner, daemon_set: DaemonSet, node: str, revision_hash: str) -> Pod:
    """Return the Pod for a node."""
    template = with_labels(daemon_set.spec.template, {HASH_LABEL: revision_hash})
    return make_pod(owner, template, spec=pinned_to(with_tolerations(template.spec), node))


def node_of(pod: Pod) -> str:
    """Return the Pod's node, or the one it is pinned to while unscheduled; empty if there is none."""
    if pod.spec.node_name:
        return pod.spec.node_name
    required = _required(pod.spec)
    for term in required.node_selector_terms if required is not None else ():
        for item in term.match_fields:
            if item.key == NODE_NAME_FIELD and item.operator == "In" and len(item.values) == 1:
                return item.values[0]
    return ""


def revised_of(daemon_set: DaemonSet) -> Revised:
    """Return the DaemonSet as the owner of revisions."""
    spec, status = daemon_set.spec, daemon_set.status
    limit = spec.revision_history_limit
    return Revised(KIND, daemon_set.metadata, spec.template, status.collision_count, limit, HASH_LABEL)


def hash_of(history: History) -> str:
    """Return the hash label of Pods of the current template."""
    return history.current.metadata.labels.get(HASH_LABEL, "")
