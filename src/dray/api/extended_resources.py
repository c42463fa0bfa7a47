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


_BEFORE_ALL: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Claimant:
    """A class and its explicit name, empty for none."""

    name: str
    resource: str
    created: datetime

    def order(self) -> tuple[float, str]:
        """Return the sort key; the class that has the name sorts first."""
        return -self.created.timestamp() if self.created is not _BEFORE_ALL else float("inf"), self.name


class ClassResources:
    """The extended resource names of all device classes, updated incrementally."""

    def __init__(self, classes: Iterable[DeviceClass] = ()) -> None:
        self._classes: dict[str, _Claimant] = {}
        # Explicit name -> classes that declare it, in order of precedence.
        self._claimants: dict[str, list[_Claimant]] = {}
        # Incremented whenever a name may have changed its class.
        self.version = 0
        for device_class in classes:
            self.apply(device_class)

    def apply(self, device_class: DeviceClass) -> None:
        """Add or update a class."""
        metadata = device_class.metadata
        claimant = _Claimant(
            metadata.name or "",
            device_class.spec.extended_resource_name or "",
            metadata.creation_timestamp or _BEFORE_ALL,
        )
        known = self._classes.get(claimant.name)
        if known == claimant:
            return
        if known is not None:
            self._withdraw(known)
        self._classes[claimant.name] = claimant
        if claimant.resource:
            claimants = self._claimants.setdefault(claimant.resource, [])
            claimants.append(claimant)
            claimants.sort(key=_Claimant.order)
        self.version += 1

    def remove(self, name: str) -> None:
        """Remove a class; unknown ones are ignored."""
        known = self._classes.pop(name, None)
        if known is not None:
            self._withdraw(known)
            self.version += 1

    def class_of(self, resource: str) -> str | None:
        """Return the class whose devices serve the resource."""
        implicit = device_class_of(resource)
        if implicit is not None:
            return implicit if implicit in self._classes else None
        claimants = self._claimants.get(resource)
        return claimants[0].name if claimants else None

    def claimants(self, resource: str) -> tuple[str, ...]:
        """Return all classes that declare the explicit name, in order of precedence."""
        return tuple(claimant.name for claimant in self._claimants.get(resource, ()))

    def resources_of(self, name: str) -> tuple[str, ...]:
        """Return the class's names: the implicit one, and the explicit one unless another class has it."""
        known = self._classes.get(name)
        if known is None:
            return ()
        implicit = implicit_extended_resource_name(name)
        wins = bool(known.resource) and self._claimants[known.resource][0] is known
        return (implicit, known.resource) if wins else (implicit,)

    def _withdraw(self, claimant: _Claimant) -> None:
        if not claimant.resource:
            return
        claimants = self._claimants[claimant.resource]
        claimants.remove(claimant)
        if not claimants:
            del self._claimants[claimant.resource]
