"""What a device is, apart from its name and place: equal contents are one object, judged once per selector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from dray.api.types.resource_v1 import Device, DeviceAttribute, DeviceCapacity

if TYPE_CHECKING:
    from dray.allocator.selection import SelectorGroup, Verdict

# Verdicts kept per content; claims with selectors of their own could otherwise make them grow for ever.
_VERDICTS_MAX: Final = 128

# A typed attribute value: 1 and true, and "1" and version 1, are different.
Value = tuple[str, object]

_SCALARS: Final = (("int", "int_"), ("bool", "bool_"), ("string", "string"), ("version", "version"))
_LISTS: Final = (("int", "ints"), ("bool", "bools"), ("string", "strings"), ("version", "versions"))


class Content:
    """The driver, attributes and capacities of a device; compared by value only when it is interned."""

    __slots__ = ("_hash", "allow_multiple", "attributes", "capacity", "driver", "users", "verdicts")

    def __init__(self, driver: str, device: Device) -> None:
        self.driver = driver
        self.attributes: Mapping[str, DeviceAttribute] = device.attributes
        self.capacity: Mapping[str, DeviceCapacity] = device.capacity
        self.allow_multiple = bool(device.allow_multiple_allocations)
        # Devices that have this content; kept by the table.
        self.users = 0
        self.verdicts: dict[SelectorGroup, Verdict] = {}
        parts = (driver, frozenset(self.attributes.items()), frozenset(self.capacity.items()), self.allow_multiple)
        self._hash = hash(parts)

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

    def remember(self, group: SelectorGroup, verdict: Verdict) -> None:
        """Keep what the selectors said."""
        if len(self.verdicts) >= _VERDICTS_MAX:
            self.verdicts.clear()
        self.verdicts[group] = verdict

    def values(self, name: str, *, lists: bool) -> frozenset[Value] | None:
        """The values of a fully qualified attribute; none when it is missing or of an unknown kind."""
        attribute = self.attributes.get(name)
        if attribute is None:
            domain, _, identifier = name.partition("/")
            attribute = self.attributes.get(identifier) if domain == self.driver else None
        return None if attribute is None else attribute_values(attribute, lists=lists)

    def capacity_name(self, name: str) -> str | None:
        """The device's own spelling of a capacity; its driver's domain may be written or left out."""
        if name in self.capacity:
            return name
        domain, slash, identifier = name.partition("/")
        other = f"{self.driver}/{name}" if not slash else identifier if domain == self.driver else None
        return other if other in self.capacity else None


def attribute_values(attribute: DeviceAttribute, *, lists: bool) -> frozenset[Value] | None:
    """The typed values of an attribute; a scalar is a set of one."""
    for kind, field in _SCALARS:
        value = getattr(attribute, field)
        if value is not None:
            return frozenset(((kind, value),))
    if lists:
        for kind, field in _LISTS:
            several = getattr(attribute, field)
            if several:
                return frozenset((kind, value) for value in several)
    return None


def has_list(attribute: DeviceAttribute) -> bool:
    """Whether the attribute is a list."""
    return bool(attribute.ints or attribute.bools or attribute.strings or attribute.versions)


class ContentTable:
    """One object for each distinct content that is in use."""

    def __init__(self) -> None:
        self._contents: dict[Content, Content] = {}

    def acquire(self, driver: str, device: Device) -> Content:
        """The content of the device, shared with every equal one."""
        fresh = Content(driver, device)
        content = self._contents.setdefault(fresh, fresh)
        content.users += 1
        return content

    def release(self, content: Content) -> None:
        """A device with this content is gone."""
        content.users -= 1
        if content.users == 0:
            del self._contents[content]

    def __len__(self) -> int:
        return len(self._contents)
