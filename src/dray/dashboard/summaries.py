"""What the tables need of an API object, and no more: informers cache summaries instead of objects. Pure.

A Pod takes several kilobytes as a document and a few hundred bytes as a summary; large clusters have tens of thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from dray.api.codec import from_document
from dray.api.document import Document
from dray.api.types import Message, cdi_v1alpha1
from dray.api.types.core_v1 import Pod
from dray.api.types.meta_v1 import ObjectMeta
from dray.api.types.resource_v1 import DeviceClass, ResourceClaim, ResourceClaimStatus, ResourceSlice
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
# Kinds with most of the bytes of the first picture. They are decoded by the client, where the server has their version:
# documents in between would take several times as long.
DECODED: Final[Mapping[str, type[Message]]] = {"ResourceSlice": ResourceSlice, "ResourceClaim": ResourceClaim}


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


class ClaimSummary(msgspec.Struct, frozen=True, gc=False):
    """A claim of resource.k8s.io; of `claim`, only the name and the allocation are kept."""

    claim: ResourceClaim
    row: Row
    holders: tuple[tuple[str, Holder], ...]


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
    return from_document(DECODED[kind], in_hub_version(document))


def _identity(metadata: ObjectMeta) -> Identity:
    name, version = metadata.name or "", metadata.resource_version or ""
    return Identity(metadata.namespace or "", name, metadata.uid or "", version)


def _slice(resource_slice: ResourceSlice) -> Summary:
    kept = ResourceSlice(metadata=ObjectMeta(name=resource_slice.metadata.name), spec=resource_slice.spec)
    return Summary(_identity(resource_slice.metadata), kept)


def _claim(claim: ResourceClaim) -> Summary:
    metadata, status = claim.metadata, ResourceClaimStatus(allocation=claim.status.allocation)
    named = ObjectMeta(name=metadata.name, namespace=metadata.namespace, uid=metadata.uid)
    kept = ResourceClaim(metadata=named, status=status)
    holders = tuple(holders_of(claim))
    return Summary(_identity(metadata), ClaimSummary(kept, rows.claim_row(claim, [key for key, _ in holders]), holders))


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
        node=node if phase not in ("Succeeded", "Failed") else "",
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
