"""The objects of a cluster at one point in time, from an API server or from files of kubectl. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dray.api import classic_claims as classic
from dray.api.codec import from_document
from dray.api.conversion import resource as resource_conversion
from dray.api.document import Document, GroupVersion, NamespacedName
from dray.api.types import Message, cdi_v1alpha1
from dray.api.types.core_v1 import Node, Pod, ResourceQuota
from dray.api.types.resource_v1 import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from dray.client.objects import key_of
from dray.sim.undecodable import UndecodableObject, decoding_problem

if TYPE_CHECKING:
    from dray.allocator import Allocations, Inventory

T = TypeVar("T", bound=Message)

DRA: Final = resource_conversion.GROUP
DEFAULT_NAMESPACE: Final = "default"
# No object of an API server: the file that a scheduler was started with. It has no name.
SCHEDULER_CONFIGURATION: Final = "KubeSchedulerConfiguration"
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
    "StorageClass": ("storage.k8s.io", "storageclasses"),
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
# The versions that can be read, newest first, by group.
VERSIONS: Final[Mapping[str, Sequence[str]]] = {
    "": ("v1",),
    "apps": ("v1",),
    "batch": ("v1",),
    "policy": ("v1",),
    "scheduling.k8s.io": ("v1", "v1beta1"),
    "storage.k8s.io": ("v1",),
    DRA: ("v1", "v1beta2", "v1beta1", "v1alpha3"),
    classic.GROUP: (classic.VERSION,),
}
CLUSTER_SCOPED: Final = frozenset(
    {
        "Namespace",
        "Node",
        "PersistentVolume",
        "StorageClass",
        "DeviceClass",
        "ResourceSlice",
        "DeviceTaintRule",
        "ResourceClass",
        "PriorityClass",
    }
)
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
    "StorageClass",
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
    # What the user may not read, and what is not evaluated, as notes.
    hidden: tuple[str, ...] = ()
    # The kinds that could not be read in the whole cluster: the namespace that was read, or None.
    partial: Mapping[str, str | None] = field(default_factory=dict)
    # The kinds that were listed in a cluster; of others, files may lack objects that exist.
    listed: frozenset[str] = frozenset()
    # Those of `partial` of which a dump has no object, as opposed to those that the user may not list.
    absent: frozenset[str] = frozenset()
    # Objects that are not among the documents.
    undecodable: tuple[UndecodableObject, ...] = ()

    @classmethod
    def of(
        cls,
        documents: Iterable[Document],
        hidden: Iterable[str] = (),
        partial: Mapping[str, str | None] | None = None,
    ) -> Snapshot:
        """Create a snapshot from documents of any served version; lists are expanded.

        Of an object that occurs several times, the last counts.
        """
        found: dict[str, dict[tuple[str, str], Document]] = {}
        unread: dict[str, int] = {}
        undecodable: list[UndecodableObject] = []
        for document in each_object(documents):
            api_version = document["apiVersion"]
            group, version = GroupVersion.parse(api_version)
            kind, name = kind_key(document["kind"], group), checked_name(document)
            if kind in KINDS and version not in VERSIONS[group]:
                kind = f"{kind} of {api_version}"
                unread[kind] = unread.get(kind, 0) + 1
                found.setdefault(kind, {})[name] = document
                continue
            hub = _in_namespace(in_hub_version(document), kind)
            problem = decoding_problem(hub) if kind in KINDS else None
            if problem is None:
                found.setdefault(kind, {})[name] = hub
            else:
                undecodable.append(UndecodableObject(document["kind"], group, *name, problem))
        notes = [f"{kind} (version not known): {count} not evaluated" for kind, count in unread.items()]
        notes += [f"{item.title} cannot be decoded and is not evaluated: {item.problem}" for item in undecodable]
        by_kind = {kind: list(items.values()) for kind, items in found.items()}
        return cls(by_kind, (*hidden, *notes), partial or {}, undecodable=tuple(undecodable))

    def covers(self, kind: str, other: str) -> bool:
        """Return whether a `kind` that an object of the other kind refers to, and that was not read, does not exist."""
        if kind not in self.partial:
            return True
        return self.partial[kind] is not None and self.partial[kind] == self.partial.get(other)

    def unread(self, kind: str) -> str:
        """Return why a kind was not read; empty if it was, if only in one namespace."""
        if self.partial.get(kind, "") is not None:
            return ""
        name = KINDS[kind][1]
        return f"the dump has no {name}" if kind in self.absent else f"you may not list {name}"

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
    def storage_classes(self) -> Mapping[str, Document]:
        """Storage classes by name."""
        return {item["metadata"]["name"]: item for item in self.documents.get("StorageClass", ())}

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
        return tuple(from_document(type_, document) for document in sorted(self.documents.get(kind, ()), key=_sort_key))


def in_hub_version(document: Document) -> Document:
    """Convert a document to the hub version."""
    group_version = GroupVersion.parse(str(document.get("apiVersion", "")))
    if group_version.group != DRA:
        return document
    return resource_conversion.to_hub(group_version.version, str(document.get("kind", "")), document)


def each_object(documents: Iterable[Document]) -> Iterator[Document]:
    """Yield the objects, those of lists one by one; raises `SnapshotError` for what is no object."""
    for document in documents:
        kind, version = document.get("kind"), document.get("apiVersion")
        if not kind or not version or not isinstance(kind, str) or not isinstance(version, str):
            raise SnapshotError("an object has no apiVersion or no kind; is this what `kubectl get -o yaml` wrote?")
        # Go writes an empty list as null.
        if kind.endswith("List") and "items" in document and isinstance(document["items"], list | None):
            yield from each_object(_with_type(item, document) for item in document["items"] or ())
        else:
            yield document


def checked_name(document: Document) -> tuple[str, str]:
    """Return the namespace and name of an object; raises `SnapshotError` if it has none or they are no strings."""
    if document["kind"] == SCHEDULER_CONFIGURATION:
        return "", ""
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        raise SnapshotError(f"a {document['kind']} has no metadata: it needs a name")
    name, namespace = metadata.get("name"), metadata.get("namespace")
    if not name:
        raise SnapshotError(f"a {document['kind']} has no name")
    for field_name, value in (("name", name), ("namespace", namespace)):
        if value is not None and not isinstance(value, str):
            raise SnapshotError(
                f"a {document['kind']} has the {field_name} {value!r:.40}, which is not a string: put it in quotes"
            )
    return namespace or "", name


def title_of(document: Document) -> str:
    """Return the kind and the name of an object, as messages have them."""
    metadata = document.get("metadata") or {}
    namespace, name = metadata.get("namespace"), metadata.get("name")
    return f"{document['kind']} {f'{namespace}/{name}' if namespace else name}"


def _in_namespace(document: Document, kind: str) -> Document:
    """Return an object of a namespaced kind with a namespace, which manifests may omit."""
    if kind not in KINDS or kind in CLUSTER_SCOPED or document["metadata"].get("namespace"):
        return document
    metadata = document["metadata"]
    return {**document, "metadata": {**metadata, "namespace": DEFAULT_NAMESPACE}}


def _with_type(item: Any, owner: Document) -> Document:
    """Add the type, which API servers omit in list items."""
    if not isinstance(item, dict):
        raise SnapshotError(f"an item of a {owner['kind']} is not an object: {item!r:.40}")
    if item.get("kind"):
        return {**item}
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"].removesuffix("List"), **item}


def kind_key(kind: str, group: str) -> str:
    """Return the key of a kind: its name, with the group if another group has a kind of that name."""
    return kind if kind not in KINDS or KINDS[kind][0] == group else f"{kind}.{group}"


def _sort_key(document: Document) -> tuple[str, str]:
    metadata = document.get("metadata") or {}
    return metadata.get("namespace") or "", metadata.get("name") or ""
