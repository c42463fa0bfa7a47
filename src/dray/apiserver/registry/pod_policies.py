"""Limit ranges and runtime classes: what admission applies to Pods."""

from __future__ import annotations

from typing import Final

from dray.api.validation.core_v1_limit_range import validate_limit_range
from dray.api.validation.node_v1 import validate_runtime_class, validate_runtime_class_update
from dray.apiserver.registry.columns import AGE, NAME, text_cell
from dray.apiserver.registry.generic import GenericStrategy
from dray.apiserver.registry.strategy import Column, ResourceDefinition

LIMIT_RANGES: Final = ResourceDefinition(
    group="",
    resource="limitranges",
    singular="limitrange",
    kind="LimitRange",
    namespaced=True,
    versions=("v1",),
    storage_version="v1",
    strategy=GenericStrategy(validate_limit_range, generation=False, create_on_update=True),
    short_names=("limits",),
    columns=(
        NAME,
        Column("Created At", "date", "When the range was created.", text_cell("metadata", "creationTimestamp")),
    ),
)

RUNTIME_CLASSES: Final = ResourceDefinition(
    group="node.k8s.io",
    resource="runtimeclasses",
    singular="runtimeclass",
    kind="RuntimeClass",
    namespaced=False,
    versions=("v1",),
    storage_version="v1",
    strategy=GenericStrategy(
        validate_runtime_class, validate_runtime_class_update, generation=False, create_on_update=True
    ),
    columns=(NAME, Column("Handler", "string", "The configuration of the runtime.", text_cell("handler")), AGE),
)

DEFINITIONS: Final = (LIMIT_RANGES, RUNTIME_CLASSES)
