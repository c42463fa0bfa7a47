"""Short forms of KEP-3063 that are accepted in Pods and stored in full. Pure.

`claims: ["gpu"]` of a container stands for `claims: [{"name": "gpu"}]`, and an inline template without `spec` for one
whose spec has its fields, as in the proposal's example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from dray.api.schema.model import ListOf, MapOf, StructType, Type

_SPEC_FIELDS: Final = ("resourceClassName", "parameters", "allocationMode")


def _expand_name(value: Any) -> Any:
    return {"name": value} if type(value) is str else value


def _expand_template(value: Any) -> Any:
    if type(value) is not dict or "spec" in value or not any(name in value for name in _SPEC_FIELDS):
        return value
    spec = {name: value[name] for name in _SPEC_FIELDS if name in value}
    return {**{name: item for name, item in value.items() if name not in spec}, "spec": spec}


# Struct -> its full form; a value that is in full form, or wrong, is returned as it is.
SHORTHANDS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "io.k8s.api.core.v1.ResourceClaim": _expand_name,
    "io.k8s.api.cdi.v1alpha1.ResourceClaimTemplate": _expand_template,
}


def expand(value: Any, kind: Type) -> Any:
    """Return the value of a built-in type, perhaps part of an object, in full form; it is not changed itself."""
    if isinstance(kind, StructType):
        return _expand_struct(value, kind)
    if isinstance(kind, ListOf) and type(value) is list:
        return [expand(item, kind.element) for item in value]
    if isinstance(kind, MapOf) and type(value) is dict:
        return {key: expand(item, kind.element) for key, item in value.items()}
    return value


def _expand_struct(value: Any, kind: StructType) -> Any:
    shorthand = SHORTHANDS.get(kind.name)
    if shorthand is not None:
        value = shorthand(value)
    names = _names(kind)
    if type(value) is not dict or names.isdisjoint(value):
        return value
    return {name: expand(item, kind.fields[name].type) if name in names else item for name, item in value.items()}


@cache
def _names(kind: StructType) -> frozenset[str]:
    """Return the fields that contain something with a short form."""
    return frozenset(field.name for field in kind.fields.values() if _contains(field.type, set()))


def _contains(kind: Type, seen: set[str]) -> bool:
    if isinstance(kind, ListOf | MapOf):
        return _contains(kind.element, seen)
    if not isinstance(kind, StructType) or kind.name in seen:
        return False
    seen.add(kind.name)
    return kind.name in SHORTHANDS or any(_contains(field.type, seen) for field in kind.fields.values())
