"""Which device class stands behind an extended resource name, kept up to date class by class. Pure.

Every class answers to its implicit name; an explicit name belongs to one class at a time: the one created last, of
several created at the same time the first by name. The others wait, and the next one has the name when the winner goes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from dray.api.extended_resources import device_class_of, implicit_extended_resource_name
from dray.api.types.resource_v1 import DeviceClass

_BEFORE_ALL: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Claimant:
    """A class and the explicit name it asks for, empty for none."""

    name: str
    resource: str
    created: datetime

    def order(self) -> tuple[float, str]:
        """The winner comes first."""
        return -self.created.timestamp() if self.created is not _BEFORE_ALL else float("inf"), self.name


class ClassResources:
    """The names of all classes; a change costs what it concerns."""

    def __init__(self, classes: Iterable[DeviceClass] = ()) -> None:
        self._classes: dict[str, _Claimant] = {}
        # Explicit name -> classes that ask for it, the winner first.
        self._claimants: dict[str, list[_Claimant]] = {}
        # Grows whenever a name may have got another class.
        self.version = 0
        for device_class in classes:
            self.apply(device_class)

    def apply(self, device_class: DeviceClass) -> None:
        """Take in a new or changed class."""
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
        """Let go of a class; unknown ones are gone already."""
        known = self._classes.pop(name, None)
        if known is not None:
            self._withdraw(known)
            self.version += 1

    def class_of(self, resource: str) -> str | None:
        """The class whose devices serve the resource."""
        implicit = device_class_of(resource)
        if implicit is not None:
            return implicit if implicit in self._classes else None
        claimants = self._claimants.get(resource)
        return claimants[0].name if claimants else None

    def claimants(self, resource: str) -> tuple[str, ...]:
        """All classes that ask for the explicit name, the winner first."""
        return tuple(claimant.name for claimant in self._claimants.get(resource, ()))

    def resources_of(self, name: str) -> tuple[str, ...]:
        """The names that the class serves: the implicit one and, unless another class has it, its explicit one."""
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
