"""The health of a container's devices as shown in its status. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dray.api.document import NamespacedName
from dray.api.types.core_v1 import Container, Pod, ResourceHealth, ResourceStatus
from dray.node.dra.claims import ClaimError, ClaimInfo, Device, pod_claims
from dray.node.dra.health.cache import DeviceHealth, DeviceKey

Lookup = Callable[[NamespacedName], ClaimInfo | None]
HealthOf = Callable[[DeviceKey], DeviceHealth]


def resource_statuses(pod: Pod, container: Container, claim: Lookup, health: HealthOf) -> tuple[ResourceStatus, ...]:
    """Return the container's `allocatedResourcesStatus` entries, one for each claim or request, in order."""
    try:
        names = {item.entry: item.name for item in pod_claims(pod)}
    except ClaimError:
        # A claim that does not exist yet has no devices.
        return ()
    statuses = []
    for asked in container.resources.claims:
        info = claim(NamespacedName(pod.metadata.namespace or "", names.get(asked.name, "")))
        if info is None:
            continue
        name = f"claim:{asked.name}/{asked.request}" if asked.request else f"claim:{asked.name}"
        # Devices may share a CDI name; each is listed once.
        unique = {item.resource_id: item for item in reversed(tuple(_healths(info, asked.request or "", health)))}
        if unique:
            statuses.append(ResourceStatus(name=name, resources=tuple(unique[key] for key in reversed(unique))))
    return tuple(statuses)


def _healths(info: ClaimInfo, request: str, health: HealthOf) -> Iterator[ResourceHealth]:
    for driver in info.drivers:
        for device in info.devices[driver]:
            if device.serves(request):
                found = health(DeviceKey(driver, device.pool_name, device.device_name))
                yield ResourceHealth(
                    health=found.health.value,
                    message=found.message or None,
                    resource_id=_resource_id(driver, device),
                )


def _resource_id(driver: str, device: Device) -> str:
    if device.cdi_device_ids:
        return device.cdi_device_ids[0]
    return f"{driver}/{device.pool_name}/{device.device_name}"
