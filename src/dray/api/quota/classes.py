"""Device classes as quotas see them: one class of devices has several names, and all are charged alike.

KEP-5004 wants the usage under a class and under its extended resource to be the same at all times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from dray.api.extended_resources import device_class_of, implicit_extended_resource_name
from dray.api.quota.names import devices_name, requests_name

if TYPE_CHECKING:
    from datetime import datetime

    from dray.api.types.resource_v1 import DeviceClass


class ClassNames:
    """Which extended resource stands for which class; never changed once made."""

    def __init__(self, by_resource: Mapping[str, str] | None = None) -> None:
        self._by_resource = dict(by_resource or {})
        self._by_class = {name: resource for resource, name in self._by_resource.items()}

    @classmethod
    def of(cls, classes: Iterable[DeviceClass]) -> ClassNames:
        """Of two classes with the same resource the younger has it; of the same age, the first by name."""
        chosen: dict[str, tuple[float, str]] = {}
        for item in sorted(classes, key=lambda item: item.metadata.name or "", reverse=True):
            resource = item.spec.extended_resource_name
            if not resource:
                continue
            age = (_seconds(item.metadata.creation_timestamp), item.metadata.name or "")
            if resource not in chosen or age[0] >= chosen[resource][0]:
                chosen[resource] = age
        return cls({resource: name for resource, (_, name) in chosen.items()})

    def class_of(self, resource: str) -> str | None:
        """The class whose devices serve the resource, None when there is none."""
        implicit = device_class_of(resource)
        return implicit if implicit is not None else self._by_resource.get(resource)

    def quota_names(self, device_class: str) -> tuple[str, ...]:
        """Every name under which a quota may limit the class's devices."""
        implicit = requests_name(implicit_extended_resource_name(device_class))
        explicit = self._by_class.get(device_class)
        names = (devices_name(device_class), implicit)
        return names if explicit is None else (*names, requests_name(explicit))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClassNames) and self._by_resource == other._by_resource

    def __hash__(self) -> int:
        return hash(frozenset(self._by_resource.items()))


def _seconds(created: datetime | None) -> float:
    return created.timestamp() if created is not None else 0.0
