"""The types of the built-in kinds, loaded from the generated data when first used.

Types are shared: a type is loaded once, so tables can be keyed by identity.
"""

from __future__ import annotations

import hashlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import orjson

from dray.api.document import GroupVersionKind
from dray.api.schema.model import Field, ListOf, ListType, MapOf, Scalar, StructType, Type

_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"

# Written by hand, in the format of the generated files, with descriptions.
_HANDWRITTEN_KINDS: Final = {
    f"cdi.k8s.io/v1alpha1/{kind}": f"io.k8s.api.cdi.v1alpha1.{kind}"
    for kind in ("ResourceClass", "ResourceClassList", "ResourceClaim", "ResourceClaimList")
} | {
    f"metrics.k8s.io/v1beta1/{kind}": f"io.k8s.metrics.pkg.apis.metrics.v1beta1.{kind}"
    for kind in ("NodeMetrics", "NodeMetricsList", "PodMetrics", "PodMetricsList")
}

# These kinds exist in every group and version.
_IN_EVERY_GROUP: Final = frozenset(
    {
        "CreateOptions",
        "DeleteOptions",
        "List",
        "PartialObjectMetadata",
        "PartialObjectMetadataList",
        "PatchOptions",
        "Status",
        "Table",
        "TableOptions",
        "UpdateOptions",
        "WatchEvent",
    }
)

_structs: dict[str, StructType] = {}


def kind_type(gvk: GroupVersionKind) -> StructType | None:
    """Return the type of a built-in kind, None when there is none."""
    name = _kinds().get(f"{gvk.api_version}/{gvk.kind}")
    if name is None and gvk.kind in _IN_EVERY_GROUP:
        name = f"{_META}.{gvk.kind}"
    return None if name is None else struct(name)


def kinds() -> Iterator[GroupVersionKind]:
    """Yield every built-in kind, in order."""
    for key in sorted(_kinds()):
        api_version, _, kind = key.rpartition("/")
        group, _, version = api_version.rpartition("/")
        yield GroupVersionKind(group, version, kind)


def struct(name: str) -> StructType:
    """Return the type with an OpenAPI definition name such as `io.k8s.api.core.v1.PodSpec`; raises KeyError."""
    found = _structs.get(name)
    return _build(name) if found is None else found


def object_meta() -> StructType:
    """Return the type of `metadata`, which custom resources share."""
    return struct(f"{_META}.ObjectMeta")


def list_meta() -> StructType:
    """Return the type of the `metadata` of lists."""
    return struct(f"{_META}.ListMeta")


def description(name: str) -> str:
    """Return the description of a handwritten type, or the empty text."""
    return str(_raw(name).get("description", ""))


def field_descriptions(name: str) -> dict[str, str]:
    """Return the descriptions of a handwritten type's fields; empty for generated types."""
    raw = _raw(name)["fields"] | _data("overlay").get(name, {})
    return {field: entry["description"] for field, entry in raw.items() if "description" in entry}


@cache
def digest() -> str:
    """Return a hash of all schema data."""
    modules = sorted({_module(name) for name in _kinds().values()} | {"kinds", "overlay", "meta_v1"})
    return hashlib.sha256(b"".join(_content(module) for module in modules)).hexdigest()


@cache
def _kinds() -> dict[str, str]:
    found: dict[str, str] = _data("kinds") | _HANDWRITTEN_KINDS
    return found


@cache
def _data(module: str) -> dict[str, Any]:
    parsed: dict[str, Any] = orjson.loads(_content(module))
    return parsed


def _content(module: str) -> bytes:
    content = pkgutil.get_data("dray.api.schema", f"data/{module}.json")
    assert content is not None
    return content


def _module(name: str) -> str:
    """Return the data file of a definition: `io.k8s.api.core.v1.Pod` is in `core_v1`."""
    parts = name.split(".")
    return f"{parts[-3]}_{parts[-2]}"


def _raw(name: str) -> dict[str, Any]:
    raw: dict[str, Any] = _data(_module(name))[name]
    return raw


def _build(name: str) -> StructType:
    raw = _raw(name)
    made = StructType(name, atomic=raw.get("atomic", False))
    # Registered before its fields are built: types are recursive.
    _structs[name] = made
    for field, entry in (raw["fields"] | _data("overlay").get(name, {})).items():
        made.fields[field] = _field(field, entry)
    return made


def _field(name: str, entry: dict[str, Any]) -> Field:
    return Field(
        name,
        _type(entry["type"]),
        number=entry.get("number", 0),
        required=entry.get("required", False),
        patch_strategies=tuple(entry.get("patch_strategies", ())),
        patch_merge_key=entry.get("patch_merge_key", ""),
        default=entry.get("default"),
        pointer=entry.get("pointer", False),
        wire=entry.get("wire", ""),
        via=tuple(entry.get("via", ())),
        always=entry.get("always", False),
        unlisted=entry.get("unlisted", False),
    )


def _type(expression: Any) -> Type:
    if isinstance(expression, str):
        return struct(expression[1:]) if expression[0] == "#" else _SCALARS[expression]
    form, element, *rest = expression
    if form == "map":
        return MapOf(_type(element), atomic=bool(rest))
    if not rest:
        return ListOf(_type(element))
    return ListOf(_type(element), ListType(rest[0]), tuple(rest[1:]))


_SCALARS: Final = {scalar.value: scalar for scalar in Scalar}
