"""Validation of resource.k8s.io and cdi.k8s.io never raises for documents of the right types."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dray.api.defaults import other_groups
from dray.api.defaults import resource as resource_defaults
from dray.api.document import Document, GroupVersionKind
from dray.api.features import FeatureGates
from dray.api.field_errors import FieldError
from dray.api.gate_table import GATES
from dray.api.schema.load import kind_type
from dray.api.schema.model import ListOf, MapOf, Scalar, StructType, Type
from dray.apiserver.registry import cdi, resource
from dray.apiserver.registry.strategy import ResourceDefinition, WriteContext
from dray.apiserver.request import UserInfo

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DEFAULTERS = {**resource_defaults.DEFAULTERS, **other_groups.DEFAULTERS}
DEFINITIONS = {item.group + "/" + item.kind: item for item in (*resource.DEFINITIONS, *cdi.DEFINITIONS)}
# Valid and invalid names.
TEXTS = st.sampled_from(
    ["", "a", "r", "r/a", "gpu.example.com", "d/x", "B_", "All", "ExactCount", "Exists", "NoExecute"]
)
SCALARS: dict[Scalar, st.SearchStrategy[Any]] = {
    Scalar.STRING: TEXTS,
    Scalar.INT32: st.integers(-2, 3),
    Scalar.INT64: st.integers(-2, 3),
    Scalar.DOUBLE: st.floats(0, 1),
    Scalar.BOOL: st.booleans(),
    Scalar.BYTES: st.just("YQ=="),
    Scalar.TIME: st.just("2026-01-01T00:00:00Z"),
    Scalar.MICRO_TIME: st.just("2026-01-01T00:00:00.000000Z"),
    Scalar.DURATION: st.just("1s"),
    Scalar.QUANTITY: st.sampled_from(["0", "1", "2Gi", "-1", "500m"]),
    Scalar.INT_OR_STRING: st.sampled_from([1, "a"]),
    Scalar.ANY: st.sampled_from([None, {}, {"a": 1}, [], "x"]),
}


def values(kind: Type) -> st.SearchStrategy[Any]:
    if isinstance(kind, Scalar):
        return SCALARS[kind]
    if isinstance(kind, ListOf):
        return st.lists(values(kind.element), max_size=2)
    if isinstance(kind, MapOf):
        return st.dictionaries(TEXTS, values(kind.element), max_size=2)
    return st.deferred(lambda: structures(kind))


_STRUCTURES: dict[str, st.SearchStrategy[Document]] = {}


def structures(kind: StructType) -> st.SearchStrategy[Document]:
    if kind.name not in _STRUCTURES:
        # The request handlers validate metadata, so its content is irrelevant here.
        fields = {name: values(field.type) for name, field in kind.fields.items() if name != "metadata"}
        _STRUCTURES[kind.name] = st.fixed_dictionaries({}, optional=fields)
    return _STRUCTURES[kind.name]


def contexts() -> st.SearchStrategy[WriteContext]:
    gates = st.dictionaries(st.sampled_from(sorted(GATES)), st.booleans(), max_size=3).map(FeatureGates)
    return gates.map(lambda chosen: WriteContext(NOW, chosen, UserInfo("alice"), {"metadata": {}}))


def judge(definition: ResourceDefinition, new: Document, old: Document, context: WriteContext) -> list[FieldError]:
    """Run all strategy methods on a document."""
    errors: list[FieldError] = []
    fresh = copy.deepcopy(new)
    definition.strategy.prepare_for_create(fresh, context)
    errors += definition.strategy.validate_create(fresh, context)
    for strategy in filter(None, (definition.strategy, definition.status_strategy)):
        document = copy.deepcopy(new)
        strategy.prepare_for_update(document, old, context)
        errors += strategy.validate_update(document, old, context)
        strategy.warnings(document, old, context)
    for column in definition.columns:
        column.cell(new, NOW)
    for getter in definition.selectable_fields.values():
        getter(new)
    return errors


@pytest.mark.parametrize("name", DEFINITIONS)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_rules_are_total(name: str, data: st.DataObject) -> None:
    definition = DEFINITIONS[name]
    kind = GroupVersionKind(definition.group, definition.storage_version, definition.kind)
    model = kind_type(kind)
    assert model is not None
    documents: list[Document] = []
    default: Callable[[Document, datetime], None] = DEFAULTERS.get(kind, lambda document, now: None)
    for _ in range(2):
        document = {**data.draw(structures(model)), "metadata": {"name": "x", "namespace": "n"}}
        if data.draw(st.booleans()):
            default(document, NOW)
        documents.append(document)
    new, old = documents
    before = copy.deepcopy(old)
    for error in judge(definition, new, old, data.draw(contexts())):
        assert str(error)
    assert old == before
