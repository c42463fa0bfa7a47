"""NodeRestriction: checks of a node's writes that need the object. Texts are Kubernetes' own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NoReturn, TypeAlias

from dray.api.document import Document, GroupResource, NamespacedName
from dray.api.errors import ForbiddenError, NotFoundError
from dray.api.field_errors import quote
from dray.apiserver.authorization.escalation import Authorize
from dray.apiserver.authorization.node import NODE_LEASES, node_name_of
from dray.apiserver.authorization.node_index import MIRROR_ANNOTATION, BoundPod, NodeIndex, secret_and_config_names
from dray.apiserver.authorization.rbac import Decision
from dray.apiserver.request import Attributes

CREATE: Final = "CREATE"
UPDATE: Final = "UPDATE"
DELETE: Final = "DELETE"
# The RBAC verb for further audiences, which are the resources of such a rule.
_AUDIENCE_VERB: Final = "request-serviceaccounts-token-audience"

# Labels of these names and prefixes describe the machine, so its agent may set them.
_KUBELET_LABELS: Final = frozenset(
    {
        "kubernetes.io/hostname",
        "kubernetes.io/arch",
        "kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/instance-type",
        "node.kubernetes.io/windows-build",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
    }
)
_KUBELET_PREFIXES: Final = ("kubelet.kubernetes.io", "node.kubernetes.io")
_RESTRICTED_PREFIX: Final = "node-restriction.kubernetes.io"


class _Write:
    """One write by a node."""

    __slots__ = ("attributes", "authorize", "index", "new", "node_name", "old")

    def __init__(
        self,
        attributes: Attributes,
        node_name: str,
        objects: tuple[Document | None, Document | None],
        index: NodeIndex,
        authorize: Authorize,
    ) -> None:
        self.attributes, self.node_name, self.index, self.authorize = attributes, node_name, index, authorize
        self.new, self.old = objects

    @property
    def operation(self) -> str:
        """Return the operation, derived from the objects, since a patch may create."""
        if self.new is None:
            return DELETE
        return CREATE if self.old is None else UPDATE

    @property
    def name(self) -> str:
        """Return the object's name, which on create only the object may have."""
        metadata = (self.new or self.old or {}).get("metadata") or {}
        return self.attributes.name or metadata.get("name") or metadata.get("generateName") or "Unknown"

    def forbid(self, reason: str) -> NoReturn:
        resource = GroupResource(self.attributes.group, self.attributes.resource)
        raise ForbiddenError(resource, self.name, reason)

    def forbid_node(self, reason: str) -> NoReturn:
        self.forbid(f'node "{self.node_name}" {reason}')

    def pod(self, name: str) -> BoundPod:
        pod = self.index.pod(NamespacedName(self.attributes.namespace, name))
        if pod is None:
            raise NotFoundError(GroupResource("", "pods"), name)
        return pod


def check_node_write(
    attributes: Attributes,
    new: Document | None,
    old: Document | None,
    index: NodeIndex,
    authorize: Authorize = lambda _attributes: Decision(allowed=False),
) -> None:
    """Reject a node's write to objects of others; a delete has no `new`, a create no `old`.

    For subresources that create something beside the object (eviction, token) `new` is what was posted.
    """
    node_name = node_name_of(attributes.user)
    if node_name is None:
        return
    write = _Write(attributes, node_name, (new, old), index, authorize)
    if not node_name:
        write.forbid(f'could not determine node from user "{attributes.user.name}"')
    check = _CHECKS.get((attributes.group, attributes.resource))
    if check is not None:
        check(write)


def _check_pods(write: _Write) -> None:
    match write.attributes.subresource:
        case "":
            _check_pod(write)
        case "status":
            _check_pod_status(write)
        case "eviction":
            _check_eviction(write)
        case other:
            write.forbid(f"unexpected pod subresource \"{other}\", only 'status' and 'eviction' are allowed")


def _check_pod(write: _Write) -> None:
    if write.operation == CREATE:
        _check_mirror_pod(write)
    elif write.operation == DELETE:
        if ((write.old or {}).get("spec") or {}).get("nodeName") != write.node_name:
            write.forbid_node("can only delete pods with spec.nodeName set to itself")
    else:
        write.forbid(
            f'unexpected operation "{UPDATE}", node "{write.node_name}" can only create and delete mirror pods'
        )


def _check_mirror_pod(write: _Write) -> None:
    pod = write.new or {}
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    if MIRROR_ANNOTATION not in (metadata.get("annotations") or {}):
        write.forbid(
            f'pod does not have "{MIRROR_ANNOTATION}" annotation, node "{write.node_name}" can only create mirror pods'
        )
    if spec.get("nodeName") != write.node_name:
        write.forbid_node("can only create pods with spec.nodeName set to itself")
    _check_mirror_owner(write, metadata.get("ownerReferences") or [])
    for what in _foreign_references(spec):
        write.forbid_node(f"can not create pods that reference {what}")


