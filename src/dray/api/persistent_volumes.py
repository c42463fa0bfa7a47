"""Persistent volumes and their claims: what is bound to what, and which volume suits a claim. Pure.

Shared by the scheduler, which chooses volumes for claims that wait for their first consumer, and by the controller,
which binds the others.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final

from dray.api.document import Document
from dray.api.quantity import Quantity
from dray.api.selectors import LabelSelector, SelectorError
from dray.api.types.core_v1 import Pod, Volume

WAIT_FOR_FIRST_CONSUMER: Final = "WaitForFirstConsumer"
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
# Annotations: the binding is complete; the reference was written by a component, not by a user.
BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
YES: Final = "yes"
# The provisioner of folders on nodes.
LOCAL_PROVISIONER: Final = "dray.dev/local"
# Annotation of a claim: the node of its first consumer, on which its volume is to be provisioned.
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
# Annotation of a volume: its provisioner.
PROVISIONED_BY: Final = "pv.kubernetes.io/provisioned-by"
# Label of a volume of the local provisioner: the node that has its folder, and removes it.
PROVISIONED_ON: Final = "dray.dev/provisioned-on"
# Annotation of a Node: the folder of its volumes; nodes without it provision none.
VOLUMES_FOLDER: Final = "dray.dev/local-volumes"
PVC_PROTECTION: Final = "kubernetes.io/pvc-protection"
PV_PROTECTION: Final = "kubernetes.io/pv-protection"
CLASS_ANNOTATION: Final = "volume.beta.kubernetes.io/storage-class"
DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
DEFAULT_CLASS_ANNOTATIONS: Final = (DEFAULT_CLASS, "storageclass.beta.kubernetes.io/is-default-class")
_FILESYSTEM: Final = "Filesystem"


def claim_name(pod: Pod, volume: Volume) -> str:
    """Return the name of the claim that a volume of a Pod stands for; empty if it stands for none."""
    if volume.persistent_volume_claim is not None:
        return volume.persistent_volume_claim.claim_name
    return f"{pod.metadata.name}-{volume.name}" if volume.ephemeral is not None else ""


def claim_names(pod: Pod) -> Sequence[tuple[str, bool]]:
    """Return the names of the Pod's volume claims, and whether each belongs to an ephemeral volume."""
    found: list[tuple[str, bool]] = []
    for volume in pod.spec.volumes:
        # Most volumes stand for none.
        if volume.persistent_volume_claim is None and volume.ephemeral is None:
            continue
        if name := claim_name(pod, volume):
            found.append((name, volume.ephemeral is not None))
    return found


def is_claim_used_by(claim: Document, pod: Pod) -> bool:
    """Return whether a Pod keeps a claim from being deleted.

    Only a scheduled Pod does, even when it has finished: no node starts a Pod whose claim is being deleted. The claim
    of an ephemeral volume is no longer in use when the node has shut its Pod down.
    """
    if not pod.spec.node_name or pod.metadata.namespace != claim["metadata"].get("namespace"):
        return False
    return any(
        name == claim["metadata"]["name"] and (not is_ephemeral or (_owns(pod, claim) and not _is_shut_down(pod)))
        for name, is_ephemeral in claim_names(pod)
    )


def _owns(pod: Pod, claim: Document) -> bool:
    owners = claim["metadata"].get("ownerReferences") or ()
    return any(owner.get("controller") and owner.get("uid") == pod.metadata.uid for owner in owners)


def _is_shut_down(pod: Pod) -> bool:
    metadata = pod.metadata
    return metadata.deletion_timestamp is not None and metadata.deletion_grace_period_seconds == 0


def _annotation(item: Document, name: str) -> str:
    """Return an annotation of a volume or claim; empty if it has none of the name."""
    return (item["metadata"].get("annotations") or {}).get(name) or ""


def phase_of(item: Document) -> str:
    """Return the phase of a volume or claim; empty if it has none yet."""
    return (item.get("status") or {}).get("phase") or ""


def class_of(item: Document) -> str:
    """Return the storage class of a volume or claim; empty if it has none."""
    return _annotation(item, CLASS_ANNOTATION) or item["spec"].get("storageClassName") or ""


def is_delayed(storage_class: Document | None) -> bool:
    """Return whether claims of the class are bound when a Pod that uses them is scheduled."""
    return storage_class is not None and storage_class.get("volumeBindingMode") == WAIT_FOR_FIRST_CONSUMER


def provisioner_of(storage_class: Document | None) -> str:
    """Return the provisioner of a class; empty if it has none."""
    found: str = (storage_class or {}).get("provisioner") or ""
    return "" if found == NO_PROVISIONER else found


def selected_node(claim: Document) -> str:
    """Return the node on which the volume of a claim is to be provisioned; empty if none has been selected."""
    return _annotation(claim, SELECTED_NODE)


