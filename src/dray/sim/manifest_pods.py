"""Pods of manifests as the API server and the controllers would create them: defaults, uids, replicas. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from dray.api.codec import from_document
from dray.api.defaults import core_v1, resource
from dray.api.document import Document, GroupVersion
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaimTemplate
from dray.sim.snapshot import Snapshot, SnapshotError, in_hub_version

# Defaults do not depend on the time.
_NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
_DEFAULTERS: Final = {**core_v1.DEFAULTERS, **resource.DEFAULTERS}
_WORKLOADS: Final[Mapping[str, str]] = {
    "Deployment": "replicas",
    "ReplicaSet": "replicas",
    "StatefulSet": "replicas",
    "Job": "parallelism",
}
# Other kinds have no Pods, and no effect on where Pods go.
_TEMPLATE: Final = "ResourceClaimTemplate"
# Pods of one file, with all repetitions.
PODS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class ManifestPods:
    """Pods, and the templates of their claims."""

    pods: tuple[Pod, ...]
    templates: tuple[ResourceClaimTemplate, ...]


def manifest_pods(
    documents: Iterable[Document], snapshot: Snapshot, *, times: int = 1, namespace: str = "default"
) -> ManifestPods:
    """Return the Pods of all documents, each so many times; raises `SnapshotError`."""
    pods: list[Pod] = []
    templates: list[ResourceClaimTemplate] = []
    priorities = _priorities(snapshot)
    for document in _expanded(documents):
        kind = document["kind"]
        if kind == _TEMPLATE:
            templates.append(_typed(ResourceClaimTemplate, _defaulted(document, namespace)))
        elif kind == "Pod" or kind in _WORKLOADS:
            pods += _pods(document, priorities, times, namespace)
            if len(pods) > PODS_MAX:
                raise SnapshotError(f"more than {PODS_MAX:,} Pods: plan a part of them")
        else:
            known = ", ".join(("Pod", *_WORKLOADS, _TEMPLATE))
            raise SnapshotError(f"cannot plan a {kind}: the file may have {known}")
    if not pods:
        raise SnapshotError("no Pods in the file: it needs a Pod, or a workload with replicas")
    return ManifestPods(tuple(pods), tuple(templates))


def _expanded(documents: Iterable[Document]) -> Iterator[Document]:
    for document in documents:
        if document["kind"].endswith("List") and isinstance(document.get("items"), list):
            yield from _expanded(document["items"])
        elif not isinstance(document.get("metadata"), dict):
            raise SnapshotError(f"a {document['kind']} has no metadata: it needs a name")
        else:
            yield document


def _pods(document: Document, priorities: Mapping[str, int], times: int, namespace: str) -> Iterator[Pod]:
    kind, metadata = document["kind"], document["metadata"]
    name = metadata.get("name") or str(metadata.get("generateName") or "").rstrip("-")
    if not name:
        raise SnapshotError(f"a {kind} has no name")
    spec = document.get("spec") or {}
    template = document if kind == "Pod" else spec.get("template") or {}
    if not (template.get("spec") or {}).get("containers"):
        raise SnapshotError(f"{kind} {name} has no containers")
    replicas = 1 if kind == "Pod" else spec.get(_WORKLOADS[kind], 1)
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
        raise SnapshotError(f"{kind} {name}: {_WORKLOADS[kind]} must be a number that is not negative")
    base = _base_pod(template, name, metadata.get("namespace") or namespace)
    class_name = base["spec"].get("priorityClassName") or ""
    if class_name and class_name not in priorities:
        raise SnapshotError(f'{kind} {name}: no PriorityClass "{class_name}" in the cluster')
    base["spec"]["priority"] = priorities.get(class_name, 0)
    pod = _typed(Pod, base)
    count = replicas * times
    for number in range(1, count + 1):
        each = name if kind == "Pod" and count == 1 else f"{name}-{number}"
        changed = msgspec.structs.replace(pod.metadata, name=each, uid=f"planned-{pod.metadata.namespace}-{each}")
        yield msgspec.structs.replace(pod, metadata=changed)


def _base_pod(template: Document, name: str, namespace: str) -> Document:
    given = template.get("metadata") or {}
    metadata = {key: given[key] for key in ("labels", "annotations") if given.get(key)}
    spec = {key: value for key, value in template["spec"].items() if key != "nodeName"}
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "name": name, "namespace": namespace},
        "spec": spec,
    }
    return _defaulted(document, namespace)


def _defaulted(document: Document, namespace: str) -> Document:
    """Return a copy in the hub version, with defaults and a namespace."""
    converted: Document = copy.deepcopy(in_hub_version(document))
    converted["metadata"].setdefault("namespace", namespace)
    group_version = GroupVersion.parse(converted["apiVersion"])
    defaulter = _DEFAULTERS.get(group_version.kind(converted["kind"]))
    if defaulter is not None:
        try:
            defaulter(converted, _NOW)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise SnapshotError(_not_decoded(converted, error)) from error
    return converted


def _typed(type_: Any, document: Document) -> Any:
    try:
        return from_document(type_, document)
    except msgspec.ValidationError as error:
        raise SnapshotError(_not_decoded(document, error)) from error


def _not_decoded(document: Document, error: Exception) -> str:
    return f"{document['kind']} {document['metadata'].get('name')} does not decode: {error}"


def _priorities(snapshot: Snapshot) -> dict[str, int]:
    """Return the priorities by class; that of the default class has an empty name."""
    system = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
    found = dict(system)
    for item in snapshot.documents.get("PriorityClass", ()):
        value = item.get("value")
        if isinstance(value, int):
            found[item["metadata"]["name"]] = value
            if item.get("globalDefault"):
                found[""] = value
    return found


def shape_pod(documents: Sequence[Document], snapshot: Snapshot, namespace: str = "default") -> ManifestPods:
    """Return the single Pod of a file with its templates; raises `SnapshotError`."""
    found = manifest_pods(documents, snapshot, namespace=namespace)
    if len(found.pods) != 1:
        raise SnapshotError(f"a shape is exactly one Pod; the file has {len(found.pods)}")
    return found
