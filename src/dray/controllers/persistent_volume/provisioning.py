"""Volumes of the local provisioner: a folder on the node of a claim's first consumer. Pure."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document
from dray.api.persistent_volumes import (
    LOCAL_PROVISIONER,
    PROVISIONED_BY,
    PROVISIONED_ON,
    SELECTED_NODE,
    VOLUMES_FOLDER,
    claimed,
    class_of,
)

PROVISIONED: Final = "ProvisioningSucceeded"
FAILED: Final = "ProvisioningFailed"
HOSTNAME: Final = "kubernetes.io/hostname"


def provisioning_problem(claim: Document, node: Document | None, name: str) -> str:
    """Return why the node cannot provide a volume for the claim; empty if it can."""
    if node is None:
        return f'failed to get target node: nodes "{name}" not found'
    if VOLUMES_FOLDER not in (node["metadata"].get("annotations") or {}):
        return f'node "{name}" provides no local volumes'
    if claim["spec"].get("volumeMode") == "Block":
        return "block volumes are not supported"
    return ""


def local_volume(claim: Document, storage_class: Document, node: Document) -> Document:
    """Return the volume of a claim on a node; its name follows from the claim, so that there is only one."""
    metadata, spec = claim["metadata"], claim["spec"]
    name, node_name = f"pvc-{metadata['uid']}", node["metadata"]["name"]
    folder = node["metadata"]["annotations"][VOLUMES_FOLDER]
    hostname = (node["metadata"].get("labels") or {}).get(HOSTNAME) or node_name
    requirement = {"key": HOSTNAME, "operator": "In", "values": [hostname]}
    volume: Document = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": name,
            "labels": {PROVISIONED_ON: node_name},
            "annotations": {PROVISIONED_BY: LOCAL_PROVISIONER},
        },
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": list(spec.get("accessModes") or ()),
            "persistentVolumeReclaimPolicy": storage_class.get("reclaimPolicy") or "Delete",
            "storageClassName": class_of(claim),
            "volumeMode": "Filesystem",
            "local": {"path": f"{folder}/{name}"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}},
        },
    }
    bound = claimed(volume, claim)
    # Dynamically provisioned for this claim, not chosen by the controller from several.
    return {**bound, "metadata": volume["metadata"]}


def without_node(claim: Document) -> Document:
    """Return the claim without its selected node, so that the scheduler selects another."""
    annotations = {key: value for key, value in claim["metadata"]["annotations"].items() if key != SELECTED_NODE}
    return {**claim, "metadata": {**claim["metadata"], "annotations": annotations}}
