"""Changes to a snapshot: nodes drained, removed or added, devices tainted, drivers removed. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dray.api.document import Document
from dray.api.names import dns1123_subdomain
from dray.api.pod_claims import TERMINAL_PHASES
from dray.api.selectors import LabelSelector, SelectorError
from dray.sim.devices import device_rows
from dray.sim.kept_fields import MIRROR_ANNOTATION
from dray.sim.snapshot import Snapshot, SnapshotError
from dray.sim.usable_nodes import HOLD_TAINT

UNSCHEDULABLE_TAINT: Final = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
EFFECTS: Final = ("NoSchedule", "NoExecute", "None")


@dataclass(frozen=True, slots=True)
class Changed:
    """A snapshot after a change, the deleted Pods that no controller recreates, and what would stop the change."""

    snapshot: Snapshot
    lost: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def then(self, other: Changed) -> Changed:
        """Combine two changes; `other` was applied to this one's snapshot."""
        return Changed(other.snapshot, (*self.lost, *other.lost), (*self.notes, *other.notes))


@dataclass(frozen=True, slots=True)
class DeviceTaintChange:
    """Devices to taint: `driver[/pool[/device]]=key[=value]:effect`."""

    driver: str
    pool: str
    device: str
    key: str
    value: str
    effect: str

    @classmethod
    def parse(cls, text: str) -> DeviceTaintChange:
        """Parse user input; raise `SnapshotError` if it is invalid."""
        place, _, taint = text.partition("=")
        head, _, effect = taint.rpartition(":")
        key, _, value = head.partition("=")
        parts = [*place.split("/"), "", ""]
        if not place or not key or effect not in EFFECTS or len(parts) > len(("driver", "pool", "device")) + 2:
            raise SnapshotError(
                f"cannot read the taint {text!r}: expected DRIVER[/POOL[/DEVICE]]=KEY[=VALUE]:EFFECT with an effect of "
                f"{', '.join(EFFECTS)}"
            )
        return cls(parts[0], parts[1], parts[2], key, value, effect)

    def selects(self, driver: str, pool: str, device: str) -> bool:
        """Return whether the device is selected."""
        return driver == self.driver and self.pool in ("", pool) and self.device in ("", device)


def drain(snapshot: Snapshot, name: str) -> Changed:
    """Cordon a node and move its Pods; those of DaemonSets and of the node's own files stay."""
    _node(snapshot, name)
    nodes = [_cordoned(item) if item["metadata"]["name"] == name else item for item in snapshot.documents["Node"]]
    pods = [item for item in _pods_on(snapshot, name) if not _belongs_to_node(item)]
    changed = _evict(Snapshot({**snapshot.documents, "Node": nodes}), {_key(item) for item in pods})
    exceeded = exceeded_budgets(snapshot, [item for item in pods if not _is_done(item)])
    notes = (
        f"the disruption budget {budget} allows {allowed} evictions, the drain needs {len(covered)} "
        f"({_listed(covered)}): `kubectl drain` waits until it allows them"
        for budget, allowed, covered in exceeded
    )
    return replace(changed, notes=tuple(notes))


def preemption_notes(snapshot: Snapshot, victims: Collection[tuple[str, str]]) -> Iterator[str]:
    """Yield the disruption budgets that preemption, which respects them only where it can, does not keep."""
    pods = [item for item in snapshot.documents.get("Pod", ()) if _key(item) in victims]
    for budget, allowed, covered in exceeded_budgets(snapshot, pods):
        yield (
            f"the disruption budget {budget} allows {allowed} evictions, preemption evicts {len(covered)} "
            f"({_listed(covered)}): no other victims would let the Pods fit"
        )


def exceeded_budgets(snapshot: Snapshot, pods: Sequence[Document]) -> Iterator[tuple[str, int, list[str]]]:
    """Yield the disruption budgets that do not allow the eviction of all these Pods at once: name, number, Pods."""
    for budget in snapshot.documents.get("PodDisruptionBudget", ()):
        namespace, name = _key(budget)
        try:
            selector = LabelSelector.from_document((budget.get("spec") or {}).get("selector"))
        except SelectorError:
            continue
        covered = [
            _key(item)[1]
            for item in pods
            if _key(item)[0] == namespace and selector.matches(item["metadata"].get("labels") or {})
        ]
        allowed = (budget.get("status") or {}).get("disruptionsAllowed") or 0
        if len(covered) > allowed:
            yield f"{namespace}/{name}", allowed, covered


