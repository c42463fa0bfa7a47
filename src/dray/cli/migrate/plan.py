"""Plan of a migration of an extended resource from a device plugin to a DRA driver. Pure."""

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
    """The arguments are ambiguous."""


class Server(StrEnum):
    """What provides the resource to new Pods on a node."""

    PLUGIN = "device plugin"
    DEVICES = "devices"
    BOTH = "both"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node: what the plugin advertises, what the driver publishes, and how much is in use."""

    node: str
    served_by: Server
    capacity: int
    allocatable: int
    # Devices of the class on this node, and how many of them are allocated to claims.
    devices: int
    devices_in_use: int
    # What running Pods use: from the plugin, and as an extended resource served by devices.
    from_plugin: int
    from_devices: int
    after: str


@dataclass(frozen=True, slots=True)
class PodRow:
    """A Pod that requests the resource."""

    pod: str
    node: str
    count: int
    now: str
    after: str


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """A limit that is needed twice: for the resource and for the class."""

    quota: str
    key: str
    hard: str
    other_key: str
    # The current value of the other limit; empty if it is not set.
    other_hard: str


@dataclass(frozen=True, slots=True)
class Migration:
    """The whole plan; `class_action` is empty if the class needs no change."""

    resource: str
    device_class: str
    class_action: str
    class_document: Document
    # Classes that set the resource's name; only the first one is effective.
    candidates: tuple[str, ...]
    nodes: tuple[NodeRow, ...]
    pods: tuple[PodRow, ...]
    quotas: tuple[QuotaRow, ...]


@dataclass(frozen=True, slots=True)
class MigrationContext:
    """The snapshot, with the class as it will be; the input of plan and check."""

    snapshot: Snapshot
    resource: str
    device_class: DeviceClass
    allocator: Allocator
    infos: tuple[NodeInfo, ...]

    @property
    def class_name(self) -> str:
        """Return the class's name."""
        return self.device_class.metadata.name or ""

    def usage(self, node: Node) -> tuple[int, int]:
        """Return how many devices of the class are in use on the node, and their total."""
        return self.allocator.usage(node, self.class_name)


def migration_context(snapshot: Snapshot, resource: str, driver: str = "") -> MigrationContext:
    """Build the context with the existing or a new class; raises `MigrationError` if several drivers qualify."""
    device_class = _existing_class(snapshot, resource) or _new_class(snapshot, resource, driver)
    inventory: Inventory = snapshot.inventory()
    inventory.apply_class(device_class)
    allocator = Allocator(inventory, snapshot.allocations())
    pods: dict[str, dict[str, PodInfo]] = {}
    for pod in _active(snapshot.pods):
        if pod.spec.node_name:
            info = PodInfo(pod)
            pods.setdefault(pod.spec.node_name, {})[info.uid] = info
    infos = tuple(NodeInfo(node, pods.get(node.metadata.name or "")) for node in snapshot.nodes)
    return MigrationContext(snapshot, resource, device_class, allocator, infos)


def _existing_class(snapshot: Snapshot, resource: str) -> DeviceClass | None:
    name = ClassResources(snapshot.classes).class_of(resource)
    return next((item for item in snapshot.classes if item.metadata.name == name), None)


def _new_class(snapshot: Snapshot, resource: str, driver: str) -> DeviceClass:
    """Return the class named after the driver, or a new one."""
    drivers = sorted({item.spec.driver for item in snapshot.slices})
    if not driver and len(drivers) > 1:
        raise MigrationError(f"several drivers publish devices: {', '.join(drivers)}; select one with --driver")
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


def plan_migration(context: MigrationContext) -> Migration:
    """Return the current state and the changes."""
    names = {item.metadata.name for item in context.snapshot.classes}
    candidates = ClassResources(context.snapshot.classes).candidates(context.resource)
    action = "" if context.class_name in candidates else CHANGE if context.class_name in names else CREATE
    return Migration(
        resource=context.resource,
        device_class=context.class_name,
        class_action=action,
        class_document=class_document(context.device_class),
        candidates=candidates,
        nodes=tuple(node_row(context, info) for info in context.infos if _concerns(context, info)),
        pods=tuple(_pod_rows(context)),
        quotas=tuple(quota_rows(context)),
    )


