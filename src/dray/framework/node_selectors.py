"""Node selectors compiled to functions on nodes, once per Pod."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from dray.api.selectors import LabelSelector, Matcher, Operator, Requirement
from dray.api.types.core_v1 import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod
from dray.framework.node_info import NodeInfo

NodeMatcher: TypeAlias = Callable[[NodeInfo], bool]

# The only field that node selectors can match.
NAME_FIELD: Final = "metadata.name"
_OPERATORS: Final = {
    "In": Operator.IN,
    "NotIn": Operator.NOT_IN,
    "Exists": Operator.EXISTS,
    "DoesNotExist": Operator.DOES_NOT_EXIST,
    "Gt": Operator.GREATER_THAN,
    "Lt": Operator.LESS_THAN,
}


def compile_selector(selector: NodeSelector) -> NodeMatcher:
    """Return a matcher for nodes that any term matches; without terms it matches nothing."""
    terms = [compile_term(term) for term in selector.node_selector_terms]
    if len(terms) == 1:
        return terms[0]
    return lambda node: any(term(node) for term in terms)


def compile_term(term: NodeSelectorTerm) -> NodeMatcher:
    """Return a matcher for nodes that all requirements match; an empty term matches nothing."""
    if not term.match_expressions and not term.match_fields:
        return lambda _node: False
    labels = _compile(term.match_expressions)
    if not term.match_fields:
        return lambda node: labels(node.labels)
    fields = _compile(term.match_fields)
    return lambda node: labels(node.labels) and fields({NAME_FIELD: node.name})


def compile_required(pod: Pod) -> NodeMatcher | None:
    """Return a matcher for the Pod's node selector and required node affinity; None means all nodes."""
    equal = LabelSelector.from_labels(pod.spec.node_selector).matches if pod.spec.node_selector else None
    required = required_terms(pod)
    affinity = compile_selector(required) if required is not None else None
    if equal is None:
        return affinity
    if affinity is None:
        return lambda node: equal(node.labels)
    return lambda node: equal(node.labels) and affinity(node)


def required_terms(pod: Pod) -> NodeSelector | None:
    """Return the required node affinity."""
    affinity = pod.spec.affinity
    if affinity is None or affinity.node_affinity is None:
        return None
    return affinity.node_affinity.required_during_scheduling_ignored_during_execution


def _compile(requirements: Sequence[NodeSelectorRequirement]) -> Matcher:
    # Already validated by the API server.
    return LabelSelector(Requirement(item.key, _OPERATORS[item.operator], item.values) for item in requirements).matches
