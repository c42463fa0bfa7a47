"""Admission: what the server adds to new objects, and what it refuses although the object itself is valid.

The plugins of kube-apiserver that users notice: namespace life cycle, service accounts, priorities, default
tolerations, taints of new nodes, role escalation and the node restriction. Quotas are in `flow.quotas`.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any, Final

from dray.api.document import Document, GroupResource, NamespacedName, key_of
from dray.api.errors import ForbiddenError
from dray.api.features import FeatureGates
from dray.apiserver.authorization.escalation import check_binding_write, check_role_write
from dray.apiserver.authorization.node import node_name_of
from dray.apiserver.authorization.node_restriction import check_node_write
from dray.apiserver.authorization.rbac import Decision
from dray.apiserver.call import Call
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.metadata import generated_name
from dray.apiserver.object_cache import NAMESPACES, NODES, PODS, RBAC_GROUP, ObjectCache
from dray.apiserver.registry.strategy import WriteContext
from dray.apiserver.request import Attributes

_PROTECTED_NAMESPACES: Final = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})
_TOKEN_MOUNT_PATH: Final = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path
_TOKEN_SECONDS: Final = 3607
_EVICTION_SECONDS: Final = 300
_NOT_READY: Final = "node.kubernetes.io/not-ready"
_TOLERATED: Final = (_NOT_READY, "node.kubernetes.io/unreachable")
# The plugins that can be left out, by Kubernetes' names for them.
TAINT_NODES: Final = "TaintNodesByCondition"
DEFAULT_TOLERATIONS: Final = "DefaultTolerationSeconds"
RESOURCE_QUOTA: Final = "ResourceQuota"
SWITCHABLE: Final = (TAINT_NODES, DEFAULT_TOLERATIONS, RESOURCE_QUOTA)

Authorize = Callable[[Attributes], Decision]


class Operation(enum.StrEnum):
    """What is being done to the object."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


class Admission:
    """Admits or refuses writes; pure but for the randomness it is given."""

    def __init__(
        self, cache: ObjectCache, authorize: Authorize, random_source: random.Random, disabled: Collection[str] = ()
    ) -> None:
        """`disabled` names plugins of `SWITCHABLE` that are to do nothing."""
        self._taints = TAINT_NODES not in disabled
        self._tolerations = DEFAULT_TOLERATIONS not in disabled
        self._cache = cache
        self._authorize = authorize
        self._random = random_source

    def context(self, call: Call, namespace: Document | None, now: datetime, gates: FeatureGates) -> WriteContext:
        """What a strategy may know about this write."""

        def allowed(**attributes: Any) -> bool:
            return self._authorize(Attributes(user=call.user, **attributes)).allowed

        return WriteContext(now, gates, call.user, namespace, allowed)

    def admit(
        self, operation: Operation, call: Call, endpoint: Endpoint, document: Document, context: WriteContext
    ) -> None:
        """Add to the document what the cluster decides for it."""
        if operation is not Operation.CREATE or call.info.subresource:
            return
        if endpoint.resource == PODS:
            self._admit_pod(document, context)
        elif endpoint.resource == NODES and self._taints:
            _admit_node(document)

    def validate(
        self,
        operation: Operation,
        call: Call,
        endpoint: Endpoint,
        new: Document | None,
        old: Document | None,
    ) -> None:
        """Refuse what is not to be, whoever asks."""
        if endpoint.resource == NAMESPACES and operation is Operation.DELETE:
            _check_namespace_deletion(old)
        if endpoint.resource.group == RBAC_GROUP and new is not None:
            self._check_escalation(call, endpoint, new, old)
        if node_name_of(call.user) is not None:
            check_node_write(_attributes(operation, call, endpoint), new, old, self._cache.nodes)

    def _check_escalation(self, call: Call, endpoint: Endpoint, new: Document, old: Document | None) -> None:
        index = self._cache.rbac
        if endpoint.definition.kind.endswith("Binding"):
            check_binding_write(index, call.user, new, old, self._authorize)
        else:
            check_role_write(index, call.user, new, old, self._authorize)

    # --- Pods ---

    def _admit_pod(self, pod: Document, context: WriteContext) -> None:
        spec: Document = pod.setdefault("spec", {})
        self._admit_service_account(pod, spec)
        self._admit_priority(pod, spec)
        if self._tolerations:
            _admit_tolerations(spec)

    def _admit_service_account(self, pod: Document, spec: Document) -> None:
        metadata = pod["metadata"]
        if "kubernetes.io/config.mirror" in (metadata.get("annotations") or {}):
            return
        name = spec.get("serviceAccountName") or "default"
        spec["serviceAccountName"] = spec["serviceAccount"] = name
        namespace = metadata.get("namespace", "")
        account = self._cache.service_accounts.get(NamespacedName(namespace, name))
        if account is None:
            raise ForbiddenError(
                PODS,
                metadata.get("name", ""),
                f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found',
            )
        automount = spec.get("automountServiceAccountToken", account.get("automountServiceAccountToken", True))
        if automount:
            self._mount_token(spec)
        if not spec.get("imagePullSecrets") and account.get("imagePullSecrets"):
            spec["imagePullSecrets"] = account["imagePullSecrets"]

    def _mount_token(self, spec: Document) -> None:
        containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
        without = [item for item in containers if not _mounts(item, _TOKEN_MOUNT_PATH)]
        if not without:
            return
        volume = generated_name("kube-api-access-", self._random)
        for container in without:
            mount = {"name": volume, "readOnly": True, "mountPath": _TOKEN_MOUNT_PATH}
            container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
        spec["volumes"] = [*(spec.get("volumes") or ()), {"name": volume, "projected": _token_projection()}]

    def _admit_priority(self, pod: Document, spec: Document) -> None:
        name = spec.get("priorityClassName") or ""
        chosen = self._cache.priority_classes.get(name) if name else self._default_priority()
        if name and chosen is None:
            raise ForbiddenError(PODS, pod["metadata"].get("name", ""), f"no PriorityClass with name {name} was found")
        value = int(chosen["value"]) if chosen else 0
        given = spec.get("priority")
        if given is not None and given != value:
            raise ForbiddenError(
                PODS,
                pod["metadata"].get("name", ""),
                f"the integer value of priority ({given}) must not be provided in pod spec; priority admission "
                f"controller computed {value} from the given PriorityClass name",
            )
        spec["priority"] = value
        if chosen and not name:
            spec["priorityClassName"] = chosen["metadata"]["name"]
        policy = (chosen or {}).get("preemptionPolicy") or "PreemptLowerPriority"
        spec.setdefault("preemptionPolicy", policy)

    def _default_priority(self) -> Document | None:
        defaults = [item for item in self._cache.priority_classes.values() if item.get("globalDefault")]
        return min(defaults, key=lambda item: item["value"]) if defaults else None


