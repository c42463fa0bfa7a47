"""The Pods and claims of a StatefulSet: names, identity, and volumes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from dray.api.codec import to_document
from dray.api.document import Document, GroupVersionKind
from dray.api.types.apps_v1 import StatefulSet
from dray.api.types.core_v1 import PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume
from dray.controllers.pod_control.ownership import Owner, selector_of
from dray.controllers.pod_control.pod_templates import make_pod, with_labels, with_name
from dray.controllers.pod_control.revisions import Revised

KIND: Final = GroupVersionKind("apps", "v1", "StatefulSet")
POD_NAME_LABEL: Final = "statefulset.kubernetes.io/pod-name"
POD_INDEX_LABEL: Final = "apps.kubernetes.io/pod-index"
# Of Pods; its value is the name of the revision.
REVISION_LABEL: Final = "controller-revision-hash"
# Of revisions.
HASH_LABEL: Final = "controller.kubernetes.io/hash"
_NAME: Final = re.compile(r"(.*)-([0-9]{1,9})")
_DELETE: Final = "Delete"


def owner_of(stateful_set: StatefulSet) -> Owner:
    """Return the StatefulSet as an owner of Pods."""
    return Owner(KIND, stateful_set.metadata, selector_of(stateful_set.spec.selector))


def revised_of(stateful_set: StatefulSet) -> Revised:
    """Return the StatefulSet as the owner of revisions."""
    spec = stateful_set.spec
    count, limit = stateful_set.status.collision_count, spec.revision_history_limit
    return Revised(KIND, stateful_set.metadata, spec.template, count, limit, HASH_LABEL)


def first_ordinal(stateful_set: StatefulSet) -> int:
    """Return the ordinal of the first Pod."""
    ordinals = stateful_set.spec.ordinals
    return (ordinals.start or 0) if ordinals is not None else 0


def replicas_wanted(stateful_set: StatefulSet) -> int:
    """Return the desired number of replicas."""
    return 1 if stateful_set.spec.replicas is None else stateful_set.spec.replicas


def ordinal_of(stateful_set: StatefulSet, pod: Pod) -> int | None:
    """Return the Pod's ordinal; None if its name is not one of the StatefulSet's."""
    found = _NAME.fullmatch(pod.metadata.name or "")
    return int(found[2]) if found is not None and found[1] == stateful_set.metadata.name else None


def is_member(name: str, pod: Pod) -> bool:
    """Return whether the Pod has a name of the StatefulSet of this name: only such orphans are adopted."""
    found = _NAME.fullmatch(pod.metadata.name or "")
    return found is not None and found[1] == name


def claim_name(stateful_set: StatefulSet, template_name: str, ordinal: int) -> str:
    """Return the name of a claim of a Pod."""
    return f"{template_name}-{stateful_set.metadata.name}-{ordinal}"


def new_pod(stateful_set: StatefulSet, template: PodTemplateSpec, revision_name: str, ordinal: int) -> Pod:
    """Return the Pod of an ordinal, from the template of a revision."""
    name = f"{stateful_set.metadata.name}-{ordinal}"
    identity = {POD_NAME_LABEL: name, POD_INDEX_LABEL: str(ordinal), REVISION_LABEL: revision_name}
    spec = msgspec.structs.replace(
        template.spec,
        hostname=name,
        subdomain=stateful_set.spec.service_name or None,
        volumes=_volumes(stateful_set, template, ordinal),
    )
    pod = make_pod(owner_of(stateful_set), with_labels(template, identity), spec=spec)
    return with_name(pod, name)


def _volumes(stateful_set: StatefulSet, template: PodTemplateSpec, ordinal: int) -> tuple[Volume, ...]:
    names = [item.metadata.name or "" for item in stateful_set.spec.volume_claim_templates]
    own = tuple(
        Volume(
            name=name,
            persistent_volume_claim=PersistentVolumeClaimVolumeSource(
                claim_name=claim_name(stateful_set, name, ordinal)
            ),
        )
        for name in names
    )
    return (*own, *(volume for volume in template.spec.volumes if volume.name not in names))


def identity_patch(pod: Pod, ordinal: int) -> Document | None:
    """Return the patch that restores the labels of the Pod's identity; None if they are right."""
    name = pod.metadata.name or ""
    wanted = {POD_NAME_LABEL: name, POD_INDEX_LABEL: str(ordinal)}
    if all(pod.metadata.labels.get(key) == value for key, value in wanted.items()):
        return None
    return {"metadata": {"labels": wanted}}


def claims_of(stateful_set: StatefulSet, ordinal: int) -> Iterator[Document]:
    """Yield the claims of a Pod, as they are created."""
    labels = stateful_set.spec.selector.match_labels
    for template in stateful_set.spec.volume_claim_templates:
        document = to_document(template)
        metadata: Document = {
            "name": claim_name(stateful_set, template.metadata.name or "", ordinal),
            "namespace": stateful_set.metadata.namespace,
            "labels": {**(document.get("metadata") or {}).get("labels", {}), **labels},
            "annotations": (document.get("metadata") or {}).get("annotations") or {},
        }
        if retention(stateful_set)[0] == _DELETE:
            metadata["ownerReferences"] = [owner_reference(stateful_set)]
        yield {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": metadata,
            "spec": document.get("spec") or {},
        }


def retention(stateful_set: StatefulSet) -> tuple[str, str]:
    """Return what happens to claims when the StatefulSet is deleted, and when it is scaled down."""
    policy = stateful_set.spec.persistent_volume_claim_retention_policy
    if policy is None:
        return "Retain", "Retain"
    return policy.when_deleted or "Retain", policy.when_scaled or "Retain"


def owner_reference(stateful_set: StatefulSet) -> Document:
    """Return the owner reference of claims that are deleted with the StatefulSet."""
    metadata = stateful_set.metadata
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": metadata.name, "uid": metadata.uid}


def owned_claim(claim: Document, stateful_set: StatefulSet, pod: Pod, *, condemned: bool) -> Document | None:
    """Return the claim with the owners that the retention policy asks for; None if it has them.

    `condemned` says that the Pod is scaled away. Other owners stay; a claim of another controller is left alone.
    """
    references = claim["metadata"].get("ownerReferences") or []
    own = {stateful_set.metadata.uid, pod.metadata.uid}
    others = [item for item in references if item.get("uid") not in own]
    if any(item.get("controller") for item in others):
        return None
    when_deleted, when_scaled = retention(stateful_set)
    wanted: list[Document] = []
    if condemned and when_scaled == _DELETE:
        wanted = [{"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}]
    elif when_deleted == _DELETE:
        wanted = [owner_reference(stateful_set)]
    held = {item.get("uid") for item in references} & own
    if held == {item["uid"] for item in wanted}:
        return None
    return {**claim, "metadata": {**claim["metadata"], "ownerReferences": [*others, *wanted]}}
