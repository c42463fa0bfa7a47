"""What is in use at one moment: by device class, and by namespace and requested class. Pure.

A physical device that several claims use is divided among them by what each has of its most used counter or capacity,
so that the parts of all namespaces add up to the fraction in use. The class of a part is the one that the claim
requests: unlike in the totals by class, where a device counts in each class that it matches, no part counts twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dray.api.types.resource_v1 import ResourceClaim
from dray.sim import usage
from dray.sim.devices import DeviceRow, DeviceSurvey, Holder
from dray.sim.physical_devices import (
    PhysicalDevice,
    Published,
    devices_of_pool,
    plugin_resources,
    used_resources,
    with_plugin_devices,
)
from dray.sim.snapshot import Snapshot

# The kinds that a sample is taken from.
KINDS = ("ResourceSlice", "ResourceClaim", "DeviceClass", "DeviceTaintRule", "Node", "Pod")


@dataclass(frozen=True, slots=True)
class ClassUse:
    """Physical devices of a class; averages, if several samples were merged."""

    total: float
    # Those of which a claim has at least a part.
    held: float
    unavailable: float
    # The sum of the fractions in use, and the largest such sum.
    used: float
    peak: float


@dataclass(frozen=True, slots=True)
class NamespaceUse:
    """What a namespace uses of physical devices by one class."""

    used: float
    peak: float


@dataclass(frozen=True, slots=True)
class Sample:
    """What is in use, by class, and by namespace and requested class."""

    classes: Mapping[str, ClassUse] = field(default_factory=dict)
    namespaces: Mapping[tuple[str, str], NamespaceUse] = field(default_factory=dict)


def sample(snapshot: Snapshot) -> Sample:
    """Return what is in use in a snapshot."""
    survey = DeviceSurvey.of(snapshot)
    requested = dict(_requested_classes(snapshot.claims))
    devices: list[PhysicalDevice] = []
    rows: list[DeviceRow] = []
    used: dict[tuple[str, str], float] = {}
    of_pods = used_resources(snapshot)
    resources = {resource.name for resource in plugin_resources(snapshot, of_pods)}
    for pool in survey.inventory.pools():
        for device, parts in devices_of_pool(survey, pool):
            devices.append(device)
            rows += [row for _, row in parts]
            for holder, fraction in _divided(survey, device, parts):
                owner = holder.claim.partition("/")[0], requested.get((holder.claim, holder.request), "")
                used[owner] = used.get(owner, 0.0) + fraction
    for on_node in of_pods.values():
        for resource in resources.intersection(on_node):
            for pod, amount in on_node[resource].items():
                owner = pod.partition("/")[0], resource
                used[owner] = used.get(owner, 0.0) + amount
    return Sample(
        {
            row.name: ClassUse(row.total, row.held, row.out, round(row.used, 6), round(row.used, 6))
            for row in usage.by_class(with_plugin_devices(snapshot, devices, rows, of_pods))
        },
        {owner: NamespaceUse(round(amount, 6), round(amount, 6)) for owner, amount in sorted(used.items()) if amount},
    )


def _requested_classes(claims: Sequence[ResourceClaim]) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield the class of each request, by claim and by the name that an allocation has for the request."""
    for claim in claims:
        key = f"{claim.metadata.namespace or ''}/{claim.metadata.name or ''}"
        for request in claim.spec.devices.requests:
            if request.exactly is not None:
                yield (key, request.name), request.exactly.device_class_name
            for alternative in request.first_available:
                yield (key, f"{request.name}/{alternative.name}"), alternative.device_class_name


def _divided(
    survey: DeviceSurvey, device: PhysicalDevice, parts: Sequence[Published]
) -> Iterator[tuple[Holder, float]]:
    """Yield who uses a physical device, with the fraction of the device; all add up to what is in use."""
    weights = list(_weights(survey, device, parts))
    total = sum(weight for _, weight in weights)
    for holder, weight in weights:
        yield holder, device.used * (weight / total if total else 1 / len(weights))


def _weights(
    survey: DeviceSurvey, device: PhysicalDevice, parts: Sequence[Published]
) -> Iterator[tuple[Holder, float]]:
    most = max(device.counters, key=lambda counter: counter.share, default=None)
    for published, row in parts:
        holders = [holder for holder in row.holders if not holder.admin_access]
        if most is not None:
            amount = dict(published.consumes).get((most.counter_set, most.counter), 0)
            yield from ((holder, amount / len(holders)) for holder in holders)
            continue
        capacity = {name: survey.nanos(item.value) for name, item in published.spec.capacity.items()}
        for holder in holders:
            consumed = {name: survey.nanos(value) for name, value in (holder.consumed or {}).items()}
            shares = [amount / capacity[name] for name, amount in consumed.items() if capacity.get(name)]
            yield holder, max(shares, default=1.0)
