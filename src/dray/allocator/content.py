"""The content of devices, without name and pool. Equal contents are one object, evaluated once per selector."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from dray.api.semver import Semver
from dray.api.types.resource_v1 import Device, DeviceAttribute, DeviceCapacity
from dray.cel.devices import split_name
from dray.cel.environments import DeviceView, device_view

if TYPE_CHECKING:
    from dray.allocator.derived_attributes import DerivedAttributes, DerivedFailure
    from dray.allocator.selection import SelectorGroup, Verdict

# Cached verdicts, derived attributes and values per content; without a bound, claims with unique expressions would let
# them grow forever.
_VERDICTS_MAX: Final = 128
# Keys of capacities that are one object if they are equal; beyond that they are only equal.
_CAPACITY_KEYS_MAX: Final = 1024

# A typed attribute value: 1 and true differ, and so do "1" and version 1.
Value = tuple[str, object]

_SCALARS: Final = (("int", "int_"), ("bool", "bool_"), ("string", "string"), ("version", "version"))
_LISTS: Final = (("int", "ints"), ("bool", "bools"), ("string", "strings"), ("version", "versions"))
_KINDS: Final[Mapping[type, str]] = {bool: "bool", int: "int", str: "string"}


class Values(NamedTuple):
    """The typed values of an attribute; a scalar is a set of one."""

    values: frozenset[Value]
    is_list: bool


# The driver, and the capacities with their policies.
CapacityKey: TypeAlias = tuple[str, frozenset[tuple[str, DeviceCapacity]]]


@lru_cache(maxsize=_CAPACITY_KEYS_MAX)
def _interned(key: CapacityKey) -> CapacityKey:
    return key


class Content:
    """The driver, attributes and capacities of a device; compared by value only when interned."""

    __slots__ = (
        "_hash",
        "_values",
        "allow_multiple",
        "attributes",
        "capacity",
        "capacity_key",
        "derived",
        "driver",
        "users",
        "verdicts",
    )

    def __init__(self, driver: str, device: Device) -> None:
        self.driver = driver
        self.attributes: Mapping[str, DeviceAttribute] = device.attributes
        self.capacity: Mapping[str, DeviceCapacity] = device.capacity
        self.allow_multiple = bool(device.allow_multiple_allocations)
        # The number of devices with this content; maintained by the table.
        self.users = 0
        self.verdicts: dict[SelectorGroup, Verdict] = {}
        self.derived: dict[DerivedAttributes, Mapping[str, Values] | DerivedFailure] = {}
        # By fully qualified name; only those that constraints compare.
        self._values: dict[str, Values | None] = {}
        capacity = frozenset(self.capacity.items())
        # All that decides about shares of the device, which usually differs less than the rest of the content.
        self.capacity_key: CapacityKey | None = _interned((driver, capacity)) if self.allow_multiple else None
        self._hash = hash((driver, frozenset(self.attributes.items()), capacity, self.allow_multiple))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Content)
            and self.driver == other.driver
            and self.allow_multiple == other.allow_multiple
            and self.attributes == other.attributes
            and self.capacity == other.capacity
        )

    def cache_verdict(self, group: SelectorGroup, verdict: Verdict) -> None:
        """Cache a verdict."""
        if len(self.verdicts) >= _VERDICTS_MAX:
            self.verdicts.clear()
        self.verdicts[group] = verdict

    def cache_derived(self, attributes: DerivedAttributes, found: Mapping[str, Values] | DerivedFailure) -> None:
        """Cache derived attributes."""
        if len(self.derived) >= _VERDICTS_MAX:
            self.derived.clear()
        self.derived[attributes] = found

    def view(self) -> DeviceView:
        """Return the device as expressions see it; raise `CELRuntimeError` for an attribute without a valid value."""
        document = {
            "attributes": msgspec.to_builtins(self.attributes),
            "capacity": msgspec.to_builtins(self.capacity),
            "allowMultipleAllocations": self.allow_multiple,
        }
        return device_view(self.driver, document)

    def read_by(self, ids: frozenset[str]) -> Hashable | None:
        """Return all that decides about expressions that read no other attributes than these, of any domain.

        None if another attribute may be invalid, which makes every expression fail.
        """
        read: list[tuple[str, DeviceAttribute]] = []
        for name, attribute in self.attributes.items():
            if split_name(name, self.driver)[1] in ids:
                read.append((name, attribute))
            elif attribute.versions or (
                attribute.string is None and attribute.int_ is None and attribute.bool_ is None
            ):
                return None
        return self.driver, tuple(read), frozenset(self.capacity.items()), self.allow_multiple

    def values(self, name: str) -> Values | None:
        """Return the values of a fully qualified attribute; None if it is missing or of an unknown type."""
        known = self._values
        if name not in known:
            if len(known) >= _VERDICTS_MAX:
                known.clear()
            known[name] = self._read(name)
        return known[name]

    def _read(self, name: str) -> Values | None:
        attribute = self.attributes.get(name)
        if attribute is None:
            domain, _, identifier = name.partition("/")
            attribute = self.attributes.get(identifier) if domain == self.driver else None
        return None if attribute is None else attribute_values(attribute)

    def capacity_name(self, name: str) -> str | None:
        """Return the device's own name of a capacity; the driver's domain is optional."""
        if name in self.capacity:
            return name
        domain, slash, identifier = name.partition("/")
        other = f"{self.driver}/{name}" if not slash else identifier if domain == self.driver else None
        return other if other in self.capacity else None


def attribute_values(attribute: DeviceAttribute) -> Values | None:
    """Return the typed values of an attribute."""
    for kind, field in _SCALARS:
        value = getattr(attribute, field)
        if value is not None:
            return Values(frozenset(((kind, value),)), is_list=False)
    for kind, field in _LISTS:
        several = getattr(attribute, field)
        if several:
            return Values(frozenset((kind, value) for value in several), is_list=True)
    return None


def typed_value(result: object) -> Value | None:
    """Return the result of an expression as the value of an attribute; None if its type cannot be one."""
    if isinstance(result, Semver):
        return "version", str(result)
    kind = _KINDS.get(type(result))
    return None if kind is None else (kind, result)


class ContentTable:
    """Interns the contents of all devices."""

    def __init__(self) -> None:
        self._contents: dict[Content, Content] = {}

    def acquire(self, driver: str, device: Device) -> Content:
        """Return the content of the device, shared with equal devices."""
        fresh = Content(driver, device)
        content = self._contents.setdefault(fresh, fresh)
        content.users += 1
        return content

    def release(self, content: Content) -> None:
        """Release the content of a removed device."""
        content.users -= 1
        if content.users == 0:
            del self._contents[content]

    def __len__(self) -> int:
        return len(self._contents)
