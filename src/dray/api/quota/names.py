"""The resource names of quotas, and the kinds that each name measures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from dray.api.document import GroupResource
from dray.api.extended_resources import (
    DEVICE_CLASS_PREFIX,
    device_class_of,
    implicit_extended_resource_name,
    is_native_resource,
)

if TYPE_CHECKING:
    from datetime import datetime

    from dray.api.types.resource_v1 import DeviceClass


COUNT_PREFIX: Final = "count/"
REQUESTS_PREFIX: Final = "requests."
LIMITS_PREFIX: Final = "limits."
HUGE_PAGES_PREFIX: Final = "hugepages-"
DEVICES_SUFFIX: Final = ".deviceclass.resource.k8s.io/devices"
IMPLICIT_PREFIX: Final = REQUESTS_PREFIX + DEVICE_CLASS_PREFIX

PODS: Final = GroupResource("", "pods")
CLAIMS: Final = GroupResource("resource.k8s.io", "resourceclaims")
# Too numerous, and short-lived.
UNCOUNTED: Final = frozenset({GroupResource("", "events"), GroupResource("events.k8s.io", "events")})

COMPUTE: Final = ("cpu", "memory", "ephemeral-storage")
POD_NAMES: Final = frozenset(
    {"pods", "count/pods", *COMPUTE}
    | {prefix + name for prefix in (REQUESTS_PREFIX, LIMITS_PREFIX) for name in COMPUTE}
)
# Names older than `count/`; not Pods, since `pods` excludes finished ones.
_COUNT_ALIASES: Final = frozenset(
    {"configmaps", "persistentvolumeclaims", "replicationcontrollers", "resourcequotas", "secrets", "services"}
)
SERVICES: Final = GroupResource("", "services")
VOLUME_CLAIMS: Final = GroupResource("", "persistentvolumeclaims")
NODE_PORTS: Final = "services.nodeports"
LOAD_BALANCERS: Final = "services.loadbalancers"
STORAGE: Final = "requests.storage"
STORAGE_CLASS_INFIX: Final = ".storageclass.storage.k8s.io/"
# Names that measure more than the number of objects, and the kind.
MEASURED_KINDS: Final = frozenset({SERVICES, VOLUME_CLAIMS})
_AMOUNTS: Final = {NODE_PORTS: SERVICES, LOAD_BALANCERS: SERVICES, STORAGE: VOLUME_CLAIMS}
_CACHE_SIZE: Final = 4096


def count_name(resource: GroupResource) -> str:
    """Return the name that counts a kind's objects."""
    return COUNT_PREFIX + str(resource)


def counted_resource(name: str) -> GroupResource | None:
    """Return the kind whose objects, ports or storage a name counts, None for other names."""
    if name in _COUNT_ALIASES:
        return GroupResource("", name)
    if name in _AMOUNTS:
        return _AMOUNTS[name]
    if STORAGE_CLASS_INFIX in name and name.endswith((STORAGE, VOLUME_CLAIMS.resource)):
        return VOLUME_CLAIMS
    if not name.startswith(COUNT_PREFIX):
        return None
    plural, _, group = name.removeprefix(COUNT_PREFIX).partition(".")
    return GroupResource(group, plural)


def count_names(resource: GroupResource) -> tuple[str, ...]:
    """Return all names that count a kind's objects."""
    name = count_name(resource)
    return (name, resource.resource) if not resource.group and resource.resource in _COUNT_ALIASES else (name,)


def devices_name(device_class: str) -> str:
    """Return the name that limits devices of a class."""
    return device_class + DEVICES_SUFFIX


def requests_name(resource: str) -> str:
    """Return the name that limits requests of a resource."""
    return REQUESTS_PREFIX + resource


def is_extended_requests_name(name: str) -> bool:
    """Report whether the name limits requests of an extended resource, explicit or implicit."""
    if name.startswith(IMPLICIT_PREFIX):
        return True
    return name.startswith(REQUESTS_PREFIX) and not is_native_resource(name)


def is_huge_pages_name(name: str) -> bool:
    """Report whether the name limits huge pages."""
    return name.removeprefix(REQUESTS_PREFIX).startswith(HUGE_PAGES_PREFIX)


@lru_cache(_CACHE_SIZE)
def measures(name: str, resource: GroupResource, *, extended: bool) -> bool:
    """Report whether objects of the kind have usage under the name.

    With `extended` (the gate DRAExtendedResource) devices can serve extended resources: then Pods have usage of device
    classes, and claims of extended resources.
    """
    if resource == PODS:
        by_class = extended and name.endswith(DEVICES_SUFFIX)
        return name in POD_NAMES or is_huge_pages_name(name) or is_extended_requests_name(name) or by_class
    if resource == CLAIMS and (name.endswith(DEVICES_SUFFIX) or (extended and is_extended_requests_name(name))):
        return True
    return counted_resource(name) == resource


def measured_names(names: Iterable[str], resource: GroupResource, *, extended: bool) -> tuple[str, ...]:
    """Return the names under which objects of the kind have usage."""
    return tuple(name for name in names if measures(name, resource, extended=extended))


class ClassNames:
    """Extended resource names of the device classes for quota evaluation; immutable.

    KEP-5004 requires that the usage under a class and under its extended resource is the same at all times.
    """

    def __init__(self, by_resource: Mapping[str, str] | None = None) -> None:
        self._by_resource = dict(by_resource or {})
        self._by_class = {name: resource for resource, name in self._by_resource.items()}

    @classmethod
    def of(cls, classes: Iterable[DeviceClass]) -> ClassNames:
        """Return the names of classes; of two with the same resource the newer one has it, then the first by name."""
        chosen: dict[str, tuple[float, str]] = {}
        for item in sorted(classes, key=lambda item: item.metadata.name or "", reverse=True):
            resource = item.spec.extended_resource_name
            if not resource:
                continue
            age = (_creation_seconds(item.metadata.creation_timestamp), item.metadata.name or "")
            if resource not in chosen or age[0] >= chosen[resource][0]:
                chosen[resource] = age
        return cls({resource: name for resource, (_, name) in chosen.items()})

    def class_of(self, resource: str) -> str | None:
        """Return the class whose devices serve the resource, None when there is none."""
        implicit = device_class_of(resource)
        return implicit if implicit is not None else self._by_resource.get(resource)

    def quota_names(self, device_class: str) -> tuple[str, ...]:
        """Return every name under which a quota may limit the class's devices."""
        implicit = requests_name(implicit_extended_resource_name(device_class))
        explicit = self._by_class.get(device_class)
        names = (devices_name(device_class), implicit)
        return names if explicit is None else (*names, requests_name(explicit))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClassNames) and self._by_resource == other._by_resource

    def __hash__(self) -> int:
        return hash(frozenset(self._by_resource.items()))


def _creation_seconds(created: datetime | None) -> float:
    return created.timestamp() if created is not None else 0.0