def remove_node(snapshot: Snapshot, name: str) -> Changed:
    """Remove a node with its slices and all its Pods."""
    _node(snapshot, name)
    slices = [item for item in snapshot.documents.get("ResourceSlice", ()) if item["spec"].get("nodeName") != name]
    nodes = [item for item in snapshot.documents["Node"] if item["metadata"]["name"] != name]
    gone = {_key(item) for item in _pods_on(snapshot, name)}
    of_node = {_key(item) for item in _pods_on(snapshot, name) if _belongs_to_node(item)}
    documents = {**snapshot.documents, "Node": nodes, "ResourceSlice": slices}
    documents["Pod"] = [item for item in documents.get("Pod", ()) if _key(item) not in of_node]
    return _evict(Snapshot(documents), gone - of_node)


def remove_driver(snapshot: Snapshot, driver: str) -> Changed:
    """Remove a driver's devices; running Pods keep theirs."""
    slices = snapshot.documents.get("ResourceSlice", ())
    kept = [item for item in slices if item["spec"]["driver"] != driver]
    if len(kept) == len(slices):
        raise SnapshotError(f'no devices of driver "{driver}"; there are: {_listed(_drivers(slices))}')
    return Changed(Snapshot({**snapshot.documents, "ResourceSlice": kept}))


def taint_devices(snapshot: Snapshot, change: DeviceTaintChange) -> Changed:
    """Taint devices by a rule; with the effect NoExecute the Pods that use them are moved."""
    rows = [row for row in device_rows(snapshot) if change.selects(row.driver, row.pool, row.name)]
    if not rows:
        raise SnapshotError(f"no device of {change.driver}/{change.pool or '*'}/{change.device or '*'}")
    rules = [*snapshot.documents.get("DeviceTaintRule", ()), _rule(change)]
    tainted = Snapshot({**snapshot.documents, "DeviceTaintRule": rules})
    if change.effect != "NoExecute":
        return Changed(tainted)
    users = {(holder.claim.partition("/")[0], pod) for row in rows for holder in row.holders for pod in holder.pods}
    return _evict(tainted, users)


def add_nodes(snapshot: Snapshot, pattern: Sequence[Document], count: int) -> Changed:
    """Add copies of a node, each with copies of its slices."""
    node = next((item for item in pattern if item.get("kind") == "Node"), None)
    if node is None:
        raise SnapshotError("a node template needs a Node, and the ResourceSlices that name it")
    taken = {item["metadata"]["name"] for item in snapshot.documents.get("Node", ())}
    names = new_names(node["metadata"]["name"], count, taken)
    added = [copied for name in names for copied in copies(pattern, node["metadata"]["name"], name)]
    documents = {kind: list(items) for kind, items in snapshot.documents.items()}
    for item in Snapshot.of(added).documents.items():
        documents.setdefault(item[0], []).extend(item[1])
    return Changed(Snapshot(documents))


def new_names(stem: str, count: int, taken: Iterable[str]) -> list[str]:
    """Return unused names for copies."""
    used, found, number = set(taken), list[str](), 0
    while len(found) < count:
        number += 1
        name = f"{stem}-{number}"
        if name not in used:
            found.append(name)
    return found


def copies(pattern: Iterable[Document], old: str, new: str) -> list[Document]:
    """Return copies of a node and its slices under another name."""
    found = []
    for item in pattern:
        metadata = {key: value for key, value in item["metadata"].items() if key not in ("uid", "resourceVersion")}
        if item.get("kind") == "Node":
            labels = {**(metadata.get("labels") or {}), "kubernetes.io/hostname": new}
            found.append({**fresh_node(item), "metadata": {**metadata, "name": new, "labels": labels}})
        elif item.get("kind") == "ResourceSlice" and item["spec"].get("nodeName") == old:
            spec = {**item["spec"], "nodeName": new, "pool": {**item["spec"]["pool"], "name": new}}
            name = f"{new}-{metadata['name']}"
            found.append({**item, "metadata": {**metadata, "name": name}, "spec": spec})
    problem = [text for document in found for text in dns1123_subdomain(document["metadata"]["name"])]
    if problem:
        raise SnapshotError(f"cannot name copies {new}: {problem[0]}")
    return found


