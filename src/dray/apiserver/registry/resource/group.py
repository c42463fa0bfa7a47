"""Versions, selector compilation and status handling that the resources of the group share."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from dray.api.document import Document
from dray.api.features import FeatureGates
from dray.api.validation.resource_expressions import Compilers, SelectorResult
from dray.apiserver.registry.strategy import restore, restore_metadata

GROUP: Final = "resource.k8s.io"
VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
STORAGE_VERSION: Final = "v1"

# Drivers and users repeat a few selectors.
_SELECTOR_CACHE_SIZE: Final = 4096

# Metadata that a status update cannot change.
_RESTORED_METADATA: Final = ("labels", "annotations", "finalizers", "ownerReferences", "generation")


class CompilerFeatures(NamedTuple):
    """What the expressions of new objects may use."""

    list_attributes: bool
    consumable_capacity: bool


def compiler_features(gates: FeatureGates) -> CompilerFeatures:
    """Return the features that the gates enable."""
    return _features_without(gates.disabled)


# One entry for each server.
@lru_cache(maxsize=64)
def _features_without(disabled: frozenset[str]) -> CompilerFeatures:
    return CompilerFeatures("DRAListTypeAttributes" not in disabled, "DRAConsumableCapacity" not in disabled)


def selector_compiler(gates: FeatureGates) -> Callable[[str], SelectorResult]:
    """Return the compiler for CEL selectors of new objects, with the features that the gates enable."""
    list_attributes, consumable_capacity = compiler_features(gates)
    return lambda expression: _compile(
        expression, list_attributes=list_attributes, consumable_capacity=consumable_capacity
    )


def compilers(gates: FeatureGates) -> Compilers:
    """Return the compilers for the expressions of new claims."""
    list_attributes, consumable_capacity = compiler_features(gates)
    return Compilers(
        selector_compiler(gates),
        lambda expression: _compile_derived(
            expression, list_attributes=list_attributes, consumable_capacity=consumable_capacity
        ),
    )


def compile_stored_selector(expression: str) -> SelectorResult:
    """Compile a selector that may have been stored while other gates were enabled."""
    return _compile(expression, list_attributes=True, consumable_capacity=True)


@lru_cache(_SELECTOR_CACHE_SIZE)
def _compile(expression: str, *, list_attributes: bool, consumable_capacity: bool) -> SelectorResult:
    from dray.cel.environments import compile_device_selector
    from dray.cel.errors import CELError

    try:
        compiled = compile_device_selector(
            expression, list_attributes=list_attributes, consumable_capacity=consumable_capacity
        )
    except CELError as error:
        return SelectorResult(error=error.detail)
    return SelectorResult(cost=compiled.estimated_cost)


@lru_cache(_SELECTOR_CACHE_SIZE)
def _compile_derived(expression: str, *, list_attributes: bool, consumable_capacity: bool) -> SelectorResult:
    from dray.cel.environments import compile_derived_attribute
    from dray.cel.errors import CELError

    try:
        compiled = compile_derived_attribute(
            expression, list_attributes=list_attributes, consumable_capacity=consumable_capacity
        )
    except CELError as error:
        return SelectorResult(error=error.detail)
    return SelectorResult(cost=compiled.estimated_cost)


def restore_for_status(obj: Document, old: Document) -> None:
    """Restore spec and metadata, which an update of the status subresource cannot change."""
    restore(obj, old, "spec")
    restore_metadata(obj, old, *_RESTORED_METADATA)


def restore_status(obj: Document, old: Document) -> None:
    """Restore the status, which an update of the object itself cannot change."""
    obj["status"] = old.get("status") or {}