def is_provisioned_locally(volume: Document) -> bool:
    """Return whether the volume is a folder that the local provisioner created."""
    return _annotation(volume, PROVISIONED_BY) == LOCAL_PROVISIONER


def provisioned_node(volume: Document) -> str:
    """Return the node of a locally provisioned volume; empty for other volumes."""
    return (volume["metadata"].get("labels") or {}).get(PROVISIONED_ON) or "" if is_provisioned_locally(volume) else ""


def is_removable(volume: Document) -> bool:
    """Return whether a locally provisioned volume has been released, and its data is to be deleted."""
    policy = volume["spec"].get("persistentVolumeReclaimPolicy")
    return is_provisioned_locally(volume) and phase_of(volume) == "Released" and policy == "Delete"


def has_known_nodes(storage_class: Document | None) -> bool:
    """Return whether it is known which nodes can have volumes of the class: no driver decides it."""
    provisioners = (NO_PROVISIONER, LOCAL_PROVISIONER)
    return storage_class is not None and storage_class.get("provisioner") in provisioners


def annotation_of(item: Document, name: str) -> bool:
    """Return whether an annotation is set."""
    return name in (item["metadata"].get("annotations") or {})


def with_annotations(item: Document, *names: str) -> Document:
    """Return the object with annotations that say yes."""
    metadata = item["metadata"]
    annotations = {**(metadata.get("annotations") or {}), **dict.fromkeys(names, YES)}
    return {**item, "metadata": {**metadata, "annotations": annotations}}


def is_claimed_by(volume: Document, claim: Document) -> bool:
    """Return whether the volume names the claim, or one of that name that may not have existed yet."""
    reference = volume["spec"].get("claimRef")
    metadata = claim["metadata"]
    if not reference or (reference.get("namespace"), reference.get("name")) != (
        metadata.get("namespace"),
        metadata["name"],
    ):
        return False
    return not reference.get("uid") or reference["uid"] == metadata.get("uid")


def claimed(volume: Document, claim: Document) -> Document:
    """Return the volume with a reference to the claim."""
    if is_claimed_by(volume, claim) and volume["spec"]["claimRef"].get("uid"):
        return volume
    metadata = claim["metadata"]
    reference = {
        "kind": "PersistentVolumeClaim",
        "apiVersion": "v1",
        "namespace": metadata.get("namespace"),
        "name": metadata["name"],
        "uid": metadata.get("uid"),
        "resourceVersion": metadata.get("resourceVersion"),
    }
    by_user = bool(volume["spec"].get("claimRef"))
    changed = {**volume, "spec": {**volume["spec"], "claimRef": reference}}
    return changed if by_user else with_annotations(changed, BOUND_BY_CONTROLLER)


def requested_storage(claim: Document) -> Quantity:
    """Return how much storage the claim asks for."""
    requests = (claim["spec"].get("resources") or {}).get("requests") or {}
    return Quantity.parse(requests.get("storage") or "0")


def _capacity(volume: Document) -> Quantity:
    return Quantity.parse((volume["spec"].get("capacity") or {}).get("storage") or "0")


def suits(volume: Document, claim: Document) -> bool:
    """Return whether a volume has the class, mode, access modes, labels and size that a claim asks for."""
    wanted, offered = claim["spec"], volume["spec"]
    if class_of(volume) != class_of(claim):
        return False
    if (offered.get("volumeMode") or _FILESYSTEM) != (wanted.get("volumeMode") or _FILESYSTEM):
        return False
    if not set(wanted.get("accessModes") or ()) <= set(offered.get("accessModes") or ()):
        return False
    return requested_storage(claim).nanos <= _capacity(volume).nanos and _is_selected(volume, wanted.get("selector"))


def _is_selected(volume: Document, selector: Document | None) -> bool:
    if not selector:
        return True
    try:
        return LabelSelector.from_document(selector).matches(volume["metadata"].get("labels") or {})
    except SelectorError:
        return False


def smallest_match(
    claim: Document,
    volumes: Iterable[Document],
    *,
    taken: Container[str] = (),
    accepts: Callable[[Document], bool] = lambda _volume: True,
) -> Document | None:
    """Return the volume that a claim gets: one that names it, else the smallest available one that suits it.

    Of several of the same size the first by name. `taken` are names of volumes that others are about to get.
    """
    found: Document | None = None
    for volume in sorted(volumes, key=lambda item: (_capacity(item).nanos, item["metadata"]["name"])):
        if volume["metadata"].get("deletionTimestamp") or not accepts(volume):
            continue
        if volume["spec"].get("claimRef"):
            if is_claimed_by(volume, claim):
                return volume
        elif (
            found is None
            and phase_of(volume) == "Available"
            and volume["metadata"]["name"] not in taken
            and suits(volume, claim)
        ):
            found = volume
    return found
