"""Function declarations, and overload resolution at run time.

A declaration is written as `size(string) -> int`, a method with its receiver before two colons:
`string::charAt(int) -> string`. Single capitals are type parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Any, Final

from dray.api.quantity import Quantity
from dray.api.semver import Semver
from dray.cel import types
from dray.cel.errors import CELRuntimeError
from dray.cel.types import Kind, Type
from dray.cel.values import Budget, Duration, Optional, Timestamp, Uint

_NAMES: Final[Mapping[str, Type]] = {
    **types.TYPE_NAMES,
    "timestamp": types.TIMESTAMP,
    "duration": types.DURATION,
    "null": types.NULL,
    "quantity": types.QUANTITY,
    "semver": types.SEMVER,
    "url": types.URL,
    "ip": types.IP,
    "cidr": types.CIDR,
    "format": types.NAMED_FORMAT,
    "path_check": types.PATH_CHECK,
    "group_check": types.GROUP_CHECK,
    "resource_check": types.RESOURCE_CHECK,
    "decision": types.DECISION,
}
_TOKENS: Final = re.compile(r"[A-Za-z_.]+|[(),]")
_DISPATCH_CACHE_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Overload:
    """An overload of a function; `params` begin with the receiver of a method.

    `charge` returns the cost of a call beyond the static cost, given the arguments; a `budgeted` implementation takes
    the budget as its first argument and charges it itself.
    """

    id: str
    params: tuple[Type, ...]
    result: Type
    member: bool
    implementation: Callable[..., Any]
    charge: Callable[..., int] | None = None
    budgeted: bool = False
    is_generic: bool = False

    @property
    def dynamic_cost(self) -> bool:
        """Report whether the call's cost depends on its arguments."""
        return self.budgeted or self.charge is not None

    def with_budget(self) -> Callable[..., Any]:
        """Return the implementation that takes the budget first."""
        if self.budgeted:
            return self.implementation
        charge, implementation = self.charge, self.implementation
        if charge is None:
            return lambda _budget, *args: implementation(*args)

        def charged(budget: Budget, *args: Any) -> Any:
            budget.spend(charge(*args))
            return implementation(*args)

        return charged


@dataclass(slots=True)
class Registry:
    """The functions of an environment by name."""

    functions: dict[str, list[Overload]] = field(default_factory=dict)

    def declare(
        self,
        signature: str,
        implementation: Callable[..., Any],
        *,
        charge: Callable[..., int] | None = None,
        budgeted: bool = False,
        names: Mapping[str, Type] = _NAMES,
    ) -> None:
        """Add an overload; `names` are those of types that the signature may use besides the usual ones."""
        head, _, tail = signature.rpartition(" -> ")
        receiver, _, call = head.rpartition("::")
        name, _, listed = call.partition("(")
        params = ((_type(_Tokens(receiver, names)),) if receiver else ()) + _params(_Tokens("(" + listed, names))
        result = _type(_Tokens(tail, names))
        generic = result.is_generic or any(given.is_generic for given in params)
        overload = Overload(
            id=signature,
            params=params,
            result=result,
            member=bool(receiver),
            implementation=implementation,
            charge=charge,
            budgeted=budgeted,
            is_generic=generic,
        )
        self.functions.setdefault(name, []).append(overload)

    def merged(self, *others: Registry) -> Registry:
        """Return a registry with all functions."""
        together: dict[str, list[Overload]] = {}
        for registry in (self, *others):
            for name, overloads in registry.functions.items():
                together.setdefault(name, []).extend(overloads)
        return Registry(together)


