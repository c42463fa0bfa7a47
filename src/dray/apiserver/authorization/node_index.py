"""Index of nodes: the pods bound to each, the objects those pods refer to, and its resource slices.

Updated incrementally from Pods, ResourceSlices and PersistentVolumes; a query takes two lookups.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec

from dray.api.document import Document, NamespacedName, key_of
from dray.api.persistent_volumes import is_removable, provisioned_node

MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"

# Key of resourceclaims of cdi.k8s.io, since those of resource.k8s.io have the same name.
CLASSIC_CLAIMS: Final = "resourceclaims.cdi.k8s.io"
_CLAIMS: Final = "persistentvolumeclaims"

# A resource (plural) and the object's key.
Reference: TypeAlias = tuple[str, NamespacedName]
_NOTHING: Final[frozenset[Reference]] = frozenset()


class BoundPod(msgspec.Struct, frozen=True):
    """The facts about a pod that authorization needs."""

    node_name: str
    uid: str
    references: frozenset[Reference]
    # The audiences of the tokens in its projected volumes; "" is the API server's own.
    audiences: frozenset[str] = frozenset()


@dataclass(slots=True)
class NodeIndex:
    """Changed only by the `apply_` and `remove_` methods."""

    # Every pod, including unscheduled ones.
    _pods: dict[NamespacedName, BoundPod] = field(default_factory=dict)
    # Number of a node's pods that refer to an object.
    _counts: dict[tuple[str, Reference], int] = field(default_factory=dict)
    # The nodeName of every slice that has one.
    _slices: dict[str, str] = field(default_factory=dict)
    _node_uids: dict[str, str] = field(default_factory=dict)
    # The claim of every persistent volume that has one.
    _volumes: dict[str, NamespacedName] = field(default_factory=dict)
    # The node of every volume that was provisioned on one, and whether its data is to be deleted.
    _local_volumes: dict[str, tuple[str, bool]] = field(default_factory=dict)

    def apply_pod(self, document: Document) -> None:
        """Add or update a pod."""
        key = key_of(document)
        pod, known = _read_pod(document), self._pods.get(key)
        if known == pod:
            return
        if known is not None and known.node_name:
            self.remove_pod(key)
        self._pods[key] = pod
        if pod.node_name:
            for reference in pod.references:
                counted = (pod.node_name, reference)
                self._counts[counted] = self._counts.get(counted, 0) + 1

    def remove_pod(self, key: NamespacedName) -> None:
        """Remove a pod; unknown ones are ignored."""
        pod = self._pods.pop(key, None)
        if pod is None or not pod.node_name:
            return
        for reference in pod.references:
            counted = (pod.node_name, reference)
            left = self._counts[counted] - 1
            if left:
                self._counts[counted] = left
            else:
                del self._counts[counted]

    def apply_slice(self, document: Document) -> None:
        """Add or update a resource slice."""
        name, node_name = document["metadata"]["name"], (document.get("spec") or {}).get("nodeName")
        if node_name:
            self._slices[name] = node_name
        else:
            self._slices.pop(name, None)

    def remove_slice(self, name: str) -> None:
        """Remove a resource slice."""
        self._slices.pop(name, None)

    def apply_volume(self, document: Document) -> None:
        """Add or update a persistent volume."""
        name, claim = document["metadata"]["name"], (document.get("spec") or {}).get("claimRef")
        if claim:
            self._volumes[name] = NamespacedName(claim.get("namespace") or "", claim.get("name") or "")
        else:
            self._volumes.pop(name, None)
        node_name = provisioned_node(document)
        if node_name:
            self._local_volumes[name] = (node_name, is_removable(document))
        else:
            self._local_volumes.pop(name, None)

    def remove_volume(self, name: str) -> None:
        """Remove a persistent volume."""
        self._volumes.pop(name, None)
        self._local_volumes.pop(name, None)

    def apply_node(self, document: Document) -> None:
        """Add or update a node."""
        self._node_uids[document["metadata"]["name"]] = document["metadata"].get("uid", "")

    def remove_node(self, name: str) -> None:
        """Remove a node."""
        self._node_uids.pop(name, None)

    def pod(self, key: NamespacedName) -> BoundPod | None:
        """Return the pod, or None."""
        return self._pods.get(key)

    def node_uid(self, name: str) -> str | None:
        """Return the node's uid, or None when it is not registered."""
        return self._node_uids.get(name)

    def owns_slice(self, node_name: str, name: str) -> bool:
        """Report whether the existing slice belongs to the node."""
        return self._slices.get(name) == node_name

    def may_delete_volume(self, node_name: str, name: str) -> bool:
        """Report whether the volume was provisioned on the node, and is to be deleted."""
        return self._local_volumes.get(name) == (node_name, True)

    def uses(self, node_name: str, resource: str, key: NamespacedName) -> bool:
        """Report whether a pod on the node is the object or refers to it."""
        if resource == "pods":
            pod = self._pods.get(key)
            return pod is not None and pod.node_name == node_name
        if resource == "persistentvolumes":
            claim = self._volumes.get(key.name)
            return claim is not None and self.uses(node_name, _CLAIMS, claim)
        return (node_name, (resource, key)) in self._counts


