"""Extended resources: native, explicit and implicit names, and the device class behind each name. Pure.

Every class has an implicit name. An explicit name belongs to one class at a time: the one created last or, of several
created at the same time, the first by name. When that class is deleted, the next one gets the name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from dray.api.names import qualified_name
from dray.api.types.resource_v1 import DeviceClass

# Prefix of the implicit name, by which a Pod can request devices of any class.
DEVICE_CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"

_NATIVE_DOMAIN: Final = "kubernetes.io/"
# Prefix of requests in quotas; an extended resource must still be a valid name with it.
_REQUESTS_PREFIX: Final = "requests."
_CACHE_SIZE: Final = 4096


def is_native_resource(name: str) -> bool:
    """Report whether the resource is native: it has no domain, or one of kubernetes.io."""
    return "/" not in name or _NATIVE_DOMAIN in name


@lru_cache(_CACHE_SIZE)
def is_extended_resource_name(name: str) -> bool:
    """Report whether the name is valid as the explicit extended resource of a class."""
    if is_native_resource(name) or name.startswith(_REQUESTS_PREFIX):
        return False
    return not qualified_name(_REQUESTS_PREFIX + name)


def implicit_extended_resource_name(device_class: str) -> str:
    """Return the implicit extended resource name of a class."""
    return DEVICE_CLASS_PREFIX + device_class


def device_class_of(name: str) -> str | None:
    """Return the class of an implicit extended resource name, None for other names."""
    return name.removeprefix(DEVICE_CLASS_PREFIX) if name.startswith(DEVICE_CLASS_PREFIX) else None


def is_dra_extended_resource_name(name: str) -> bool:
    """Report whether devices can serve the resource: a valid explicit or implicit name."""
    if name.startswith(DEVICE_CLASS_PREFIX):
        return not qualified_name(name)
    return is_extended_resource_name(name)


_EPOCH: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _NamedClass:
    """A class and its explicit name, empty for none."""

    name: str
    resource: str
    created: datetime

    def order(self) -> tuple[float, str]:
        """Return the sort key; the class that has the name sorts first."""
        return -self.created.timestamp() if self.created is not _EPOCH else float("inf"), self.name


class ClassResources:
    """The extended resource names of all device classes, updated incrementally."""

    def __init__(self, classes: Iterable[DeviceClass] = ()) -> None:
        self._classes: dict[str, _NamedClass] = {}
        # Explicit name -> classes that declare it, in order of precedence.
        self._by_resource: dict[str, list[_NamedClass]] = {}
        # Incremented whenever a name may have changed its class.
        self.version = 0
        for device_class in classes:
            self.apply(device_class)

    def apply(self, device_class: DeviceClass) -> None:
        """Add or update a class."""
        metadata = device_class.metadata
        named = _NamedClass(
            metadata.name or "",
            device_class.spec.extended_resource_name or "",
            metadata.creation_timestamp or _EPOCH,
        )
        previous = self._classes.get(named.name)
        if previous == named:
            return
        if previous is not None:
            self._remove_name(previous)
        self._classes[named.name] = named
        if named.resource:
            candidates = self._by_resource.setdefault(named.resource, [])
            candidates.append(named)
            candidates.sort(key=_NamedClass.order)
        self.version += 1

    def remove(self, name: str) -> None:
        """Remove a class; unknown ones are ignored."""
        previous = self._classes.pop(name, None)
        if previous is not None:
            self._remove_name(previous)
            self.version += 1

    def class_of(self, resource: str) -> str | None:
        """Return the class whose devices serve the resource."""
        implicit = device_class_of(resource)
        if implicit is not None:
            return implicit if implicit in self._classes else None
        candidates = self._by_resource.get(resource)
        return candidates[0].name if candidates else None

    def candidates(self, resource: str) -> tuple[str, ...]:
        """Return all classes that declare the explicit name, in order of precedence."""
        return tuple(named.name for named in self._by_resource.get(resource, ()))

    def resources_of(self, name: str) -> tuple[str, ...]:
        """Return the class's names: the implicit one, and the explicit one unless another class has it."""
        previous = self._classes.get(name)
        if previous is None:
            return ()
        implicit = implicit_extended_resource_name(name)
        has_name = bool(previous.resource) and self._by_resource[previous.resource][0] is previous
        return (implicit, previous.resource) if has_name else (implicit,)

    def _remove_name(self, named: _NamedClass) -> None:
        if not named.resource:
            return
        candidates = self._by_resource[named.resource]
        candidates.remove(named)
        if not candidates:
            del self._by_resource[named.resource]
