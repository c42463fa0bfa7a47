"""The objects of a cluster at one point in time, from an API server or from files of kubectl. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from dray.api import classic_claims as classic
from dray.api.codec import from_document
from dray.api.conversion import resource as resource_conversion
from dray.api.document import Document, GroupVersion, NamespacedName
from dray.api.types import Message, cdi_v1alpha1
from dray.api.types.core_v1 import Node, Pod, ResourceQuota
from dray.api.types.resource_v1 import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from dray.client.objects import key_of

if TYPE_CHECKING:
    from dray.allocator import Allocations, Inventory

T = TypeVar("T", bound=Message)

DRA: Final = resource_conversion.GROUP
# Claims of cdi.k8s.io, whose kind has the same name as that of resource.k8s.io.
CLASSIC_CLAIM: Final = f"ResourceClaim.{classic.GROUP}"
# Kinds that a snapshot uses, with group and plural; others are stored unchanged.
KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "Namespace": ("", "namespaces"),
    "Node": ("", "nodes"),
    "Pod": ("", "pods"),
    "Event": ("", "events"),
    "ResourceQuota": ("", "resourcequotas"),
    "Service": ("", "services"),
    "PersistentVolume": ("", "persistentvolumes"),
    "PersistentVolumeClaim": ("", "persistentvolumeclaims"),
    "DeviceClass": (DRA, "deviceclasses"),
    "ResourceSlice": (DRA, "resourceslices"),
    "ResourceClaim": (DRA, "resourceclaims"),
    "ResourceClaimTemplate": (DRA, "resourceclaimtemplates"),
    "DeviceTaintRule": (DRA, "devicetaintrules"),
    CLASSIC_CLAIM: (classic.GROUP, "resourceclaims"),
    "ResourceClass": (classic.GROUP, "resourceclasses"),
    "PriorityClass": ("scheduling.k8s.io", "priorityclasses"),
    "PodDisruptionBudget": ("policy", "poddisruptionbudgets"),
    "Deployment": ("apps", "deployments"),
    "ReplicaSet": ("apps", "replicasets"),
    "DaemonSet": ("apps", "daemonsets"),
    "StatefulSet": ("apps", "statefulsets"),
    "Job": ("batch", "jobs"),
    "PodGroup": ("scheduling.k8s.io", "podgroups"),
    "Workload": ("scheduling.k8s.io", "workloads"),
}
# Kinds that determine where a Pod is placed and which devices it gets.
PLACEMENT_KINDS: Final = (
    "Namespace",
    "Node",
    "Pod",
    "ResourceClaim",
    "ResourceClaimTemplate",
    "ResourceSlice",
    "DeviceClass",
    "DeviceTaintRule",
    CLASSIC_CLAIM,
    "ResourceClass",
    "Service",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "PriorityClass",
    "PodDisruptionBudget",
    "PodGroup",
)
WORKLOAD_KINDS: Final = ("Deployment", "ReplicaSet", "DaemonSet", "StatefulSet", "Job")
# What decides about a Pod on its whole path, from its workload to the node.
PATH_KINDS: Final = (*PLACEMENT_KINDS, *WORKLOAD_KINDS, "Workload", "ResourceQuota", "Event")


class SnapshotError(ValueError):
    """A document that cannot be part of a snapshot."""


@dataclass(frozen=True)
class Snapshot:
    """Documents by kind, in the hub version; treat them as immutable."""

    documents: Mapping[str, Sequence[Document]] = field(default_factory=dict)
    # What the user may not read, as notes.
    hidden: tuple[str, ...] = ()

    @classmethod
    def of(cls, documents: Iterable[Document], hidden: Iterable[str] = ()) -> Snapshot:
        """Create a snapshot from documents of any served version; lists are expanded."""
        found: dict[str, list[Document]] = {}
        for document in _each(documents):
            converted = in_hub_version(document)
            group = GroupVersion.parse(converted["apiVersion"]).group
            found.setdefault(kind_key(converted["kind"], group), []).append(converted)
        return cls(found, tuple(hidden))

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """By name."""
        return self._typed("Node", Node)

    @cached_property
    def pods(self) -> tuple[Pod, ...]:
        """By namespace and name."""
        return self._typed("Pod", Pod)

    @cached_property
    def volume_claims(self) -> Mapping[NamespacedName, Document]:
        """Persistent volume claims by namespace and name."""
        return {key_of(item): item for item in self.documents.get("PersistentVolumeClaim", ())}

    @cached_property
    def volumes(self) -> Mapping[str, Document]:
        """Persistent volumes by name."""
        return {item["metadata"]["name"]: item for item in self.documents.get("PersistentVolume", ())}

    @cached_property
    def claims(self) -> tuple[ResourceClaim, ...]:
        """Claims of resource.k8s.io by namespace and name."""
        return self._typed("ResourceClaim", ResourceClaim)

    @cached_property
    def classic_claims(self) -> tuple[cdi_v1alpha1.ResourceClaim, ...]:
        """Claims of cdi.k8s.io by namespace and name."""
        return self._typed(CLASSIC_CLAIM, cdi_v1alpha1.ResourceClaim)

    @cached_property
    def classic_classes(self) -> Mapping[str, cdi_v1alpha1.ResourceClass]:
        """Resource classes of cdi.k8s.io by name."""
        return {item.metadata.name or "": item for item in self._typed("ResourceClass", cdi_v1alpha1.ResourceClass)}

    @cached_property
    def templates(self) -> tuple[ResourceClaimTemplate, ...]:
        """By namespace and name."""
        return self._typed("ResourceClaimTemplate", ResourceClaimTemplate)

    @cached_property
    def slices(self) -> tuple[ResourceSlice, ...]:
        """By name."""
        return self._typed("ResourceSlice", ResourceSlice)

    @cached_property
    def classes(self) -> tuple[DeviceClass, ...]:
        """By name."""
        return self._typed("DeviceClass", DeviceClass)

    @cached_property
    def events_by_object(self) -> Mapping[tuple[str, str, str], Sequence[Document]]:
        """Events by kind, namespace and name of the object that they are about."""
        found: dict[tuple[str, str, str], list[Document]] = {}
        for item in self.documents.get("Event", ()):
            about = item.get("involvedObject") or {}
            key = about.get("kind") or "", about.get("namespace") or "", about.get("name") or ""
            found.setdefault(key, []).append(item)
        return found

    @cached_property
    def quotas(self) -> tuple[ResourceQuota, ...]:
        """By namespace and name."""
        return self._typed("ResourceQuota", ResourceQuota)

    @property
    def taint_rules(self) -> Sequence[Document]:
        """As documents."""
        return self.documents.get("DeviceTaintRule", ())

    @cached_property
    def pods_by_uid(self) -> Mapping[str, Pod]:
        """Pods by uid, as claims refer to them."""
        return {pod.metadata.uid or "": pod for pod in self.pods}

    @cached_property
    def claims_by_key(self) -> Mapping[NamespacedName, ResourceClaim]:
        """Claims by key, as Pods refer to them."""
        return {key_of(item): item for item in self.claims}

    @cached_property
    def classic_claims_by_key(self) -> Mapping[NamespacedName, cdi_v1alpha1.ResourceClaim]:
        """Classic claims by key, as Pods refer to them."""
        return {key_of(item): item for item in self.classic_claims}

    def find_classic(self, namespace: str, name: str) -> cdi_v1alpha1.ResourceClaim | None:
        """Return the classic claim of that name."""
        return self.classic_claims_by_key.get(NamespacedName(namespace, name))

    def classic_entries(self, pod: Pod) -> Iterator[classic.ClassicEntry]:
        """Yield the entries of a Pod that refer to classic claims."""
        namespace = pod.metadata.namespace or ""
        return classic.classic_entries(pod, lambda name: self.find_classic(namespace, name) is not None)

    def inventory(self) -> Inventory:
        """Return a new inventory of all devices."""
        # Imported here: the CEL modules are slow to import and not needed for claims.
        from dray.allocator import Inventory

        inventory = Inventory()
        for resource_slice in self.slices:
            inventory.apply_slice(resource_slice)
        for device_class in self.classes:
            inventory.apply_class(device_class)
        for rule in self.taint_rules:
            inventory.apply_taint_rule(rule)
        return inventory

    def allocations(self) -> Allocations:
        """Return a new table of allocated devices."""
        # Imported here as for the inventory.
        from dray.allocator import Allocations

        allocations = Allocations()
        for claim in self.claims:
            allocations.apply_claim(claim)
        return allocations

    def _typed(self, kind: str, type_: type[T]) -> tuple[T, ...]:
        documents = sorted(self.documents.get(kind, ()), key=_sort_key)
        try:
            return tuple(from_document(type_, document) for document in documents)
        except msgspec.ValidationError as error:
            raise SnapshotError(f"a {kind} does not decode: {error}") from error


def in_hub_version(document: Document) -> Document:
    """Convert a document to the hub version."""
    group_version = GroupVersion.parse(str(document.get("apiVersion", "")))
    if group_version.group != DRA:
        return document
    return resource_conversion.to_hub(group_version.version, str(document.get("kind", "")), document)


def _each(documents: Iterable[Document]) -> Iterator[Document]:
    for document in documents:
        kind = document.get("kind")
        if not kind or not document.get("apiVersion"):
            raise SnapshotError("an object has no apiVersion or no kind; is this what `kubectl get -o yaml` wrote?")
        if kind.endswith("List") and isinstance(document.get("items"), list):
            yield from _each(_with_type(item, document) for item in document["items"])
        else:
            yield document


def _with_type(item: Any, owner: Document) -> Document:
    """Add the type, which API servers omit in list items."""
    if item.get("kind"):
        return {**item}
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"].removesuffix("List"), **item}


def kind_key(kind: str, group: str) -> str:
    """Return the key of a kind: its name, with the group if another group has a kind of that name."""
    return kind if kind not in KINDS or KINDS[kind][0] == group else f"{kind}.{group}"


def _sort_key(document: Document) -> tuple[str, str]:
    metadata = document.get("metadata") or {}
    return metadata.get("namespace") or "", metadata.get("name") or ""