def _read_pod(document: Document) -> BoundPod:
    metadata, spec = document["metadata"], document.get("spec") or {}
    node_name, uid = spec.get("nodeName") or "", metadata.get("uid") or ""
    # A mirror pod is created by the node itself: its references grant no access.
    if not node_name or MIRROR_ANNOTATION in (metadata.get("annotations") or {}):
        return BoundPod(node_name, uid, _NOTHING)
    namespace = metadata.get("namespace", "")
    references = [(resource, NamespacedName(namespace, name)) for resource, name in _names(document) if name]
    return BoundPod(node_name, uid, frozenset(references), frozenset(_audiences(spec)))


def _audiences(spec: Document) -> list[str]:
    found: list[str] = []
    for volume in spec.get("volumes") or ():
        for source in (volume.get("projected") or {}).get("sources") or ():
            token = source.get("serviceAccountToken")
            if token is not None:
                found.append(token.get("audience") or "")
    return found


def _names(pod: Document) -> list[tuple[str, str]]:
    """Return the resources and names that a pod refers to; a name may be empty."""
    spec = pod.get("spec") or {}
    found = secret_and_config_names(spec)
    found.append(("serviceaccounts", spec.get("serviceAccountName") or ""))
    for volume in spec.get("volumes") or ():
        if claim := volume.get("persistentVolumeClaim"):
            found.append((_CLAIMS, claim.get("claimName") or ""))
        if volume.get("ephemeral"):
            found.append((_CLAIMS, f"{pod['metadata'].get('name')}-{volume.get('name')}"))
    for claim in spec.get("resourceClaims") or ():
        found.append(("resourceclaims", claim.get("resourceClaimName") or ""))
        # A name may be that of a claim of either group; one from an inline template is always a classic claim.
        made = f"{pod['metadata'].get('name')}-{claim.get('name')}" if claim.get("template") else ""
        found.append((CLASSIC_CLAIMS, claim.get("resourceClaimName") or made))
    status = pod.get("status") or {}
    for generated in status.get("resourceClaimStatuses") or ():
        found.append(("resourceclaims", generated.get("resourceClaimName") or ""))
    if generated := status.get("extendedResourceClaimStatus"):
        found.append(("resourceclaims", generated.get("resourceClaimName") or ""))
    return found


def secret_and_config_names(spec: Document) -> list[tuple[str, str]]:
    """Return the secrets and config maps that a pod's spec refers to; a name may be empty."""
    found = [("secrets", secret.get("name") or "") for secret in spec.get("imagePullSecrets") or ()]
    for kind in ("containers", "initContainers", "ephemeralContainers"):
        for container in spec.get(kind) or ():
            _add_container_names(container, found)
    for volume in spec.get("volumes") or ():
        _add_volume_names(volume, found)
    return found


def _add_container_names(container: Document, found: list[tuple[str, str]]) -> None:
    for source in container.get("envFrom") or ():
        found.append(("secrets", _name(source.get("secretRef"))))
        found.append(("configmaps", _name(source.get("configMapRef"))))
    for variable in container.get("env") or ():
        source = variable.get("valueFrom")
        if source:
            found.append(("secrets", _name(source.get("secretKeyRef"))))
            found.append(("configmaps", _name(source.get("configMapKeyRef"))))


# Volume types with credentials in a secret.
_SECRET_VOLUMES: Final = frozenset(
    {"azureFile", "cephfs", "cinder", "csi", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos"}
)


def _add_volume_names(volume: Document, found: list[tuple[str, str]]) -> None:
    for kind, source in volume.items():
        if not source:
            continue
        if kind == "projected":
            for part in source.get("sources") or ():
                if secret := part.get("secret"):
                    found.append(("secrets", _name(secret)))
                if config_map := part.get("configMap"):
                    found.append(("configmaps", _name(config_map)))
        elif kind == "secret":
            found.append(("secrets", source.get("secretName") or ""))
        elif kind == "configMap":
            found.append(("configmaps", _name(source)))
        elif kind in _SECRET_VOLUMES:
            found.append(("secrets", source.get("secretName") or ""))
            found.append(("secrets", _name(source.get("secretRef"))))
            found.append(("secrets", _name(source.get("nodePublishSecretRef"))))


def _name(reference: Any) -> str:
    return (reference or {}).get("name") or ""
