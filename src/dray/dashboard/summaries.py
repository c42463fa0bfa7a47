"""What the tables need of an API object, and no more: informers cache summaries instead of objects. Pure.

A Pod takes several kilobytes as a document and a few hundred bytes as a summary; large clusters have tens of thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
import orjson

from dray.api.codec import from_document
from dray.api.document import Document
from dray.api.pod_claims import TERMINAL_PHASES
from dray.api.types import Message, PartlyDecoded, cdi_v1alpha1
from dray.api.types.core_v1 import NodeSelector, Pod
from dray.api.types.meta_v1 import ObjectMeta
from dray.api.types.resource_v1 import (
    CounterSet,
    Device,
    DeviceClass,
    ResourceClaim,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dray.dashboard import rows
from dray.dashboard.rows import Row
from dray.sim.devices import Holder, holders_of, unhealthy_devices_of
from dray.sim.physical_devices import requested_resources
from dray.sim.snapshot import CLASSIC_CLAIM, in_hub_version

# Large, and shown nowhere.
_UNUSED_METADATA: Final = ("managedFields", "annotations")
_NODE_STATUS: Final = ("conditions", "capacity", "allocatable")
# Events of the scheduler that repeat the condition of the Pod.
_IN_CONDITION: Final = frozenset({"FailedScheduling", "NotReadyForScheduling"})
_CONVERTED: Final = frozenset({"DeviceClass", "DeviceTaintRule"})
_NONE: Final = msgspec.Raw(b"[]")
_COUNTER_SETS: Final = msgspec.json.Decoder(tuple[CounterSet, ...])
_DEVICES: Final = msgspec.json.Decoder(tuple[Device, ...])


class Identity(msgspec.Struct, frozen=True, gc=False):
    """The metadata that an informer needs."""

    namespace: str
    name: str
    uid: str
    resource_version: str

    @property
    def key(self) -> str:
        """Return the key of the object's row."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


# `gc=False` is safe because these are frozen trees without cycles; there are tens of thousands of them.
class Summary(msgspec.Struct, frozen=True, gc=False):
    """An object; the type of `value` depends on the kind."""

    metadata: Identity
    value: Any


class PodSummary(msgspec.Struct, frozen=True, gc=False):
    """A Pod, without the warnings about it."""

    row: Row
    # The node where the Pod counts; empty if it is not scheduled, or finished.
    node: str
    # Whether Warning events say more about it: it does not run yet.
    shows_warnings: bool
    # Amounts by resource of device plugins.
    requests: Mapping[str, int]
    # What is said about devices that the Pod reports as unhealthy, by device.
    unhealthy: Mapping[str, str]


class ClaimSummary(msgspec.Struct, gc=False):
    """A claim of resource.k8s.io, with the devices that it holds."""

    holders: tuple[tuple[str, Holder], ...]
    # The claim until there is a row, and then the row.
    source: ResourceClaim | Row

    @property
    def row(self) -> Row:
        """The row, which is made on first use: the first picture needs the holders only."""
        if isinstance(self.source, ResourceClaim):
            self.source = rows.claim_row(self.source, [key for key, _ in self.holders])
        return self.source


class SliceSummary(msgspec.Struct, frozen=True, gc=False):
    """A ResourceSlice. Its devices stay JSON: most slices have the same as others, and few are decoded."""

    name: str
    driver: str
    pool: ResourcePool
    # Empty if the slice does not belong to one node.
    node_name: str
    all_nodes: bool
    per_device_node_selection: bool
    node_selector: NodeSelector | None
    shared_counters: bytes
    devices: bytes

    def decoded(self) -> ResourceSlice:
        """Return the slice, as far as it decides on the states of devices."""
        spec = ResourceSliceSpec(
            driver=self.driver,
            pool=self.pool,
            node_name=self.node_name or None,
            all_nodes=self.all_nodes or None,
            per_device_node_selection=self.per_device_node_selection or None,
            node_selector=self.node_selector,
            shared_counters=_COUNTER_SETS.decode(self.shared_counters),
            devices=_DEVICES.decode(self.devices),
        )
        return ResourceSlice(metadata=ObjectMeta(name=self.name), spec=spec)


class EncodedSliceSpec(PartlyDecoded, frozen=True, kw_only=True):
    """The specification of a ResourceSlice with the JSON of its devices."""

    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    node_selector: NodeSelector | None = None
    shared_counters: msgspec.Raw = _NONE
    devices: msgspec.Raw = _NONE


class EncodedSlice(PartlyDecoded, frozen=True, kw_only=True):
    """A ResourceSlice with the JSON of its devices."""

    metadata: ObjectMeta = ObjectMeta()
    spec: EncodedSliceSpec = EncodedSliceSpec()


# Kinds with most of the bytes of the first picture. They are decoded by the client, where the server has their version:
# documents in between would take several times as long.
DECODED: Final[Mapping[str, type[Message]]] = {"ResourceSlice": EncodedSlice, "ResourceClaim": ResourceClaim}


