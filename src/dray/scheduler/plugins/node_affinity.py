"""Node selectors and node affinity, required and preferred."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

from dray.api.codec import from_document
from dray.api.field_errors import Path
from dray.api.schema.load import struct
from dray.api.strict import DecodeError, check_fields
from dray.api.types.core_v1 import Node, NodeSelector, Pod
from dray.api.types.core_v1 import NodeAffinity as Affinity
from dray.api.validation.core_v1_scheduling import validate_node_affinity
from dray.framework.cycle_state import CycleState
from dray.framework.events import NODE, Action, ClusterEvent, EventRegistration, Hint
from dray.framework.node_info import NodeInfo
from dray.framework.node_selectors import NAME_FIELD, compile_required, compile_selector, compile_term, required_terms
from dray.framework.plugins import PreFilterResult
from dray.framework.status import SKIP, SUCCESS, Status, unresolvable
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.arguments import Arguments
from dray.scheduler.plugins.normalization import normalize

REASON: Final = "node(s) didn't match Pod's node affinity/selector"
REASON_ENFORCED: Final = "node(s) didn't match scheduler-enforced node affinity"
REASON_CONFLICT: Final = "pod affinity terms conflict"
_NAME: Final = "NodeAffinity"
_NO: Final = unresolvable(REASON).with_plugin(_NAME)
_NO_ENFORCED: Final = unresolvable(REASON_ENFORCED).with_plugin(_NAME)
_MATCHER: Final = "NodeAffinity/required"
_PREFERENCES: Final = "NodeAffinity/preferred"


def _checked(added: Mapping[str, Any]) -> Affinity:
    """Return the affinity of the arguments; raises `ValueError`."""
    document = deepcopy(dict(added))
    try:
        unknown = check_fields(document, struct("io.k8s.api.core.v1.NodeAffinity"))
    except DecodeError as error:
        raise ValueError(f"addedAffinity: {error}") from error
    if unknown:
        raise ValueError(f"addedAffinity: {unknown[0]}")
    problems = validate_node_affinity(document, Path("addedAffinity"))
    if problems:
        raise ValueError(str(problems[0]))
    return from_document(Affinity, document)


class NodeAffinity:
    """Filters and scores on the Pod's node affinity, and on the one that the profile adds to every Pod."""

    name = _NAME

    def __init__(self, args: Mapping[str, Any], _handle: Handle) -> None:
        given = Arguments(args)
        added = given.mapping("addedAffinity")
        given.end()
        affinity = _checked(added)
        enforced = affinity.required_during_scheduling_ignored_during_execution
        self._enforced = compile_selector(enforced) if enforced is not None else None
        self._added_preferences = affinity.preferred_during_scheduling_ignored_during_execution

    def pre_filter(self, state: CycleState, pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Compile what is required; terms that name nodes limit the search to them."""
        if self._enforced is None and pod.spec.affinity is None and not pod.spec.node_selector:
            # Most Pods.
            return None, SKIP
        matcher = compile_required(pod)
        if matcher is None and self._enforced is None:
            return None, SKIP
        state[_MATCHER] = matcher
        names = _named_nodes(required_terms(pod))
        if names is None:
            return None, SUCCESS
        return (PreFilterResult(names), SUCCESS) if names else (None, unresolvable(REASON_CONFLICT))

    def filter(self, state: CycleState, _pod: Pod, node: NodeInfo) -> Status:
        """Check the profile's and the Pod's requirements."""
        if self._enforced is not None and not self._enforced(node):
            return _NO_ENFORCED
        matcher = state[_MATCHER]
        return SUCCESS if matcher is None or matcher(node) else _NO

    def pre_score(self, state: CycleState, pod: Pod, _nodes: Sequence[NodeInfo]) -> Status:
        """Compile what is preferred."""
        if pod.spec.affinity is None and not self._added_preferences:
            return SKIP
        affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
        preferred = affinity.preferred_during_scheduling_ignored_during_execution if affinity is not None else ()
        terms = [(compile_term(item.preference), item.weight) for item in (*self._added_preferences, *preferred)]
        if not terms:
            return SKIP
        state[_PREFERENCES] = terms
        return SUCCESS

    def score(self, state: CycleState, _pod: Pod, node: NodeInfo) -> int:
        """Return the sum of the weights of the matching preferences."""
        return sum(weight for matches, weight in state[_PREFERENCES] if matches(node))

    def normalize_scores(self, _state: CycleState, _pod: Pod, scores: list[int]) -> None:
        """Scale so that the highest score is best."""
        normalize(scores)

    def events_to_register(self) -> Sequence[EventRegistration]:
        """Return added nodes and changed labels."""
        return (EventRegistration(ClusterEvent(NODE, Action.ADD | Action.UPDATE_NODE_LABEL), self._became_fit),)

    def _became_fit(self, pod: Pod, old: Node | None, new: Node | None) -> Hint:
        fits = new is not None and self._fits(pod, new)
        return Hint.QUEUE if fits and not (old is not None and self._fits(pod, old)) else Hint.SKIP

    def _fits(self, pod: Pod, node: Node) -> bool:
        info, matcher = NodeInfo(node), compile_required(pod)
        return (self._enforced is None or self._enforced(info)) and (matcher is None or matcher(info))


def _named_nodes(required: NodeSelector | None) -> frozenset[str] | None:
    """Return the nodes that the terms name; None if a term matches other nodes, too."""
    if required is None or not required.node_selector_terms:
        return None
    names: set[str] = set()
    for term in required.node_selector_terms:
        of_term: set[str] | None = None
        for item in term.match_fields:
            if item.key == NAME_FIELD and item.operator == "In":
                of_term = set(item.values) if of_term is None else of_term & set(item.values)
        if of_term is None:
            return None
        names |= of_term
    return frozenset(names)