def fresh_node(node: Document) -> Document:
    """Return the node as it would register: ready and schedulable, without the taints of its present condition."""
    spec, status = node.get("spec") or {}, node.get("status") or {}
    taints = [
        taint
        for taint in spec.get("taints") or ()
        if not taint["key"].startswith("node.kubernetes.io/") and taint["key"] != HOLD_TAINT
    ]
    conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    return {**node, "spec": {"taints": taints}, "status": {**status, "conditions": conditions}}


def _evict(snapshot: Snapshot, evicted: set[tuple[str, str]]) -> Changed:
    """Recreate evicted Pods of controllers as pending; other evicted Pods are lost."""
    pods: list[Document] = []
    lost: list[str] = []
    for item in snapshot.documents.get("Pod", ()):
        if _key(item) not in evicted or _is_done(item):
            pods.append(item)
        elif any(owner.get("controller") for owner in item["metadata"].get("ownerReferences") or ()):
            pods.append(recreated(item))
        else:
            lost.append("/".join(_key(item)))
    return Changed(Snapshot({**snapshot.documents, "Pod": pods}), tuple(lost))


def recreated(pod: Document) -> Document:
    """Return the Pod as its controller would recreate it: without uid, node and claims."""
    metadata = {
        name: value
        for name, value in pod["metadata"].items()
        if name not in ("uid", "resourceVersion", "creationTimestamp") and not name.startswith("deletion")
    }
    spec = {name: value for name, value in pod["spec"].items() if name != "nodeName"}
    return {**pod, "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def _rule(change: DeviceTaintChange) -> Document:
    selector = {"driver": change.driver, "pool": change.pool, "device": change.device}
    taint = {"key": change.key, "value": change.value, "effect": change.effect}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": f"what-if-{change.key.replace('/', '-')}"},
        "spec": {
            "deviceSelector": {name: value for name, value in selector.items() if value},
            "taint": {name: value for name, value in taint.items() if value},
        },
    }


def _node(snapshot: Snapshot, name: str) -> Document:
    nodes = snapshot.documents.get("Node", ())
    found = next((item for item in nodes if item["metadata"]["name"] == name), None)
    if found is None:
        raise SnapshotError(f'nodes "{name}" not found; there are: {_listed(n["metadata"]["name"] for n in nodes)}')
    return found


def _cordoned(node: Document) -> Document:
    spec = node.get("spec") or {}
    taints = [taint for taint in spec.get("taints") or () if taint["key"] != UNSCHEDULABLE_TAINT["key"]]
    return {**node, "spec": {**spec, "unschedulable": True, "taints": [*taints, UNSCHEDULABLE_TAINT]}}


def _pods_on(snapshot: Snapshot, node: str) -> list[Document]:
    return [item for item in snapshot.documents.get("Pod", ()) if item["spec"].get("nodeName") == node]


def _belongs_to_node(pod: Document) -> bool:
    """Return whether a Pod runs on this node only: that of a DaemonSet, or the mirror of a file on the node."""
    metadata = pod["metadata"]
    if MIRROR_ANNOTATION in (metadata.get("annotations") or {}):
        return True
    owners = metadata.get("ownerReferences") or ()
    return any(owner.get("controller") and owner.get("kind") == "DaemonSet" for owner in owners)


def _is_done(pod: Document) -> bool:
    return (pod.get("status") or {}).get("phase") in TERMINAL_PHASES


def _key(document: Document) -> tuple[str, str]:
    return document["metadata"].get("namespace") or "", document["metadata"]["name"]


def _drivers(slices: Iterable[Document]) -> set[str]:
    return {item["spec"]["driver"] for item in slices}


def _listed(names: Iterable[str]) -> str:
    known = sorted(names)
    few = 5
    return ", ".join(known[:few]) + (f" and {len(known) - few} more" if len(known) > few else "") if known else "none"
