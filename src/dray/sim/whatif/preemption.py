"""Preemption in a what-if run: who may preempt, and who was evicted for whom."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from dray.api.document import Document
from dray.api.pod_claims import is_pod_done
from dray.scheduler.config import PluginSet, ProfileConfig
from dray.sim.snapshot import Snapshot

PLUGIN: Final = "DefaultPreemption"
# Higher priorities are those of the system.
_PRIORITY_MAX: Final = 1_000_000_000
RAISED_CLASS: Final = "dray-simulate-preempt"
_PREEMPTED: Final = "Preempted"


class Preemption(enum.StrEnum):
    """Which Pods may evict others."""

    # Those of a higher priority, as in the cluster.
    BY_PRIORITY = "by-priority"
    NEVER = "never"
    # The pending Pods and those of the manifests, as if their priority were above that of all others.
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Eviction:
    """A Pod that was evicted, and the one that gets its place."""

    namespace: str
    name: str
    node: str
    # `namespace/name`
    preemptor: str
    # The kind of the controller that creates it again; empty if none does.
    controller: str = ""


def with_preemption(profile: ProfileConfig, preemption: Preemption) -> ProfileConfig:
    """Return the profile, without preemption if nobody may preempt."""
    if preemption is not Preemption.NEVER:
        return profile
    disabled = frozenset({PLUGIN})
    points = {
        name: PluginSet(tuple(item for item in chosen.enabled if item[0] != PLUGIN), chosen.disabled)
        for name, chosen in profile.points.items()
    }
    given = profile.multi_point
    enabled = tuple(item for item in given.enabled if item[0] != PLUGIN)
    return replace(profile, multi_point=PluginSet(enabled, given.disabled | disabled), points=points)


def with_raised_priority(snapshot: Snapshot, manifests: Sequence[Document]) -> tuple[Snapshot, list[Document]]:
    """Return the snapshot and the manifests with Pods that may preempt all others of users."""
    priorities = [pod.spec.priority or 0 for pod in snapshot.pods]
    value = min(max((item for item in priorities if item < _PRIORITY_MAX), default=0) + 1, _PRIORITY_MAX)
    documents = {kind: list(items) for kind, items in snapshot.documents.items()}
    pods = documents.get("Pod", ())
    documents["Pod"] = [_raised(pod, value) if _is_pending(pod) else pod for pod in pods]
    # The Pods of a group have its priority, so a group of which some run keeps its own.
    running = {_group_of(pod) for pod in pods if not _is_pending(pod)}
    documents["PodGroup"] = [
        item if _key_of(item) in running else {**item, "spec": item["spec"] | _class_and_value(value)}
        for item in documents.get("PodGroup", ())
    ]
    raised_class = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": RAISED_CLASS},
        "value": value,
    }
    documents["PriorityClass"] = [*documents.get("PriorityClass", ()), raised_class]
    return Snapshot(documents, snapshot.hidden), [_with_class(item) for item in manifests]


def _key_of(document: Document) -> tuple[str, str]:
    return document["metadata"].get("namespace") or "", document["metadata"]["name"]


def _group_of(pod: Document) -> tuple[str, str]:
    group = pod["spec"].get("schedulingGroup") or {}
    return pod["metadata"].get("namespace") or "", group.get("podGroupName") or ""


def _class_and_value(value: int) -> Document:
    return {"priority": value, "priorityClassName": RAISED_CLASS}


def _is_pending(pod: Document) -> bool:
    phase = (pod.get("status") or {}).get("phase", "Pending")
    return phase == "Pending" and not pod["spec"].get("nodeName")


def _raised(pod: Document, value: int) -> Document:
    spec = {**pod["spec"], "priority": value, "priorityClassName": RAISED_CLASS, "preemptionPolicy": _POLICY}
    return {**pod, "spec": spec}


_POLICY: Final = "PreemptLowerPriority"


def _with_class(document: Document) -> Document:
    """Set the class of a Pod, or of the template of a workload; the server sets the priority."""
    spec = document.get("spec")
    if not isinstance(spec, dict):
        return document
    if document.get("kind") in ("Pod", "PodGroup"):
        return {**document, "spec": _with_class_name(spec)}
    template = spec.get("template")
    if isinstance(template, dict) and isinstance(template.get("spec"), dict):
        changed = {**template, "spec": _with_class_name(template["spec"])}
        return {**document, "spec": {**spec, "template": changed}}
    return document


def _with_class_name(spec: Mapping[str, Any]) -> Document:
    kept = {name: value for name, value in spec.items() if name not in ("priority", "preemptionPolicy")}
    return {**kept, "priorityClassName": RAISED_CLASS}


def evictions(before: Snapshot, events: Iterable[Document]) -> tuple[Eviction, ...]:
    """Return the Pods that were running before and were preempted."""
    running = {pod.metadata.uid: pod for pod in before.pods if pod.spec.node_name and not is_pod_done(pod)}
    found = []
    for event in events:
        if event.get("reason") != _PREEMPTED:
            continue
        victim = running.pop((event.get("involvedObject") or {}).get("uid"), None)
        if victim is None:
            continue
        taker = event.get("related") or {}
        controller = next((owner.kind for owner in victim.metadata.owner_references if owner.controller), "")
        preemptor = f"{taker.get('namespace')}/{taker.get('name')}"
        namespace, name = victim.metadata.namespace or "", victim.metadata.name or ""
        found.append(Eviction(namespace, name, victim.spec.node_name or "", preemptor, controller))
    return tuple(sorted(found, key=lambda item: (item.preemptor, item.namespace, item.name)))