def _check_mirror_owner(write: _Write, owners: list[Document]) -> None:
    if len(owners) > 1:
        write.forbid_node("can only create pods with a single owner reference set to itself")
    owner = owners[0] if owners else {}
    if (owner.get("apiVersion"), owner.get("kind"), owner.get("name")) != ("v1", "Node", write.node_name):
        write.forbid_node("can only create pods with an owner reference set to itself")
    if not owner.get("controller"):
        write.forbid_node("can only create pods with a controller owner reference set to itself")
    if owner.get("blockOwnerDeletion"):
        write.forbid_node("must not set blockOwnerDeletion on an owner reference")
    uid = write.index.node_uid(write.node_name)
    if uid is None:
        raise NotFoundError(GroupResource("", "nodes"), write.node_name)
    if owner.get("uid") != uid:
        write.forbid(f"node {write.node_name} UID mismatch: expected {owner.get('uid') or ''} got {uid}")


def _foreign_references(spec: Document) -> list[str]:
    """Return the kinds of objects that a mirror pod refers to, which are all forbidden."""
    named = {resource for resource, name in secret_and_config_names(spec) if name}
    volumes = spec.get("volumes") or []
    found = {
        "a service account": bool(spec.get("serviceAccountName")),
        "secrets": "secrets" in named,
        "configmaps": "configmaps" in named,
        "clustertrustbundles": any(
            "clusterTrustBundle" in source
            for volume in volumes
            for source in (volume.get("projected") or {}).get("sources") or ()
        ),
        "persistentvolumeclaims": any("persistentVolumeClaim" in volume for volume in volumes),
        "resourceclaims": bool(spec.get("resourceClaims")),
    }
    return [what for what, there in found.items() if there]


def _check_pod_status(write: _Write) -> None:
    if write.operation != UPDATE:
        write.forbid(f'unexpected operation "{write.operation}"')
    new, old = write.new or {}, write.old or {}
    if (old.get("spec") or {}).get("nodeName") != write.node_name:
        write.forbid_node("can only update pod status for pods with spec.nodeName set to itself")
    if _labels(new) != _labels(old):
        write.forbid_node("cannot update labels through pod status")
    if _claim_statuses(new) != _claim_statuses(old):
        write.forbid_node("cannot update resource claim statues")
    if _extended_claim_status(new) != _extended_claim_status(old):
        write.forbid_node("cannot update extended resource claim status")
    if _node_resource_statuses(new) != _node_resource_statuses(old):
        write.forbid_node("cannot update node allocatable resource claim statuses")


def _extended_claim_status(pod: Document) -> Document | None:
    """Return the claim of a Pod's extended resources, which a node may read because the status names it."""
    status: Document | None = (pod.get("status") or {}).get("extendedResourceClaimStatus")
    return status or None


def _node_resource_statuses(pod: Document) -> list[Document]:
    return (pod.get("status") or {}).get("nodeAllocatableResourceClaimStatuses") or []


def _claim_statuses(pod: Document) -> list[tuple[str, str | None]]:
    statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    return [(status.get("name", ""), status.get("resourceClaimName")) for status in statuses]


def _check_eviction(write: _Write) -> None:
    name = write.attributes.name or ((write.new or {}).get("metadata") or {}).get("name")
    if not name:
        write.forbid("could not determine pod from request data")
    if write.pod(name).node_name != write.node_name:
        write.forbid(f"node {write.node_name} can only evict pods with spec.nodeName set to itself")


def _check_node(write: _Write) -> None:
    if write.name != write.node_name:
        write.forbid_node(f'is not allowed to modify node "{write.name}"')
    if write.operation == CREATE:
        _check_new_node(write)
    elif write.operation == UPDATE:
        _check_changed_node(write)
    if _pod_ranges(write.new) != _pod_ranges(write.old):
        write.forbid_node("is not allowed to choose the addresses of its Pods: spec.podCIDR is set by its allocator")


def _pod_ranges(node: Document | None) -> tuple[str, list[str]]:
    spec = (node or {}).get("spec") or {}
    return spec.get("podCIDR") or "", spec.get("podCIDRs") or []


def _check_new_node(write: _Write) -> None:
    if ((write.new or {}).get("spec") or {}).get("configSource") is not None:
        write.forbid_node("is not allowed to create pods with a non-nil configSource")
    labels = _forbidden_labels(_labels(write.new), {})
    if labels:
        write.forbid_node(f"is not allowed to set the following labels: {', '.join(labels)}")


def _check_changed_node(write: _Write) -> None:
    new, old = write.new or {}, write.old or {}
    new_spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    source = new_spec.get("configSource")
    if source is not None and source != old_spec.get("configSource"):
        write.forbid_node("is not allowed to update configSource to a new non-nil configSource")
    if (new_spec.get("taints") or []) != (old_spec.get("taints") or []):
        write.forbid_node("is not allowed to modify taints")
    labels = _forbidden_labels(_labels(new), _labels(old))
    if labels:
        write.forbid(f"is not allowed to modify labels: {', '.join(labels)}")
    if _owners(new) != _owners(old):
        write.forbid_node("is not allowed to modify ownerReferences")


