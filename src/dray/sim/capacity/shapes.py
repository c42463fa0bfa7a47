"""Shapes of nodes to add: from a catalogue with prices, from template files, or like existing nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dray.api.codec import from_document
from dray.api.document import Document
from dray.api.quantity import Quantity, QuantityError
from dray.api.types.core_v1 import Node
from dray.api.types.resource_v1 import ResourceSlice
from dray.sim.double_offers import is_identity
from dray.sim.explain.similar_names import did_you_mean
from dray.sim.snapshot import Snapshot, SnapshotError, each_object, in_hub_version
from dray.sim.whatif.changes import copies, fresh_node

API_VERSION: Final = "plan.dray.dev/v1"
KIND: Final = "NodeCatalogue"
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
# Shapes of one plan: each is tried with every kind of Pod.
SHAPES_MAX: Final = 64
# Of a shape without a price.
PRICE: Final = 1.0
_NEEDED: Final = ("cpu", "memory", "pods")
_FIELDS: Final = ("name", "price", "max", "allocatable", "labels", "taints", "devices", "node")
_DEVICE_FIELDS: Final = ("driver", "count", "device")
# The name of the node in a shape; copies get others.
_STEM: Final = "plan"
# Fewer nodes may differ in each label that matters, such as their zone.
_MANY_NODES: Final = 8
_GIB: Final = 2**30
_HOSTNAME: Final = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True)
class NodeShape:
    """A kind of node that can be added."""

    name: str
    price: float
    # A Node, and the ResourceSlices that name it.
    documents: tuple[Document, ...]
    # How many can be added.
    limit: int | None = None

    @property
    def stem(self) -> str:
        """Return the name of the node in the documents."""
        name: str = self.documents[0]["metadata"]["name"]
        return name

    def named(self, name: str) -> tuple[Node, tuple[ResourceSlice, ...]]:
        """Return a node of this shape with its slices."""
        node, *slices = copies(self.documents, self.stem, name)
        return from_document(Node, node), tuple(from_document(ResourceSlice, item) for item in slices)


# --- A catalogue. ---


def read_catalogue(documents: Sequence[Document], snapshot: Snapshot) -> list[NodeShape]:
    """Return the shapes of a catalogue; raises `SnapshotError` that names the shape and the field."""
    if len(documents) != 1 or documents[0].get("kind") != KIND or documents[0].get("apiVersion") != API_VERSION:
        raise SnapshotError(f"a catalogue is one document with apiVersion: {API_VERSION} and kind: {KIND}")
    entries = documents[0].get("shapes")
    if not isinstance(entries, list) or not entries:
        raise SnapshotError("the catalogue has no shapes")
    if len(entries) > SHAPES_MAX:
        raise SnapshotError(f"the catalogue has {len(entries)} shapes; at most {SHAPES_MAX} are compared")
    found: dict[str, NodeShape] = {}
    for number, entry in enumerate(entries, 1):
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not name:
            raise SnapshotError(f"shape {number} of the catalogue has no name")
        if name in found:
            raise SnapshotError(f"the catalogue has two shapes {name}")
        found[name] = _shape(name, entry, snapshot)
    return list(found.values())


def _shape(name: str, entry: Mapping[str, Any], snapshot: Snapshot) -> NodeShape:
    for field in entry:
        if field not in _FIELDS:
            raise SnapshotError(f"shape {name}: unknown field {field}{did_you_mean(field, _FIELDS)}")
    price, limit = _price(name, entry), entry.get("max")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise SnapshotError(f"shape {name}: max must be a number that is not negative")
    if entry.get("node"):
        if any(entry.get(field) for field in ("allocatable", "devices", "labels", "taints")):
            raise SnapshotError(f"shape {name}: it is like node {entry['node']}, and cannot have other fields as well")
        return NodeShape(name, price, _like_node(snapshot, str(entry["node"]), name), limit)
    return NodeShape(name, price, _documents(name, entry), limit)


def _price(name: str, entry: Mapping[str, Any]) -> float:
    price = entry.get("price")
    if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < float("inf"):
        raise SnapshotError(f"shape {name}: price must be a number that is not negative")
    return float(price)


def _documents(name: str, entry: Mapping[str, Any]) -> tuple[Document, ...]:
    allocatable = entry.get("allocatable")
    if not isinstance(allocatable, dict) or not allocatable:
        raise SnapshotError(f"shape {name} has no capacity: allocatable needs {', '.join(_NEEDED)}")
    for resource in _NEEDED:
        if resource not in allocatable:
            raise SnapshotError(f"shape {name}: allocatable has no {resource}, so that no Pod fits")
    for resource, amount in allocatable.items():
        try:
            if Quantity.parse(amount) < Quantity.parse(0):
                raise SnapshotError(f"shape {name}: allocatable {resource} is negative")
        except (QuantityError, TypeError) as error:
            raise SnapshotError(f"shape {name}: allocatable {resource}: {error}") from error
    labels = {**(entry.get("labels") or {}), _HOSTNAME: _STEM}
    amounts = {resource: str(amount) for resource, amount in allocatable.items()}
    node: Document = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": _STEM, "labels": {str(key): str(value) for key, value in labels.items()}},
        "spec": {"taints": list(entry.get("taints") or ())},
        "status": {
            "allocatable": amounts,
            "capacity": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }
    _check(Node, node, name)
    return node, *_slices(name, entry.get("devices") or ())


def _slices(name: str, devices: Iterable[Any]) -> list[Document]:
    by_driver: dict[str, list[Document]] = {}
    for item in devices:
        unknown = [field for field in item if field not in _DEVICE_FIELDS] if isinstance(item, dict) else ["devices"]
        if unknown:
            raise SnapshotError(f"shape {name}: unknown field {unknown[0]} in devices")
        driver, count = item.get("driver"), item.get("count")
        if not isinstance(driver, str) or not driver:
            raise SnapshotError(f"shape {name}: devices need a driver")
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise SnapshotError(f"shape {name}: devices of {driver} need a count of at least 1")
        listed = by_driver.setdefault(driver, [])
        listed += [{**(item.get("device") or {}), "name": f"device-{len(listed) + n}"} for n in range(count)]
    found = []
    for number, (driver, listed) in enumerate(by_driver.items()):
        pool = {"name": _STEM, "generation": 1, "resourceSliceCount": 1}
        document: Document = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"devices-{number}"},
            "spec": {"driver": driver, "nodeName": _STEM, "pool": pool, "devices": listed},
        }
        _check(ResourceSlice, document, name)
        found.append(document)
    return found


def _check(type_: Any, document: Document, name: str) -> None:
    try:
        from_document(type_, document)
    except ValueError as error:
        raise SnapshotError(f"shape {name}: {error}") from error


# --- Like existing nodes, and templates. ---


def _like_node(snapshot: Snapshot, node_name: str, shape: str) -> tuple[Document, ...]:
    nodes = {item["metadata"]["name"]: item for item in snapshot.documents.get("Node", ())}
    if node_name not in nodes:
        similar = did_you_mean(node_name, nodes)
        raise SnapshotError(f'shape {shape}: no node "{node_name}" in the cluster{similar}')
    slices = [item for item in snapshot.documents.get("ResourceSlice", ()) if item["spec"].get("nodeName") == node_name]
    return fresh_node(nodes[node_name]), *slices


def existing_shapes(snapshot: Snapshot) -> list[NodeShape]:
    """Return one shape for each group of nodes that are alike, with the same price for all."""
    slices: dict[str, list[Document]] = {}
    for item in snapshot.documents.get("ResourceSlice", ()):
        slices.setdefault(item["spec"].get("nodeName") or "", []).append(item)
    nodes = sorted(snapshot.documents.get("Node", ()), key=lambda item: str(item["metadata"]["name"]))
    own_labels = _labels_of_one_node(nodes)
    found: dict[str, NodeShape] = {}
    for node in nodes:
        name = node["metadata"]["name"]
        own = slices.get(name, [])
        key = _signature(node, own, own_labels)
        if key not in found and len(found) < SHAPES_MAX:
            kind = (node["metadata"].get("labels") or {}).get(INSTANCE_TYPE) or ""
            # Nodes of one type may differ in labels, taints or devices.
            is_taken = not kind or any(shape.name == kind for shape in found.values())
            named = f"{kind} like {name}".lstrip() if is_taken else kind
            found[key] = NodeShape(named, PRICE, (fresh_node(node), *own))
    return list(found.values())


def _labels_of_one_node(nodes: Sequence[Document]) -> set[str]:
    """Return the labels that tell nodes apart, such as an instance id: many nodes have one, and all have another."""
    values: dict[str, list[str]] = {}
    for node in nodes:
        for key, value in (node["metadata"].get("labels") or {}).items():
            values.setdefault(key, []).append(value)
    return {key for key, found in values.items() if len(found) == len(set(found)) >= _MANY_NODES}


def _signature(node: Document, slices: Sequence[Document], own_labels: set[str]) -> str:
    """Return what nodes of a shape have in common: not what names the node, and what identifies its devices."""
    name = node["metadata"]["name"]
    labels = {
        key: value
        for key, value in (node["metadata"].get("labels") or {}).items()
        if value != name and key not in own_labels
    }
    taints = fresh_node(node)["spec"]["taints"]
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    amounts = [(key, _rounded(key, amount)) for key, amount in sorted(allocatable.items())]
    devices = sorted(
        repr((item["spec"]["driver"], _alike(item["spec"].get("devices") or ()), item["spec"].get("sharedCounters")))
        for item in slices
    )
    return repr((sorted(labels.items()), taints, amounts, devices))


def _rounded(resource: str, amount: str) -> str:
    """Return the amount as far as machines of one kind have the same: their memory differs by some KiB."""
    if resource not in ("memory", "ephemeral-storage"):
        return amount
    try:
        return str(round(Quantity.parse(amount).value() / _GIB))
    except QuantityError:
        return amount


def _alike(devices: Sequence[Document]) -> list[Document]:
    """Return devices without what only one has."""
    return [
        {**item, "attributes": {key: value for key, value in item["attributes"].items() if not is_identity(key)}}
        if item.get("attributes")
        else item
        for item in devices
    ]


def template_shape(documents: Sequence[Document], name: str) -> NodeShape:
    """Return the shape of a file with one Node and the ResourceSlices that name it; lists are expanded."""
    objects = list(each_object(documents))
    nodes = [item for item in objects if item.get("kind") == "Node"]
    if len(nodes) != 1:
        raise SnapshotError(f"{name}: a node template needs exactly one Node; it has {len(nodes)}")
    node = nodes[0]
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    for resource in _NEEDED:
        if resource not in allocatable:
            raise SnapshotError(f"{name}: the Node has no status.allocatable.{resource}, so that no Pod fits")
    own = node["metadata"]["name"]
    converted = [in_hub_version(item) for item in objects if item.get("kind") == "ResourceSlice"]
    slices = [item for item in converted if item["spec"].get("nodeName") == own]
    return NodeShape(own, PRICE, (fresh_node(node), *slices))
