"""The constraints of a claim on the devices of its requests.

Everything about a kind of constraint is here: parsing it, adding a device, ruling out devices early, and explaining a
violation. A new kind is a class that implements `Constraint` and a branch of `parse_constraint`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final, Protocol, TypeAlias

import msgspec

from dray.allocator.content import Content, Value
from dray.allocator.derived_attributes import DerivedAttributes
from dray.allocator.gates import Gates
from dray.api.types.resource_v1 import DeviceConstraint

# What the devices added so far mean to a constraint; None before the first device.
ConstraintState: TypeAlias = frozenset[Value] | None
# Sets of devices as bit masks, by attribute value.
DevicesByValue: TypeAlias = Mapping[Value, int]
# The value of a list while list attributes are disabled: it has nothing in common with any other value.
_LIST: Final[Value] = ("list", None)
_NEVER_COMMON: Final = frozenset((_LIST,))


class Violation(msgspec.Struct, frozen=True):
    """Why a device violates a constraint: in full, and in a few words that are the same for similar devices."""

    text: str
    brief: str


class Constraint(Protocol):
    """One constraint of a claim; immutable."""

    @property
    def requests(self) -> frozenset[str]:
        """Return the requests that it applies to; empty means all."""

    def relevant(self, derived: DerivedAttributes | None) -> DerivedAttributes | None:
        """Return the derived attributes of a request if the constraint depends on them."""

    def add(self, state: ConstraintState, content: Content, derived: DerivedAttributes | None) -> ConstraintState:
        """Return the state with one more device; None if the device violates the constraint."""

    def signature(self, content: Content, derived: DerivedAttributes | None) -> Hashable:
        """Return what the constraint depends on: devices with equal signatures are interchangeable."""

    def index(self, contents: Mapping[int, Content], derived: DerivedAttributes | None) -> DevicesByValue:
        """Return the index of a node's devices that `prune` needs."""

    def prune(self, devices: DevicesByValue, state: ConstraintState, candidates: int, missing: int) -> int:
        """Return the candidates without devices that cannot be among `missing` more ones; may leave too many."""

    def allowed(self, devices: DevicesByValue, state: ConstraintState, candidates: int) -> int:
        """Return the candidates of which each alone can be added."""

    def explain(self, state: ConstraintState, content: Content, derived: DerivedAttributes | None) -> Violation:
        """Return why a device violates the constraint."""


def parse_constraint(item: DeviceConstraint, gates: Gates) -> Constraint | None:
    """Return the constraint of a claim's spec; None if its kind is unknown."""
    requests, lists = frozenset(item.requests), gates.list_attributes
    if item.match_attribute:
        return MatchAttribute(item.match_attribute, requests, lists)
    # DistinctAttribute is part of the feature DRAConsumableCapacity.
    if item.distinct_attribute and gates.consumable_capacity:
        return DistinctAttribute(item.distinct_attribute, requests, lists)
    return None


def applies(constraint: Constraint, main: str, name: str) -> bool:
    """Return whether the constraint applies to a request; the name of the main request includes its subrequests."""
    return not constraint.requests or main in constraint.requests or name in constraint.requests


class _AttributeConstraint(msgspec.Struct, frozen=True):
    """A constraint on the values of one attribute."""

    attribute: str
    requests: frozenset[str]
    # Whether attributes may have several values.
    lists: bool

    def relevant(self, derived: DerivedAttributes | None) -> DerivedAttributes | None:
        """Return the derived attributes if the attribute is one of them."""
        return derived if derived is not None and derived.has(self.attribute) else None

    def signature(self, content: Content, derived: DerivedAttributes | None) -> frozenset[Value] | None:
        """Return the device's values of the attribute; a derived one precedes the device's own."""
        found = None if derived is None else derived.values(content, self.attribute)
        found = found or content.values(self.attribute)
        if found is None:
            return None
        return found.values if self.lists or not found.is_list else frozenset((_LIST,))

    def index(self, contents: Mapping[int, Content], derived: DerivedAttributes | None) -> DevicesByValue:
        """Return the devices by their values of the attribute."""
        found: dict[Value, int] = {}
        for number, content in contents.items():
            values = self.signature(content, derived)
            if values is None:
                continue
            # An empty list, which only an expression can return, has no value in common with others.
            for value in values or (("empty", number),):
                found[value] = found.get(value, 0) | 1 << number
        return found

    def absent(self) -> Violation:
        """Return why a device without the attribute violates the constraint."""
        return Violation(f"attribute {self.attribute} is not set, which a constraint needs", f"lack {self.attribute}")


class MatchAttribute(_AttributeConstraint, frozen=True):
    """All devices have a value of the attribute in common; the state is the values that all have in common."""

    def add(self, state: ConstraintState, content: Content, derived: DerivedAttributes | None) -> ConstraintState:
        """Return the values that the device has in common with the others."""
        values = self.signature(content, derived)
        if values is None or state is None:
            return values or None
        return (state & values) - _NEVER_COMMON or None

    def allowed(self, devices: DevicesByValue, state: ConstraintState, candidates: int) -> int:
        """Return the candidates with one of the common values."""
        return candidates if state is None else candidates & _with_any(devices, state)

    def prune(self, devices: DevicesByValue, state: ConstraintState, candidates: int, missing: int) -> int:
        """Return the candidates that have a value in common with enough others."""
        candidates = self.allowed(devices, state, candidates)
        useful = 0
        for mask in devices.values():
            if (mask & candidates).bit_count() >= missing:
                useful |= mask & candidates
        return useful

    def explain(self, state: ConstraintState, content: Content, derived: DerivedAttributes | None) -> Violation:
        """Return the value of the device and the common ones."""
        values = self.signature(content, derived)
        if values is None:
            return self.absent()
        return Violation(
            f"attribute {self.attribute} is {_text(values)}, but the same value as {_text(state)} is needed",
            f"differ in {self.attribute}",
        )


class DistinctAttribute(_AttributeConstraint, frozen=True):
    """No two devices have a value of the attribute in common; the state is the values used so far."""

    def add(self, state: ConstraintState, content: Content, derived: DerivedAttributes | None) -> ConstraintState:
        """Return the used values with those of the device."""
        values = self.signature(content, derived)
        if values is None or state is None:
            return values
        if _LIST in values or _LIST in state:
            return None
        return None if state & values else state | values

    def allowed(self, devices: DevicesByValue, state: ConstraintState, candidates: int) -> int:
        """Return the candidates without used values."""
        return candidates if state is None else candidates & ~_with_any(devices, state)

    def prune(self, devices: DevicesByValue, state: ConstraintState, candidates: int, missing: int) -> int:
        """Return the candidates, or none if they have too few values between them."""
        candidates = self.allowed(devices, state, candidates)
        value_count = sum(1 for mask in devices.values() if mask & candidates)
        return candidates if value_count >= missing else 0

    def explain(self, state: ConstraintState, content: Content, derived: DerivedAttributes | None) -> Violation:
        """Return the value of the device and the used ones."""
        values = self.signature(content, derived)
        if values is None:
            return self.absent()
        return Violation(
            f"attribute {self.attribute} is {_text(values)}, but another value than {_text(state)} is needed",
            f"repeat {self.attribute}",
        )


def _with_any(devices: DevicesByValue, values: frozenset[Value]) -> int:
    found = 0
    for value in values:
        found |= devices.get(value, 0)
    return found


def _text(values: frozenset[Value] | None) -> str:
    if values is None:
        return "not set"
    if _LIST in values:
        return "a list"
    texts = sorted(str(value).lower() if isinstance(value, bool) else str(value) for _, value in values)
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
