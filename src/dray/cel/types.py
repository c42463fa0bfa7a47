"""The types of the checker, which are also the values of CEL's `type()`."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final


class Kind(enum.Enum):
    """The kind of a type; the value is the name in messages."""

    DYN = "dyn"
    ANY = "any"
    ERROR = "!error!"
    NULL = "null"
    BOOL = "bool"
    INT = "int"
    UINT = "uint"
    DOUBLE = "double"
    STRING = "string"
    BYTES = "bytes"
    TIMESTAMP = "timestamp"
    DURATION = "duration"
    LIST = "list"
    MAP = "map"
    TYPE = "type"
    OPAQUE = "opaque"
    OBJECT = "object"
    PARAM = "param"


@dataclass(frozen=True, slots=True)
class Field:
    """A declared field: its type, and its name in the host value."""

    type: Type
    key: str


@dataclass(frozen=True, slots=True)
class Type:
    """A type; `size_max` bounds the size of its values for cost estimates and is not part of its identity.

    `fields` belong to object types. Their values are mappings, or with `by_attribute` Python objects.
    """

    kind: Kind
    name: str = ""
    params: tuple[Type, ...] = ()
    size_max: int | None = field(default=None, compare=False)
    fields: Mapping[str, Field] = field(default_factory=dict, compare=False, repr=False)
    by_attribute: bool = field(default=False, compare=False)

    def sized(self, size_max: int) -> Type:
        """Return the type with a bound on the size of its values."""
        return replace(self, size_max=size_max)

    @property
    def is_generic(self) -> bool:
        """Report whether it is or has type parameters."""
        return self.kind is Kind.PARAM or any(inner.is_generic for inner in self.params)

    @property
    def is_dyn(self) -> bool:
        """Report whether the type is dynamic."""
        return self.kind in _DYNAMIC

    @property
    def is_optional(self) -> bool:
        """Report whether it is `optional_type(T)`."""
        return self.kind is Kind.OPAQUE and self.name == "optional_type"

    def __str__(self) -> str:
        head = self.name or self.kind.value
        if not self.params:
            return head
        return f"{head}({', '.join(map(str, self.params))})"

    @property
    def type_name(self) -> str:
        """Return the name that `type()` prints at run time."""
        return _RUNTIME_NAMES.get(self.kind) or self.name or self.kind.value


_DYNAMIC: Final = frozenset({Kind.DYN, Kind.ANY, Kind.ERROR})
_RUNTIME_NAMES: Final = {
    Kind.NULL: "null_type",
    Kind.TIMESTAMP: "google.protobuf.Timestamp",
    Kind.DURATION: "google.protobuf.Duration",
}

DYN: Final = Type(Kind.DYN)
ANY: Final = Type(Kind.ANY)
ERROR: Final = Type(Kind.ERROR)
NULL: Final = Type(Kind.NULL)
BOOL: Final = Type(Kind.BOOL)
INT: Final = Type(Kind.INT)
UINT: Final = Type(Kind.UINT)
DOUBLE: Final = Type(Kind.DOUBLE)
STRING: Final = Type(Kind.STRING)
BYTES: Final = Type(Kind.BYTES)
TIMESTAMP: Final = Type(Kind.TIMESTAMP)
DURATION: Final = Type(Kind.DURATION)
TYPE: Final = Type(Kind.TYPE)

QUANTITY: Final = Type(Kind.OPAQUE, "kubernetes.Quantity")
SEMVER: Final = Type(Kind.OPAQUE, "kubernetes.Semver")
URL: Final = Type(Kind.OPAQUE, "kubernetes.URL")
PATH_CHECK: Final = Type(Kind.OPAQUE, "kubernetes.authorization.PathCheck")
GROUP_CHECK: Final = Type(Kind.OPAQUE, "kubernetes.authorization.GroupCheck")
RESOURCE_CHECK: Final = Type(Kind.OPAQUE, "kubernetes.authorization.ResourceCheck")
DECISION: Final = Type(Kind.OPAQUE, "kubernetes.authorization.Decision")
NAMED_FORMAT: Final = Type(Kind.OPAQUE, "kubernetes.NamedFormat")
IP: Final = Type(Kind.OPAQUE, "net.IP")
CIDR: Final = Type(Kind.OPAQUE, "net.CIDR")


def list_of(element: Type, size_max: int | None = None) -> Type:
    """Return a list type."""
    return Type(Kind.LIST, params=(element,), size_max=size_max)


def map_of(key: Type, value: Type, size_max: int | None = None) -> Type:
    """Return a map type."""
    return Type(Kind.MAP, params=(key, value), size_max=size_max)


def optional_of(value: Type) -> Type:
    """Return an optional type."""
    return Type(Kind.OPAQUE, "optional_type", (value,))


def type_of(value: Type) -> Type:
    """Return the type of a type."""
    return Type(Kind.TYPE, params=(value,))


def object_type(name: str, fields: Mapping[str, Field], *, by_attribute: bool = False) -> Type:
    """Return a type with declared fields."""
    return Type(Kind.OBJECT, name, fields=fields, by_attribute=by_attribute)


def param(name: str) -> Type:
    """Return a type parameter of a function declaration."""
    return Type(Kind.PARAM, name)


# Names of types in expressions.
TYPE_NAMES: Final[Mapping[str, Type]] = {
    "bool": BOOL,
    "int": INT,
    "uint": UINT,
    "double": DOUBLE,
    "string": STRING,
    "bytes": BYTES,
    "null_type": NULL,
    "list": list_of(DYN),
    "map": map_of(DYN, DYN),
    "type": TYPE,
    "dyn": DYN,
    "google.protobuf.Timestamp": TIMESTAMP,
    "google.protobuf.Duration": DURATION,
    "optional_type": optional_of(DYN),
    "kubernetes.Quantity": QUANTITY,
    "kubernetes.Semver": SEMVER,
    "kubernetes.URL": URL,
    "net.IP": IP,
    "net.CIDR": CIDR,
}


class Substitution:
    """The current bindings of an expression's type parameters."""

    def __init__(self) -> None:
        self.bindings: dict[str, Type] = {}
        # Previous bindings, newest last, to undo a failed attempt.
        self._undo: list[tuple[str, Type | None]] = []

    def assignable_all(self, given: Sequence[Type], wanted: Sequence[Type]) -> bool:
        """Report whether every given type is assignable to its wanted one; bindings change only when all are."""
        self._undo.clear()
        if all(map(self._assign, given, wanted)):
            return True
        for name, before in reversed(self._undo):
            if before is None:
                del self.bindings[name]
            else:
                self.bindings[name] = before
        return False

    def _bind(self, name: str, to: Type) -> None:
        self._undo.append((name, self.bindings.get(name)))
        self.bindings[name] = to

    def assignable(self, given: Type, wanted: Type) -> bool:
        """Report whether a value of the given type can be used where the wanted one is expected."""
        return self.assignable_all([given], [wanted])

    def apply(self, target: Type, *, unbound_to_dyn: bool = False) -> Type:
        """Return the type with its parameters replaced."""
        if target.kind is Kind.PARAM:
            bound = self.bindings.get(target.name)
            if bound is None:
                return DYN if unbound_to_dyn else target
            return self.apply(bound, unbound_to_dyn=unbound_to_dyn)
        if not target.params:
            return target
        params = tuple([self.apply(inner, unbound_to_dyn=unbound_to_dyn) for inner in target.params])
        return target if params == target.params else Type(target.kind, target.name, params, target.size_max)

    def _assign(self, given: Type, wanted: Type) -> bool:
        if Kind.PARAM in (given.kind, wanted.kind):
            return self._assign_param(given, wanted) if wanted.kind is Kind.PARAM else self._assign_param(wanted, given)
        if given.is_dyn or wanted.is_dyn:
            return True
        if Kind.NULL in (given.kind, wanted.kind):
            other = wanted if given.kind is Kind.NULL else given
            return other.kind in _NULLABLE and not other.is_optional
        if given.kind is Kind.TYPE and wanted.kind is Kind.TYPE:
            return True
        if given.kind is not wanted.kind or given.name != wanted.name or len(given.params) != len(wanted.params):
            return False
        return all(map(self._assign, given.params, wanted.params))

    def _assign_param(self, other: Type, parameter: Type) -> bool:
        bound = self.bindings.get(parameter.name)
        if bound is not None:
            if not self._assign(other, bound):
                return False
            # A later, more general use widens the parameter.
            if other.kind is not Kind.ERROR and more_general(other, bound) and not _occurs(parameter, other):
                self._bind(parameter.name, other)
            return True
        other = self.apply(other)
        if other == parameter:
            return True
        if _occurs(parameter, other):
            return False
        self._bind(parameter.name, other)
        return True


_NULLABLE: Final = frozenset({Kind.NULL, Kind.OPAQUE, Kind.OBJECT, Kind.TIMESTAMP, Kind.DURATION})


def more_general(one: Type, other: Type) -> bool:
    """Report whether one type is strictly more general than the other."""
    if one.is_dyn or other.is_dyn or Kind.PARAM in (one.kind, other.kind):
        return one.is_dyn and not other.is_dyn and other.kind is not Kind.PARAM
    return one.kind is other.kind and any(map(more_general, one.params, other.params))


def _occurs(parameter: Type, inside: Type) -> bool:
    return inside == parameter or any(_occurs(parameter, inner) for inner in inside.params)
