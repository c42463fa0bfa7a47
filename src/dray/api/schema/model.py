"""The type model: a kind is a tree of types, which every generic algorithm traverses.

Strict decoding, protobuf, strategic merge, server-side apply and OpenAPI all use this model, both for built-in
kinds (loaded from generated data) and for custom resources (derived from their structural schema).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TypeAlias


class Scalar(enum.StrEnum):
    """A leaf of the tree; the comments name its JSON form."""

    STRING = "string"
    INT32 = "int32"  # number
    INT64 = "int64"  # number
    DOUBLE = "double"  # number
    BOOL = "bool"
    BYTES = "bytes"  # base64 string
    TIME = "time"  # RFC 3339 string, seconds
    MICRO_TIME = "micro-time"  # RFC 3339 string, microseconds
    DURATION = "duration"  # Go duration string
    QUANTITY = "quantity"  # string, a number is accepted
    INT_OR_STRING = "int-or-string"
    ANY = "any"  # any JSON value: RawExtension, JSON; unknown fields are kept


class ListType(enum.StrEnum):
    """`x-kubernetes-list-type`: how server-side apply merges a list."""

    ATOMIC = "atomic"
    SET = "set"
    MAP = "map"


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list; server-side apply merges it by `list_type` and `map_keys`."""

    element: Type
    list_type: ListType = ListType.ATOMIC
    map_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MapOf:
    """A map from strings; `atomic` maps are replaced as a whole by server-side apply."""

    element: Type
    atomic: bool = False


@dataclass(slots=True, eq=False)
class StructType:
    """A named message; `fields` is filled after construction because types are recursive.

    `name` is the OpenAPI definition name (`io.k8s.api.core.v1.PodSpec`), `atomic` is
    `x-kubernetes-map-type: atomic`, `open` keeps unknown fields (custom resources only).
    """

    name: str
    fields: dict[str, Field] = field(default_factory=dict)
    atomic: bool = False
    open: bool = False

    def __repr__(self) -> str:
        return f"StructType({self.name!r})"


Type: TypeAlias = Scalar | ListOf | MapOf | StructType


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message; `number` is its protobuf tag (0 when the kind has no protobuf form).

    `patch_strategies` are those of `x-kubernetes-patch-strategy` ("merge", "retainKeys", "replace");
    `default` is the OpenAPI default that server-side apply uses for missing map keys. `pointer` marks optional
    scalars that keep a set zero value (Go pointers); of the others zero means absent. `wire` names the
    protobuf message around a leaf whose JSON form does not show it ("raw", "string-list", "schema-or-array",
    "schema-or-bool", "schema-or-strings"); `via` has the numbers of the embedded messages that hold the field,
    outermost first. `always` marks structs that are always present, even when unset (`status: {}`); `unlisted` marks
    required fields that OpenAPI calls optional.
    """

    name: str
    type: Type
    number: int = 0
    required: bool = False
    patch_strategies: tuple[str, ...] = ()
    patch_merge_key: str = ""
    default: object = None
    pointer: bool = False
    wire: str = ""
    via: tuple[int, ...] = ()
    always: bool = False
    unlisted: bool = False


def has_raw_values(struct: StructType) -> bool:
    """Return whether objects of a type hold JSON values of any shape, besides the managed fields of their metadata."""
    seen: set[int] = set()
    waiting: list[Type] = [struct]
    while waiting:
        kind = waiting.pop()
        if kind is Scalar.ANY:
            return True
        if isinstance(kind, ListOf | MapOf):
            waiting.append(kind.element)
        elif isinstance(kind, StructType) and id(kind) not in seen and not kind.name.endswith(".ObjectMeta"):
            seen.add(id(kind))
            waiting += [item.type for item in kind.fields.values()]
    return False
