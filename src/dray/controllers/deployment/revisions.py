"""The revisions of a Deployment: which ReplicaSet is the new one, what numbers them, and what is kept; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from dray.api.document import GroupVersionKind
from dray.api.types.apps_v1 import Deployment, ReplicaSet, ReplicaSetSpec
from dray.api.types.meta_v1 import LabelSelector, ObjectMeta
from dray.client.objects import controller_reference
from dray.controllers.deployment.strategy import history_limit, replicas_of, total_max
from dray.controllers.pod_control.pod_templates import normal_template, template_hash, with_labels, without_label

KIND: Final = GroupVersionKind("apps", "v1", "Deployment")
HASH_LABEL: Final = "pod-template-hash"
_PREFIX: Final = "deployment.kubernetes.io/"
REVISION: Final = _PREFIX + "revision"
REVISION_HISTORY: Final = _PREFIX + "revision-history"
DESIRED_REPLICAS: Final = _PREFIX + "desired-replicas"
MAX_REPLICAS: Final = _PREFIX + "max-replicas"
# Annotations that are not copied between Deployment and ReplicaSet.
_NOT_COPIED: Final = frozenset(
    {
        "kubectl.kubernetes.io/last-applied-configuration",
        "deprecated.deployment.rollback.to",
        REVISION,
        REVISION_HISTORY,
        DESIRED_REPLICAS,
        MAX_REPLICAS,
    }
)
HISTORY_LENGTH_MAX: Final = 2000
_NAME_LENGTH_MAX: Final = 253
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def by_age(replica_sets: Iterable[ReplicaSet]) -> list[ReplicaSet]:
    """Sort by age, oldest first."""
    return sorted(replica_sets, key=lambda item: (item.metadata.creation_timestamp or _EPOCH, item.metadata.name or ""))


def find_new(deployment: Deployment, replica_sets: Iterable[ReplicaSet]) -> ReplicaSet | None:
    """Return the oldest ReplicaSet with the Deployment's template."""
    oldest_first = by_age(replica_sets)
    wanted = without_label(deployment.spec.template, HASH_LABEL)
    # Nearly always it has the very same template.
    found = next((item for item in oldest_first if without_label(item.spec.template, HASH_LABEL) == wanted), None)
    return found or next((item for item in oldest_first if has_template_of(deployment, item)), None)


def has_template_of(deployment: Deployment, replica_set: ReplicaSet) -> bool:
    """Return whether the templates are semantically equal except for the hash label."""
    ours, theirs = (without_label(item.spec.template, HASH_LABEL) for item in (deployment, replica_set))
    return ours == theirs or normal_template(ours) == normal_template(theirs)


def revision_of(replica_set: ReplicaSet) -> int:
    """Return the revision number; 0 if there is none."""
    return _number(replica_set.metadata.annotations, REVISION) or 0


def desired_of(replica_set: ReplicaSet) -> int | None:
    """Return the Deployment's desired replicas when the ReplicaSet was last scaled."""
    return _number(replica_set.metadata.annotations, DESIRED_REPLICAS)


def total_max_of(replica_set: ReplicaSet) -> int | None:
    """Return the Deployment's maximum of Pods when the ReplicaSet was last scaled."""
    return _number(replica_set.metadata.annotations, MAX_REPLICAS)


def _number(annotations: Mapping[str, str], key: str) -> int | None:
    text = annotations.get(key, "")
    return int(text) if text.isascii() and text.isdigit() else None


def next_revision(old: Iterable[ReplicaSet]) -> int:
    """Return the number of the next revision."""
    return max((revision_of(item) for item in old), default=0) + 1