def _owners(document: Document) -> list[Document]:
    owners: list[Document] = (document.get("metadata") or {}).get("ownerReferences") or []
    return owners


def _labels(document: Document | None) -> dict[str, str]:
    labels: dict[str, str] = ((document or {}).get("metadata") or {}).get("labels") or {}
    return labels


def _forbidden_labels(new: Mapping[str, str], old: Mapping[str, str]) -> list[str]:
    changed = {key for key in new.keys() | old.keys() if new.get(key) != old.get(key)}
    return sorted(key for key in changed if not _node_may_label(key))


def _node_may_label(key: str) -> bool:
    prefix = key.rpartition("/")[0]
    if _within(prefix, _RESTRICTED_PREFIX):
        return False
    if not _within(prefix, "kubernetes.io") and not _within(prefix, "k8s.io"):
        return True
    return key in _KUBELET_LABELS or any(_within(prefix, allowed) for allowed in _KUBELET_PREFIXES)


def _within(prefix: str, domain: str) -> bool:
    return prefix == domain or prefix.endswith(f".{domain}")


def _check_service_account(write: _Write) -> None:
    if write.operation != CREATE or write.attributes.subresource != "token":
        return
    reference = ((write.new or {}).get("spec") or {}).get("boundObjectRef") or {}
    if (reference.get("apiVersion"), reference.get("kind")) != ("v1", "Pod") or not reference.get("name"):
        write.forbid("node requested token not bound to a pod")
    uid = reference.get("uid")
    if not uid:
        write.forbid("node requested token with a pod binding without a uid")
    pod = write.pod(reference["name"])
    if uid != pod.uid:
        write.forbid(
            f"the UID in the bound object reference ({uid}) does not match the UID in record. "
            "The object might have been deleted and then recreated"
        )
    if pod.node_name != write.node_name:
        write.forbid("node requested token bound to a pod scheduled on a different node")
    _check_audience(write, pod)


def _check_audience(write: _Write, pod: BoundPod) -> None:
    """Reject tokens for audiences that the Pod does not ask for, unless the node is authorized for them."""
    audiences = ((write.new or {}).get("spec") or {}).get("audiences") or [""]
    if len(audiences) > 1:
        write.forbid("node may only request 0 or 1 audiences")
    audience = audiences[0] or ""
    if audience in pod.audiences:
        return
    request = Attributes(
        user=write.attributes.user,
        verb=_AUDIENCE_VERB,
        version="v1",
        resource=audience,
        namespace=write.attributes.namespace,
        name=write.attributes.name,
    )
    if not audience or not write.authorize(request).allowed:
        write.forbid(
            f"audience {quote(audience)} not found in pod spec volume, {write.attributes.user.name} is not authorized "
            "to request tokens for this audience"
        )


def _check_lease(write: _Write) -> None:
    if write.attributes.namespace != NODE_LEASES:
        write.forbid(f'can only access leases in the "{NODE_LEASES}" system namespace')
    if write.name != write.node_name:
        write.forbid("can only access node lease with the same name as the requesting node")


def _check_slice(write: _Write) -> None:
    verb = "create" if write.operation == CREATE else "delete" if write.operation == DELETE else "update"
    for document in (write.new, write.old):
        if document is not None and (document.get("spec") or {}).get("nodeName") != write.node_name:
            write.forbid(f"can only {verb} ResourceSlice with the same NodeName as the requesting node")


def _check_classic_claim(write: _Write) -> None:
    """Check that a node only removes reservations of its own Pods from a classic claim."""
    if write.operation != UPDATE or write.attributes.subresource != "status":
        write.forbid_node("can only update the status of classic claims")
    users = [_users(document) for document in (write.old, write.new)]
    removed = {uid: name for uid, name in users[0].items() if uid not in users[1]}
    if users[1].keys() - users[0].keys() or _without_users(write.old) != _without_users(write.new):
        write.forbid_node("can only remove users of classic claims")
    for uid, name in removed.items():
        pod = write.index.pod(NamespacedName(write.attributes.namespace, name))
        if pod is None or pod.uid != uid or pod.node_name != write.node_name:
            write.forbid_node("can only remove pods with spec.nodeName set to itself from the users of classic claims")


def _users(claim: Document | None) -> dict[str, str]:
    users = ((claim or {}).get("status") or {}).get("reservedFor") or ()
    return {user.get("uid", ""): user.get("name", "") for user in users}


def _without_users(claim: Document | None) -> Document:
    return {key: value for key, value in ((claim or {}).get("status") or {}).items() if key != "reservedFor"}


_Check: TypeAlias = Callable[[_Write], None]

_CHECKS: Final[Mapping[tuple[str, str], _Check]] = {
    ("", "pods"): _check_pods,
    ("", "nodes"): _check_node,
    ("", "serviceaccounts"): _check_service_account,
    ("coordination.k8s.io", "leases"): _check_lease,
    ("resource.k8s.io", "resourceslices"): _check_slice,
    ("cdi.k8s.io", "resourceclaims"): _check_classic_claim,
}
