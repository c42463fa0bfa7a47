"""What serves an extended resource on each node, and what a move from a device plugin to a driver takes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dray.allocator import Allocator, Inventory
from dray.api.document import Document
from dray.api.extended_resources import ClassResources
from dray.api.pod_claims import extended_resource_claim_name, is_pod_done
from dray.api.quantity import Quantity
from dray.api.types.core_v1 import Node, Pod
from dray.api.types.meta_v1 import ObjectMeta
from dray.api.types.resource_v1 import CELDeviceSelector, DeviceClass, DeviceClassSpec, DeviceSelector
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.sim.snapshot import Snapshot

REQUESTS_PREFIX: Final = "requests."
CLASS_SUFFIX: Final = ".deviceclass.resource.k8s.io/devices"
CREATE: Final = "create"
CHANGE: Final = "change"


class MigrationError(ValueError):
    """The question cannot be answered as it was asked."""


class Server(StrEnum):
    """Who gives the resource to new Pods on a node."""

    PLUGIN = "device plugin"
    DEVICES = "devices"
    BOTH = "both"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node: what the plugin says it has, what the driver published, and who has how many."""

    node: str
    served_by: Server
    capacity: int
    allocatable: int
    # Of the class, on this node; and how many of them claims have.
    devices: int
    devices_in_use: int
    # What running Pods have from the plugin, and as extended resource from devices.
    from_plugin: int
    from_devices: int
    after: str


@dataclass(frozen=True, slots=True)
class PodRow:
    """A Pod that asks for the resource."""

    pod: str
    node: str
    count: int
    now: str
    after: str


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """A limit that must be there twice: for the resource, and for the class."""

    quota: str
    key: str
    hard: str
    other_key: str
    # What the other limit is now; empty when there is none.
    other_hard: str


@dataclass(frozen=True, slots=True)
class Migration:
    """The whole answer; `class_action` is empty when nothing is to be done about the class."""

    resource: str
    device_class: str
    class_action: str
    class_document: Document
    # Other classes that ask for the name, which the first one has.
    claimants: tuple[str, ...]
    nodes: tuple[NodeRow, ...]
    pods: tuple[PodRow, ...]
    quotas: tuple[QuotaRow, ...]


@dataclass(frozen=True, slots=True)
class Ground:
    """The snapshot with the class in place, as plan and check read it."""

    snapshot: Snapshot
    resource: str
    device_class: DeviceClass
    allocator: Allocator
    infos: tuple[NodeInfo, ...]

    @property
    def class_name(self) -> str:
        """The class's name."""
        return self.device_class.metadata.name or ""

    def usage(self, node: Node) -> tuple[int, int]:
        """How many devices of the class are in use on the node, and how many there are."""
        return self.allocator.usage(node, self.class_name)


def ground(snapshot: Snapshot, resource: str, driver: str = "") -> Ground:
    """The class of the resource as it is or is to be; raises `MigrationError` when it cannot be told."""
    device_class = _existing_class(snapshot, resource) or _new_class(snapshot, resource, driver)
    inventory: Inventory = snapshot.inventory()
    inventory.apply_class(device_class)
    allocator = Allocator(inventory, snapshot.allocations())
    pods: dict[str, dict[str, PodInfo]] = {}
    for pod in _alive(snapshot.pods):
        if pod.spec.node_name:
            info = PodInfo(pod)
            pods.setdefault(pod.spec.node_name, {})[info.uid] = info
    infos = tuple(NodeInfo(node, pods.get(node.metadata.name or "")) for node in snapshot.nodes)
    return Ground(snapshot, resource, device_class, allocator, infos)


def _existing_class(snapshot: Snapshot, resource: str) -> DeviceClass | None:
    name = ClassResources(snapshot.classes).class_of(resource)
    return next((item for item in snapshot.classes if item.metadata.name == name), None)


def _new_class(snapshot: Snapshot, resource: str, driver: str) -> DeviceClass:
    """The class of the driver, or a new one of its name."""
    drivers = sorted({item.spec.driver for item in snapshot.slices})
    if not driver and len(drivers) > 1:
        raise MigrationError(f"several drivers publish devices: {', '.join(drivers)}; choose one with --driver")
    if not driver:
        domain, _, name = resource.partition("/")
        driver = drivers[0] if drivers else f"{name}.{domain}"
    for item in snapshot.classes:
        if item.metadata.name == driver:
            return DeviceClass(metadata=item.metadata, spec=_with_name(item.spec, resource))
    expression = f'device.driver == "{driver}"'
    spec = DeviceClassSpec(selectors=(DeviceSelector(cel=CELDeviceSelector(expression=expression)),))
    return DeviceClass(metadata=ObjectMeta(name=driver), spec=_with_name(spec, resource))


def _with_name(spec: DeviceClassSpec, resource: str) -> DeviceClassSpec:
    return DeviceClassSpec(config=spec.config, selectors=spec.selectors, extended_resource_name=resource)