def make_replica_set(deployment: Deployment, revision: int) -> ReplicaSet:
    """Return a ReplicaSet with the Deployment's template and no replicas."""
    spec = deployment.spec
    hashed = template_hash(spec.template, deployment.status.collision_count)
    template = with_labels(spec.template, {HASH_LABEL: hashed})
    selector = LabelSelector(
        match_labels={**spec.selector.match_labels, HASH_LABEL: hashed},
        match_expressions=spec.selector.match_expressions,
    )
    name = (deployment.metadata.name or "")[: _NAME_LENGTH_MAX - 1 - len(hashed)]
    metadata = ObjectMeta(
        name=f"{name}-{hashed}",
        namespace=deployment.metadata.namespace,
        labels=template.metadata.labels,
        annotations={**_copied(deployment), REVISION: str(revision)},
        owner_references=(controller_reference(KIND, deployment.metadata),),
    )
    return ReplicaSet(
        api_version="apps/v1",
        kind="ReplicaSet",
        metadata=metadata,
        spec=ReplicaSetSpec(replicas=0, min_ready_seconds=spec.min_ready_seconds, selector=selector, template=template),
    )


def _copied(deployment: Deployment) -> dict[str, str]:
    return {key: value for key, value in deployment.metadata.annotations.items() if key not in _NOT_COPIED}


def as_revision(deployment: Deployment, replica_set: ReplicaSet, revision: int) -> ReplicaSet:
    """Return the ReplicaSet as the newest revision; a lower number it had is added to its revision history."""
    annotations = {**replica_set.metadata.annotations, **_copied(deployment)}
    before = annotations.get(REVISION)
    if revision_of(replica_set) < revision:
        annotations[REVISION] = str(revision)
        if before is not None:
            annotations[REVISION_HISTORY] = _history(annotations.get(REVISION_HISTORY, ""), before)
    changed = with_annotations(replica_set, annotations)
    min_ready = deployment.spec.min_ready_seconds
    if (changed.spec.min_ready_seconds or 0) == (min_ready or 0):
        return changed
    return msgspec.structs.replace(changed, spec=msgspec.structs.replace(changed.spec, min_ready_seconds=min_ready))


def _history(history: str, revision: str) -> str:
    """Return the history with one more revision; the oldest are dropped if it is too long."""
    numbers = [*history.split(","), revision] if history else [revision]
    while len(",".join(numbers)) > HISTORY_LENGTH_MAX:
        numbers.pop(0)
    return ",".join(numbers)


def as_scaled(deployment: Deployment, replica_set: ReplicaSet, replicas: int) -> ReplicaSet:
    """Return the ReplicaSet with that size, annotated with the Deployment's size."""
    annotations = {
        **replica_set.metadata.annotations,
        DESIRED_REPLICAS: str(replicas_of(deployment)),
        MAX_REPLICAS: str(total_max(deployment)),
    }
    changed = with_annotations(replica_set, annotations)
    if replicas_of(changed) == replicas:
        return changed
    return msgspec.structs.replace(changed, spec=msgspec.structs.replace(changed.spec, replicas=replicas))


def with_annotations(replica_set: ReplicaSet, annotations: Mapping[str, str]) -> ReplicaSet:
    """Return the ReplicaSet with these annotations; the same object if it has them."""
    if replica_set.metadata.annotations == annotations:
        return replica_set
    metadata = msgspec.structs.replace(replica_set.metadata, annotations=annotations)
    return msgspec.structs.replace(replica_set, metadata=metadata)


def surplus_history(deployment: Deployment, old: Sequence[ReplicaSet]) -> list[ReplicaSet]:
    """Return the oldest revisions beyond the limit, except those that have or may have Pods."""
    limit = history_limit(deployment)
    if limit is None:
        return []
    there = [item for item in old if item.metadata.deletion_timestamp is None]
    surplus = sorted(by_age(there), key=revision_of)[: max(len(there) - limit, 0)]
    return [item for item in surplus if _is_done(item)]


def _is_done(replica_set: ReplicaSet) -> bool:
    observed = (replica_set.metadata.generation or 0) <= (replica_set.status.observed_generation or 0)
    return observed and replica_set.status.replicas == 0 and replicas_of(replica_set) == 0
