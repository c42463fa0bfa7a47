"""A PodGroup to explain: its Pods, and what keeps all of them from being scheduled. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dray.api.codec import from_document
from dray.api.document import Document, NamespacedName
from dray.api.pod_claims import is_pod_done
from dray.api.pod_groups import group_key_of, group_name_of, min_count
from dray.api.types.core_v1 import Pod
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.sim.explain.answers import Stage, Verdict
from dray.sim.explain.refusals import not_found, similar_object
from dray.sim.snapshot import Snapshot

POD_GROUP: Final = "PodGroup"
WORKLOAD: Final = "Workload"


@dataclass(frozen=True, slots=True)
class Group:
    """A PodGroup with its unfinished Pods."""

    key: NamespacedName
    group: PodGroup
    pods: tuple[Pod, ...]

    @property
    def needed(self) -> int:
        """Return how many Pods must have a node."""
        return min_count(self.group)

    @property
    def placed(self) -> tuple[Pod, ...]:
        """Return the Pods that have a node."""
        return tuple(pod for pod in self.pods if pod.spec.node_name)

    @property
    def waiting(self) -> tuple[Pod, ...]:
        """Return the Pods that have none, and are not being deleted."""
        return tuple(pod for pod in self.pods if not pod.spec.node_name and pod.metadata.deletion_timestamp is None)


def find_pod_group(snapshot: Snapshot, key: NamespacedName) -> Group:
    """Find a PodGroup; raise `SnapshotError` if it does not exist."""
    found = lookup_pod_group(snapshot, key)
    if found is None:
        raise not_found(snapshot, POD_GROUP, key)
    return found


def groups_of_workload(snapshot: Snapshot, key: NamespacedName) -> list[Group]:
    """Return the PodGroups that were made from a Workload; raise `SnapshotError` if it does not exist."""
    if not any(_key(item) == key for item in snapshot.documents.get(WORKLOAD, ())):
        raise not_found(snapshot, WORKLOAD, key)
    groups = [_group(snapshot, item) for item in snapshot.documents.get(POD_GROUP, ())]
    return [
        item
        for item in groups
        if item.key.namespace == key.namespace
        and item.group.spec.workload_ref is not None
        and item.group.spec.workload_ref.workload_name == key.name
    ]


def lookup_pod_group(snapshot: Snapshot, key: NamespacedName) -> Group | None:
    """Return a PodGroup; None if it does not exist."""
    return next((_group(snapshot, item) for item in snapshot.documents.get(POD_GROUP, ()) if _key(item) == key), None)


def all_pod_groups(snapshot: Snapshot) -> list[Group]:
    """Return all PodGroups."""
    return [_group(snapshot, item) for item in snapshot.documents.get(POD_GROUP, ())]


def _group(snapshot: Snapshot, document: Document) -> Group:
    key = _key(document)
    pods = tuple(pod for pod in snapshot.pods if group_key_of(pod) == key and not is_pod_done(pod))
    return Group(key, from_document(PodGroup, document), pods)


def _key(document: Document) -> NamespacedName:
    return NamespacedName(document["metadata"].get("namespace") or "", document["metadata"]["name"])


def group_obstacle(snapshot: Snapshot, pod: Pod) -> Verdict | None:
    """Return why the group of a Pod is not tried at all; None if it is, or the Pod has none."""
    key = group_key_of(pod)
    if key is None:
        return None
    if not snapshot.covers(POD_GROUP, "Pod") or (POD_GROUP not in snapshot.documents and _is_tried(pod)):
        # The PodGroup is not part of the snapshot, and may exist.
        return None
    found = lookup_pod_group(snapshot, key)
    if found is None:
        return Verdict(
            Stage.GATE,
            f'waits for its PodGroup "{key.name}", which does not exist',
            f"create the PodGroup{similar_object(snapshot, POD_GROUP, key.namespace, key.name)}",
        )
    missing = too_few_pods(found)
    return None if missing is None else Verdict(Stage.GATE, f"waits for its gang: {missing.text}", missing.action)


def _is_tried(pod: Pod) -> bool:
    """Return whether the scheduler has looked for a node for the Pod."""
    return any(item.type == "PodScheduled" and item.reason == "Unschedulable" for item in pod.status.conditions)


def too_few_pods(group: Group) -> Verdict | None:
    """Return that a gang has fewer Pods than it needs; None if it has enough."""
    if len(group.pods) >= group.needed:
        return None
    text = f"only {len(group.pods)} of the {group.needed} Pods that minCount asks for exist"
    return Verdict(Stage.GATE, text, f"create {group.needed - len(group.pods)} more, or lower minCount")


def group_of(snapshot: Snapshot, pod: Pod) -> Group | None:
    """Return the group of a Pod that waits with others."""
    key = group_key_of(pod)
    return None if key is None or not group_name_of(pod) else lookup_pod_group(snapshot, key)