class EventSummary(msgspec.Struct, frozen=True, gc=False):
    """An event; `warned` is the key of the Pod that it warns about, or empty."""

    key: str
    row: Row
    warned: str
    warning: str


def summarize(kind: str, obj: Document | Message) -> Summary:
    """Return what the tables need of an object: a document in any version, or of the type in `DECODED`."""
    if kind in DECODED:
        return _DECODED_SUMMARIES[kind](obj if isinstance(obj, Message) else _decoded(kind, obj))
    assert isinstance(obj, dict)
    metadata = obj["metadata"]
    get = metadata.get
    identity = Identity(get("namespace") or "", metadata["name"], get("uid") or "", get("resourceVersion") or "")
    kept = {name: value for name, value in metadata.items() if name not in _UNUSED_METADATA}
    document = {**obj, "metadata": kept}
    return Summary(identity, _SUMMARIES[kind](in_hub_version(document) if kind in _CONVERTED else document))


def _decoded(kind: str, document: Document) -> Message:
    type_, current = DECODED[kind], in_hub_version(document)
    if issubclass(type_, PartlyDecoded):
        return msgspec.json.decode(orjson.dumps(current), type=type_)
    return from_document(type_, current)


def _identity(metadata: ObjectMeta) -> Identity:
    name, version = metadata.name or "", metadata.resource_version or ""
    return Identity(metadata.namespace or "", name, metadata.uid or "", version)


def _slice(encoded: EncodedSlice) -> Summary:
    metadata, spec = encoded.metadata, encoded.spec
    summary = SliceSummary(
        name=metadata.name or "",
        driver=spec.driver,
        pool=spec.pool,
        node_name=spec.node_name or "",
        all_nodes=bool(spec.all_nodes),
        per_device_node_selection=bool(spec.per_device_node_selection),
        node_selector=spec.node_selector,
        # Copies: a part of the object's JSON would keep all of it in memory.
        shared_counters=bytes(spec.shared_counters),
        devices=bytes(spec.devices),
    )
    return Summary(_identity(metadata), summary)


def _claim(claim: ResourceClaim) -> Summary:
    return Summary(_identity(claim.metadata), ClaimSummary(tuple(holders_of(claim)), claim))


def _class(document: Document) -> DeviceClass:
    return from_document(DeviceClass, document)


def _classic_claim(document: Document) -> Row:
    return rows.classic_claim_row(document, from_document(cdi_v1alpha1.ResourceClaim, document))


def _node(document: Document) -> Document:
    status = document.get("status") or {}
    return {**document, "status": {name: status[name] for name in _NODE_STATUS if name in status}}


def _pod(document: Document) -> PodSummary:
    phase = (document.get("status") or {}).get("phase") or "Pending"
    node = (document.get("spec") or {}).get("nodeName") or ""
    typed = from_document(Pod, document) if _requests_devices(document) or _reports_health(document) else None
    return PodSummary(
        row=rows.pod_row(document),
        node=node if phase not in TERMINAL_PHASES else "",
        shows_warnings=phase == "Pending",
        requests={} if typed is None else requested_resources(typed),
        unhealthy={} if typed is None else dict(unhealthy_devices_of(typed)),
    )


def _event(document: Document) -> EventSummary:
    metadata, about = document["metadata"], document.get("involvedObject") or {}
    is_warning = document.get("type") == "Warning" and document.get("reason") not in _IN_CONDITION
    warns = is_warning and about.get("kind") == "Pod"
    return EventSummary(
        key=metadata.get("uid") or f"{metadata.get('namespace')}/{metadata['name']}",
        row=rows.event_row(document),
        warned=f"{about.get('namespace', '')}/{about.get('name', '')}" if warns else "",
        warning=f"{document.get('reason', '')}: {document.get('message') or ''}" if warns else "",
    )


_DECODED_SUMMARIES: Final[Mapping[str, Callable[[Any], Summary]]] = {"ResourceSlice": _slice, "ResourceClaim": _claim}
_SUMMARIES: Final[Mapping[str, Callable[[Document], Any]]] = {
    "DeviceClass": _class,
    "DeviceTaintRule": lambda document: document,
    CLASSIC_CLAIM: _classic_claim,
    "Node": _node,
    "Pod": _pod,
    "Namespace": lambda document: [document["metadata"]["name"]],
    "ResourceQuota": rows.quota_row,
    "ReplicaSet": rows.blocked_row,
    "Event": _event,
}


def _requests_devices(pod: Document) -> bool:
    """Return whether a container names a resource that a device plugin may serve; most Pods need no decoding then."""
    return any("/" in name for part in _resources(pod) for name in part)


def _resources(pod: Document) -> Iterator[Document]:
    spec = pod.get("spec") or {}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        resources = container.get("resources") or {}
        yield resources.get("requests") or {}
        yield resources.get("limits") or {}


def _reports_health(pod: Document) -> bool:
    status = pod.get("status") or {}
    statuses = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return any(item.get("allocatedResourcesStatus") for item in statuses)