class _Tokens:
    """The tokens of a signature."""

    def __init__(self, signature: str, names: Mapping[str, Type]) -> None:
        self._tokens: list[str] = _TOKENS.findall(signature)
        self._position = 0
        self._names = names

    def type_of(self, name: str) -> Type:
        return self._names.get(name) or _NAMES[name]

    def peek(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def next(self) -> str:
        self._position += 1
        return self._tokens[self._position - 1]


def _params(tokens: _Tokens) -> tuple[Type, ...]:
    """Parse the types between parentheses."""
    found: list[Type] = []
    tokens.next()
    while tokens.peek() != ")":
        found.append(_type(tokens))
        if tokens.peek() == ",":
            tokens.next()
    tokens.next()
    return tuple(found)


def _type(tokens: _Tokens) -> Type:
    name = tokens.next()
    builder = _BUILDERS.get(name)
    if builder is not None and tokens.peek() == "(":
        return builder(*_params(tokens))
    return types.param(name) if len(name) == 1 else tokens.type_of(name)


_BUILDERS: Final[Mapping[str, Callable[..., Type]]] = {
    "list": types.list_of,
    "map": types.map_of,
    "type": types.type_of,
    "optional": types.optional_of,
}

_KINDS: Final[Mapping[type, Kind]] = {
    bool: Kind.BOOL,
    int: Kind.INT,
    Uint: Kind.UINT,
    float: Kind.DOUBLE,
    str: Kind.STRING,
    bytes: Kind.BYTES,
    type(None): Kind.NULL,
    list: Kind.LIST,
    tuple: Kind.LIST,
    dict: Kind.MAP,
    Timestamp: Kind.TIMESTAMP,
    Duration: Kind.DURATION,
    Type: Kind.TYPE,
}
_OPAQUE_NAMES: Final[Mapping[type, str]] = {
    Quantity: "kubernetes.Quantity",
    Semver: "kubernetes.Semver",
    Optional: "optional_type",
    IPv4Address: "net.IP",
    IPv6Address: "net.IP",
    IPv4Interface: "net.CIDR",
    IPv6Interface: "net.CIDR",
}


def kind_of_class(cls: type) -> Kind:
    """Return the kind of the values of a Python class."""
    kind = _KINDS.get(cls)
    if kind is None and issubclass(cls, (dict, list)):
        kind = Kind.MAP if issubclass(cls, dict) else Kind.LIST
    return kind or Kind.OPAQUE


def opaque_name(cls: type) -> str:
    """Return the type name of the values of a class that is not of a basic kind."""
    return _OPAQUE_NAMES.get(cls) or str(getattr(cls, "type_name", cls.__name__))


def _accepts(wanted: Type, cls: type) -> bool:
    if wanted.is_dyn or wanted.kind is Kind.PARAM:
        return True
    kind = kind_of_class(cls)
    if wanted.kind is Kind.OBJECT:
        return kind is Kind.MAP or (kind is Kind.OPAQUE and opaque_name(cls) == wanted.name)
    if kind is not wanted.kind:
        return False
    return kind is not Kind.OPAQUE or opaque_name(cls) == wanted.name


class Dispatcher:
    """Calls the overload that matches the classes of the arguments."""

    def __init__(self, name: str, overloads: list[Overload], *, budgeted: bool) -> None:
        self._name = name
        self._overloads = overloads
        self._budgeted = budgeted
        self._by_classes: dict[tuple[type, ...], Callable[..., Any]] = {}

    def __call__(self, *args: Any) -> Any:
        """Evaluate; the first argument is the budget when the dispatcher is budgeted."""
        classes = tuple(map(type, args[1:] if self._budgeted else args))
        target = self._by_classes.get(classes)
        if target is None:
            target = self._choose(classes)
        return target(*args)

    def find(self, classes: tuple[type, ...]) -> Overload | None:
        """Return the overload for arguments of these classes."""
        for overload in self._overloads:
            if len(overload.params) == len(classes) and all(map(_accepts, overload.params, classes)):
                return overload
        return None

    def _choose(self, classes: tuple[type, ...]) -> Callable[..., Any]:
        overload = self.find(classes)
        if overload is None:
            raise CELRuntimeError("no such overload")
        chosen = overload.with_budget() if self._budgeted else overload.implementation
        if len(self._by_classes) < _DISPATCH_CACHE_MAX:
            self._by_classes[classes] = chosen
        return chosen