def plan_migration(found: Ground) -> Migration:
    """What there is, and what changes."""
    names = {item.metadata.name for item in found.snapshot.classes}
    claimants = ClassResources(found.snapshot.classes).claimants(found.resource)
    action = "" if found.class_name in claimants else CHANGE if found.class_name in names else CREATE
    return Migration(
        resource=found.resource,
        device_class=found.class_name,
        class_action=action,
        class_document=class_document(found.device_class),
        claimants=claimants,
        nodes=tuple(node_row(found, info) for info in found.infos if _concerns(found, info)),
        pods=tuple(_pod_rows(found)),
        quotas=tuple(quota_rows(found)),
    )


def class_document(device_class: DeviceClass) -> Document:
    """The class as a user writes it."""
    spec: Document = {"extendedResourceName": device_class.spec.extended_resource_name}
    selectors = [{"cel": {"expression": item.cel.expression}} for item in device_class.spec.selectors if item.cel]
    if selectors:
        spec["selectors"] = selectors
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": device_class.metadata.name},
        "spec": spec,
    }


def _concerns(found: Ground, info: NodeInfo) -> bool:
    row = node_row(found, info)
    return row.served_by is not Server.NOBODY or bool(row.capacity or row.from_plugin or row.from_devices)


def node_row(found: Ground, info: NodeInfo) -> NodeRow:
    """One node's account."""
    allocatable = info.allocatable.scalars.get(found.resource, 0)
    in_use, total = found.usage(info.node)
    served = _server(allocatable, total)
    from_plugin = info.requested.scalars.get(found.resource, 0)
    return NodeRow(
        node=info.name,
        served_by=served,
        capacity=Quantity.parse(info.node.status.capacity.get(found.resource, "0")).value(),
        allocatable=allocatable,
        devices=total,
        devices_in_use=in_use,
        from_plugin=from_plugin,
        from_devices=info.device_requested.scalars.get(found.resource, 0),
        after=_after(served, from_plugin),
    )


def _server(allocatable: int, devices: int) -> Server:
    if allocatable and devices:
        return Server.BOTH
    if allocatable:
        return Server.PLUGIN
    return Server.DEVICES if devices else Server.NOBODY


def _after(served: Server, from_plugin: int) -> str:
    if served is Server.PLUGIN:
        return "unchanged, until its plugin goes and a driver comes"
    if served is Server.BOTH:
        return "the plugin's, until it is uninstalled; then devices"
    if served is Server.DEVICES:
        return f"devices, {from_plugin} held back for Pods of the former plugin" if from_plugin else "devices"
    return "nothing until a driver publishes devices"


def _pod_rows(found: Ground) -> Iterator[PodRow]:
    for pod in _alive(found.snapshot.pods):
        info = PodInfo(pod)
        from_plugin = info.requests.scalars.get(found.resource, 0)
        from_devices = info.device_requests.scalars.get(found.resource, 0)
        if not from_plugin and not from_devices:
            continue
        if from_devices:
            now, after = f"devices, claim {extended_resource_claim_name(pod)}", "unchanged"
        elif pod.spec.node_name:
            now, after = "device plugin", "keeps its devices until it ends"
        else:
            now, after = "pending", "may go to nodes with devices as well"
        yield PodRow(str(info.key), pod.spec.node_name or "", from_plugin or from_devices, now, after)


def _alive(pods: Iterable[Pod]) -> Iterator[Pod]:
    return (pod for pod in pods if not is_pod_done(pod))


def quota_keys(found: Ground) -> tuple[str, str]:
    """How quotas name the resource, and the class."""
    return REQUESTS_PREFIX + found.resource, found.class_name + CLASS_SUFFIX


def quota_rows(found: Ground) -> Iterator[QuotaRow]:
    """Quotas that limit the resource in one way and not, or otherwise, in the other."""
    first, second = quota_keys(found)
    for namespace, quotas in _by_namespace(found.snapshot.documents.get("ResourceQuota", ())):
        hard = [(f"{namespace}/{_name(quota)}", (quota.get("spec") or {}).get("hard") or {}) for quota in quotas]
        for key, other in ((first, second), (second, first)):
            others = [str(listed[other]) for _, listed in hard if other in listed]
            for name, listed in hard:
                if key not in listed:
                    continue
                wanted = str(listed[key])
                if not any(_same(wanted, text) for text in others):
                    yield QuotaRow(name, key, wanted, other, others[0] if others else "")


def _same(one: str, other: str) -> bool:
    return Quantity.parse(one).nanos == Quantity.parse(other).nanos


def _by_namespace(quotas: Sequence[Document]) -> list[tuple[str, list[Document]]]:
    found: dict[str, list[Document]] = {}
    for quota in quotas:
        found.setdefault(quota["metadata"].get("namespace", ""), []).append(quota)
    return sorted(found.items())


def _name(document: Document) -> str:
    name: str = document["metadata"]["name"]
    return name