def class_document(device_class: DeviceClass) -> Document:
    """Return the class as a manifest."""
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


def _concerns(context: MigrationContext, info: NodeInfo) -> bool:
    row = node_row(context, info)
    return row.served_by is not Server.NONE or bool(row.capacity or row.from_plugin or row.from_devices)


def node_row(context: MigrationContext, info: NodeInfo) -> NodeRow:
    """Return the row of one node."""
    allocatable = info.allocatable.scalars.get(context.resource, 0)
    in_use, total = context.usage(info.node)
    served = _server(allocatable, total)
    from_plugin = info.requested.scalars.get(context.resource, 0)
    return NodeRow(
        node=info.name,
        served_by=served,
        capacity=Quantity.parse(info.node.status.capacity.get(context.resource, "0")).value(),
        allocatable=allocatable,
        devices=total,
        devices_in_use=in_use,
        from_plugin=from_plugin,
        from_devices=info.device_requested.scalars.get(context.resource, 0),
        after=_after(served, from_plugin),
    )


def _server(allocatable: int, devices: int) -> Server:
    if allocatable and devices:
        return Server.BOTH
    if allocatable:
        return Server.PLUGIN
    return Server.DEVICES if devices else Server.NONE


def _after(served: Server, from_plugin: int) -> str:
    if served is Server.PLUGIN:
        return "device plugin, until a driver replaces it"
    if served is Server.BOTH:
        return "device plugin until it is uninstalled, then devices"
    if served is Server.DEVICES:
        return f"devices, {from_plugin} set aside for Pods of the removed plugin" if from_plugin else "devices"
    return "none until a driver publishes devices"


def _pod_rows(context: MigrationContext) -> Iterator[PodRow]:
    for pod in _active(context.snapshot.pods):
        info = PodInfo(pod)
        from_plugin = info.requests.scalars.get(context.resource, 0)
        from_devices = info.device_requests.scalars.get(context.resource, 0)
        if not from_plugin and not from_devices:
            continue
        if from_devices:
            now, after = f"devices, claim {extended_resource_claim_name(pod)}", "unchanged"
        elif pod.spec.node_name:
            now, after = "device plugin", "keeps its devices until it terminates"
        else:
            now, after = "pending", "can also be scheduled to nodes with devices"
        yield PodRow(str(info.key), pod.spec.node_name or "", from_plugin or from_devices, now, after)


def _active(pods: Iterable[Pod]) -> Iterator[Pod]:
    return (pod for pod in pods if not is_pod_done(pod))


def quota_keys(context: MigrationContext) -> tuple[str, str]:
    """Return the quota keys of the resource and of the class."""
    return REQUESTS_PREFIX + context.resource, context.class_name + CLASS_SUFFIX


def quota_rows(context: MigrationContext) -> Iterator[QuotaRow]:
    """Yield limits of the resource without an equal limit of the class, and the other way round."""
    first, second = quota_keys(context)
    for namespace, quotas in _by_namespace(context.snapshot.documents.get("ResourceQuota", ())):
        hard = [(f"{namespace}/{_name(quota)}", (quota.get("spec") or {}).get("hard") or {}) for quota in quotas]
        for key, other in ((first, second), (second, first)):
            others = [str(listed[other]) for _, listed in hard if other in listed]
            for name, listed in hard:
                if key not in listed:
                    continue
                limit = str(listed[key])
                if not any(_is_equal(limit, text) for text in others):
                    yield QuotaRow(name, key, limit, other, others[0] if others else "")


def _is_equal(first: str, second: str) -> bool:
    return Quantity.parse(first).nanos == Quantity.parse(second).nanos


def _by_namespace(quotas: Sequence[Document]) -> list[tuple[str, list[Document]]]:
    found: dict[str, list[Document]] = {}
    for quota in quotas:
        found.setdefault(quota["metadata"].get("namespace", ""), []).append(quota)
    return sorted(found.items())


def _name(document: Document) -> str:
    name: str = document["metadata"]["name"]
    return name