def check_namespace(namespace: Document, resource: GroupResource, name: str) -> None:
    """Nothing new comes into a namespace that is on its way out."""
    metadata = namespace["metadata"]
    if "deletionTimestamp" not in metadata:
        return
    place = metadata["name"]
    raise ForbiddenError(
        resource,
        name,
        f"unable to create new content in namespace {place} because it is being terminated",
        causes=[
            {
                "reason": "NamespaceTerminating",
                "message": f"namespace {place} is being terminated",
                "field": "metadata.namespace",
            }
        ],
    )


def _check_namespace_deletion(namespace: Document | None) -> None:
    name = key_of(namespace or {}).name
    if name in _PROTECTED_NAMESPACES - {"kube-node-lease"}:
        raise ForbiddenError(NAMESPACES, name, "this namespace may not be deleted")


def _attributes(operation: Operation, call: Call, endpoint: Endpoint) -> Attributes:
    info = call.info
    return Attributes(
        user=call.user,
        verb=info.verb if operation is not Operation.DELETE else "delete",
        group=endpoint.definition.group,
        version=endpoint.version,
        resource=endpoint.definition.resource,
        subresource=info.subresource,
        namespace=info.namespace,
        name=info.name,
    )


def _mounts(container: Document, path: str) -> bool:
    return any(mount.get("mountPath") == path for mount in container.get("volumeMounts") or ())


def _token_projection() -> Document:
    return {
        "defaultMode": 420,
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": _TOKEN_SECONDS, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {
                "downwardAPI": {
                    "items": [
                        {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
                    ]
                }
            },
        ],
    }


def _admit_node(node: Document) -> None:
    """A new node takes no Pods until the node lifecycle controller has seen it ready."""
    spec: Document = node.setdefault("spec", {})
    taints = list(spec.get("taints") or ())
    if not any((item.get("key"), item.get("effect")) == (_NOT_READY, "NoSchedule") for item in taints):
        spec["taints"] = [*taints, {"key": _NOT_READY, "effect": "NoSchedule"}]


def _admit_tolerations(spec: Document) -> None:
    """Every Pod puts up with a node that is away for five minutes."""
    tolerations = list(spec.get("tolerations") or ())
    for key in _TOLERATED:
        if not any(_tolerates(item, key) for item in tolerations):
            tolerations.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _EVICTION_SECONDS}
            )
    spec["tolerations"] = tolerations


def _tolerates(toleration: Document, key: str) -> bool:
    return toleration.get("key") in (key, "", None) and toleration.get("effect") in ("NoExecute", "", None)
