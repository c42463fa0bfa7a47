"""The node authorizer: a node agent's access to its own objects, and to those that its pods need.

A node is a user `system:node:<name>` in the group `system:nodes`. Checks that need the object (a new slice's nodeName,
for example) are in `node_restriction`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from dray.api.document import NamespacedName
from dray.api.persistent_volumes import PROVISIONED_ON
from dray.apiserver.authorization.bootstrap_roles import NODE_RULES
from dray.apiserver.authorization.node_index import CLASSIC_CLAIMS, NodeIndex
from dray.apiserver.authorization.rbac import DENIED, Decision
from dray.apiserver.authorization.rules import Rule, read_rules
from dray.apiserver.request import Attributes, UserInfo

NODES_GROUP: Final = "system:nodes"
USER_PREFIX: Final = "system:node:"
NODE_LEASES: Final = "kube-node-lease"
NODE_NAME_FIELD: Final = "spec.nodeName"

_ALLOWED: Final = Decision(allowed=True)
_SLICES: Final = ("resource.k8s.io", "resourceslices")


def node_name_of(user: UserInfo) -> str | None:
    """Return the node name of a user: None when the user is not a node, "" when it has no name."""
    if NODES_GROUP not in user.groups:
        return None
    return user.name[len(USER_PREFIX) :] if user.name.startswith(USER_PREFIX) else None


def selector_terms(selector: str) -> Iterator[str]:
    """Yield the terms of a field selector; a backslash escapes the next character."""
    term, escaped = "", False
    for character in selector:
        if escaped:
            term, escaped = term + "\\" + character, False
        elif character == "\\":
            escaped = True
        elif character == ",":
            yield term
            term = ""
        else:
            term += character
    yield term


def selects_node(selector: str, node_name: str) -> bool:
    """Report whether a field selector selects only objects of the node."""
    wanted = {f"{NODE_NAME_FIELD}={node_name}", f"{NODE_NAME_FIELD}=={node_name}"}
    return bool(node_name) and any(term in wanted for term in selector_terms(selector))


@dataclass(slots=True)
class NodeAuthorizer:
    """Authorizes nodes; has no opinion on other users."""

    index: NodeIndex
    rules: tuple[Rule, ...] = field(default_factory=lambda: read_rules(NODE_RULES))

    def authorize(self, attributes: Attributes) -> Decision:
        """Return the decision; DENIED also stands for no opinion."""
        node_name = node_name_of(attributes.user)
        if node_name is None:
            return DENIED
        if not node_name:
            return _deny(f'unknown node for user "{attributes.user.name}"')
        if not attributes.is_resource:
            return DENIED
        rule = self._RESOURCES.get((attributes.group, attributes.resource))
        if rule is not None:
            return rule(self, node_name, attributes)
        wanted = (attributes.verb, attributes.group, attributes.resource, attributes.subresource)
        return _ALLOWED if any(item.allows_resource(*wanted) for item in self.rules) else DENIED

    def _read_referenced(self, node_name: str, attributes: Attributes) -> Decision:
        if attributes.verb not in {"get", "list", "watch"}:
            return _deny("can only read resources of this type")
        if attributes.subresource:
            return _deny("cannot read subresource")
        if not attributes.namespace:
            return _deny("can only read namespaced object of this type")
        return self._related(node_name, attributes)

    def _get_referenced(self, node_name: str, attributes: Attributes) -> Decision:
        if attributes.verb != "get":
            return _deny("can only get individual resources of this type")
        if attributes.subresource:
            return _deny("cannot get subresource")
        return self._related(node_name, attributes)

    def _related(self, node_name: str, attributes: Attributes) -> Decision:
        if not attributes.name:
            return _deny("No Object name found")
        key = NamespacedName(attributes.namespace, attributes.name)
        if self.index.uses(node_name, attributes.resource, key):
            return _ALLOWED
        return _unrelated(node_name)

    def _volume(self, node_name: str, attributes: Attributes) -> Decision:
        """Allow reading the volumes of the node's Pods and those provisioned on it, and deleting the latter."""
        if attributes.subresource or attributes.verb not in {"list", "watch", "delete"}:
            return self._get_referenced(node_name, attributes)
        if attributes.verb == "delete":
            may = self.index.may_delete_volume(node_name, attributes.name)
            return _ALLOWED if may else _deny("can only delete released volumes that were provisioned on the node")
        if attributes.label_selector == f"{PROVISIONED_ON}={node_name}":
            return _ALLOWED
        return _deny(f"can only list/watch persistentvolumes with the label selector {PROVISIONED_ON}")

    def _classic_claim(self, node_name: str, attributes: Attributes) -> Decision:
        """Allow reading the classic claims of the node's Pods, and releasing their reservations."""
        match attributes.subresource, attributes.verb:
            case ("", "get") | ("status", "update" | "patch"):
                key = NamespacedName(attributes.namespace, attributes.name)
                return _ALLOWED if self.index.uses(node_name, CLASSIC_CLAIMS, key) else _unrelated(node_name)
        return _deny("can only get claims, and update their status")

    def _service_account(self, node_name: str, attributes: Attributes) -> Decision:
        if attributes.verb == "get" and not attributes.subresource:
            return self._related(node_name, attributes)
        if attributes.verb != "create" or not attributes.name:
            return _deny("can only create tokens for individual service accounts")
        if attributes.subresource != "token":
            return _deny("can only create token subresource of serviceaccount")
        return self._related(node_name, attributes)

    def _lease(self, node_name: str, attributes: Attributes) -> Decision:
        if attributes.verb not in {"get", "create", "update", "patch", "delete"}:
            return _deny("can only get, create, update, patch, or delete a node lease")
        if attributes.namespace != NODE_LEASES:
            return _deny(f'can only access leases in the "{NODE_LEASES}" system namespace')
        # The name of a new lease is not known here.
        if attributes.verb != "create" and attributes.name != node_name:
            return _deny("can only access node lease with the same name as the requesting node")
        return _ALLOWED

    def _csi_node(self, node_name: str, attributes: Attributes) -> Decision:
        if attributes.verb not in {"get", "create", "update", "patch", "delete"}:
            return _deny("can only get, create, update, patch, or delete a CSINode")
        if attributes.subresource:
            return _deny("cannot authorize CSINode subresources")
        # The name of a new object is not known here.
        if attributes.verb != "create" and attributes.name != node_name:
            return _deny("can only access CSINode with the same name as the requesting node")
        return _ALLOWED

    def _slice(self, node_name: str, attributes: Attributes) -> Decision:
        if attributes.subresource:
            return _deny("cannot authorize ResourceSlice subresources")
        match attributes.verb:
            case "create":
                return _ALLOWED
            case "get" | "update" | "patch" | "delete":
                return self._own_slice(node_name, attributes)
            case "list" | "watch" | "deletecollection":
                if selects_node(attributes.field_selector, node_name):
                    return _ALLOWED
                return _deny("can only list/watch/deletecollection resourceslices with nodeName field selector")
        return _deny(
            "only the following verbs are allowed for a ResourceSlice: "
            "get, watch, list, create, update, patch, delete, deletecollection"
        )

    def _own_slice(self, node_name: str, attributes: Attributes) -> Decision:
        if not attributes.name:
            return _deny("No Object name found")
        return _ALLOWED if self.index.owns_slice(node_name, attributes.name) else _unrelated(node_name)

    def _node(self, node_name: str, attributes: Attributes) -> Decision:
        match attributes.subresource, attributes.verb:
            case ("", "create" | "update" | "patch") | ("status", "update" | "patch"):
                return _ALLOWED
            case "", "get" | "list" | "watch":
                if attributes.name == node_name:
                    return _ALLOWED
                what = f"'{attributes.name}'" if attributes.name else "all nodes"
                return _deny(f"node '{node_name}' cannot read {what}, only its own Node object")
        return DENIED

    def _pod(self, node_name: str, attributes: Attributes) -> Decision:
        match attributes.subresource, attributes.verb:
            case "", "get":
                return self._get_referenced(node_name, attributes)
            case "", "list" | "watch":
                return self._list_pods(node_name, attributes)
            case ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create"):
                return _ALLOWED
        return DENIED

    def _list_pods(self, node_name: str, attributes: Attributes) -> Decision:
        if selects_node(attributes.field_selector, node_name):
            return _ALLOWED
        if attributes.name:
            return self._related(node_name, attributes)
        return _deny("can only list/watch pods with spec.nodeName field selector")

    # Rules of single resources; all others follow the role of nodes.
    _RESOURCES: ClassVar[Mapping[tuple[str, str], Callable[[NodeAuthorizer, str, Attributes], Decision]]] = {
        ("", "secrets"): _read_referenced,
        ("", "configmaps"): _read_referenced,
        ("", "persistentvolumeclaims"): _get_referenced,
        ("", "persistentvolumes"): _volume,
        ("resource.k8s.io", "resourceclaims"): _get_referenced,
        ("cdi.k8s.io", "resourceclaims"): _classic_claim,
        ("", "serviceaccounts"): _service_account,
        ("coordination.k8s.io", "leases"): _lease,
        ("storage.k8s.io", "csinodes"): _csi_node,
        _SLICES: _slice,
        ("", "nodes"): _node,
        ("", "pods"): _pod,
    }


def _deny(reason: str) -> Decision:
    return Decision(allowed=False, reason=reason)


def _unrelated(node_name: str) -> Decision:
    return _deny(f"no relationship found between node '{node_name}' and this object")
