"""Translates the selectors of a list or watch to a prefix in the store and a predicate for objects. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dray.api.document import Document, GroupResource
from dray.api.errors import BadRequestError
from dray.api.selectors import FieldSelector, LabelSelector, unsupported_field_message
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.options import ListOptions

Matcher = Callable[[Document], bool]


# Every node agent watches these with a field selector for its own node.
_NODE_LOCAL: Final = frozenset({GroupResource("", "pods"), GroupResource("resource.k8s.io", "resourceslices")})
_NODE_NAME: Final = "spec.nodeName"


def _name(document: Document) -> str:
    return str(document["metadata"].get("name", ""))


def _namespace(document: Document) -> str:
    return str(document["metadata"].get("namespace", ""))


@dataclass(frozen=True, slots=True)
class Selection:
    """The objects under `prefix` for which `matches` is true; None matches all of them."""

    prefix: str
    matches: Matcher | None = None
    # The indexed field and its value, if a watch of the whole resource selects one.
    filed: tuple[str, str] | None = None

    @property
    def is_single(self) -> bool:
        """Whether the prefix is the key of one object."""
        return not self.prefix.endswith("/")


def select(endpoint: Endpoint, namespace: str, name: str, options: ListOptions) -> Selection:
    """Narrow the prefix by the exact matches of the field selector, and compile the selectors to a predicate."""
    fields = options.field_selector
    if fields is not None:
        _check_fields(endpoint, fields)
        name = name or fields.exact("metadata.name") or ""
        namespace = namespace or (fields.exact("metadata.namespace") or "" if endpoint.definition.namespaced else "")
    prefix = endpoint.scope_prefix(namespace)
    if name and (namespace or not endpoint.definition.namespaced):
        prefix = endpoint.key(namespace, name)
    return Selection(prefix, _matcher(endpoint, options.label_selector, fields), _filed(endpoint, prefix, fields))


def _filed(endpoint: Endpoint, prefix: str, fields: FieldSelector | None) -> tuple[str, str] | None:
    if fields is None or prefix != endpoint.prefix or endpoint.resource not in _NODE_LOCAL:
        return None
    value = fields.exact(_NODE_NAME)
    return None if value is None else (_NODE_NAME, value)


def _check_fields(endpoint: Endpoint, selector: FieldSelector) -> None:
    known = endpoint.definition.selectable_fields
    for requirement in selector.requirements:
        field = requirement.field
        if field in ("metadata.name", "metadata.namespace") or field in known:
            continue
        raise BadRequestError(unsupported_field_message(field, endpoint.gvk, selectable=bool(known)))


def _matcher(endpoint: Endpoint, labels: LabelSelector | None, fields: FieldSelector | None) -> Matcher | None:
    tests: list[Matcher] = []
    if fields is not None and not fields.is_everything:
        getters = {"metadata.name": _name, "metadata.namespace": _namespace} | dict(
            endpoint.definition.selectable_fields
        )
        tests.append(fields.compile(getters))
    if labels is not None and not labels.is_everything:
        matches = labels.matches
        tests.append(lambda document: matches(document["metadata"].get("labels") or {}))
    if not tests:
        return None
    if len(tests) == 1:
        return tests[0]
    return lambda document: all(test(document) for test in tests)
