"""Plugins that complete new Pods: ServiceAccount, Priority and DefaultTolerationSeconds."""

from __future__ import annotations

import random
from typing import Final

from dray.api.document import Document, GroupResource, NamespacedName
from dray.api.errors import ForbiddenError
from dray.apiserver.admission.plugin import AdmissionAttributes, AdmissionPlugin, Operation
from dray.apiserver.metadata import generated_name
from dray.apiserver.object_cache import PODS, ObjectCache
from dray.apiserver.object_lookup import ObjectLookup

_MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
_TOKEN_MOUNT_PATH: Final = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path
_TOKEN_EXPIRATION_SECONDS: Final = 3607
_TOLERATION_SECONDS: Final = 300
_TOLERATED_TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


class _NewPodPlugin(AdmissionPlugin):
    """Takes part in creates of Pods."""

    def handles(self, resource: GroupResource, subresource: str, operation: Operation) -> bool:
        """Take part in creates of Pods alone."""
        return operation is Operation.CREATE and resource == PODS and not subresource


def _new_pod(attributes: AdmissionAttributes) -> tuple[Document, Document]:
    pod = attributes.object
    assert pod is not None
    return pod, pod.setdefault("spec", {})


class ServiceAccount(_NewPodPlugin):
    """Gives a Pod its service account, with the account's token and image pull secrets."""

    name = "ServiceAccount"

    def __init__(self, objects: ObjectLookup, random_source: random.Random) -> None:
        self._objects = objects
        self._random = random_source

    async def admit(self, attributes: AdmissionAttributes) -> None:
        """Complete the Pod; refuse it if its account does not exist."""
        pod, spec = _new_pod(attributes)
        metadata = pod["metadata"]
        if _MIRROR_ANNOTATION in (metadata.get("annotations") or {}):
            return
        name = spec.get("serviceAccountName") or "default"
        spec["serviceAccountName"] = spec["serviceAccount"] = name
        namespace = metadata.get("namespace", "")
        account = await self._objects.service_account(NamespacedName(namespace, name))
        if account is None:
            raise ForbiddenError(
                PODS,
                metadata.get("name", ""),
                f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found',
            )
        if spec.get("automountServiceAccountToken", account.get("automountServiceAccountToken", True)):
            self._mount_token(spec)
        if not spec.get("imagePullSecrets") and account.get("imagePullSecrets"):
            spec["imagePullSecrets"] = account["imagePullSecrets"]

    def _mount_token(self, spec: Document) -> None:
        containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
        unmounted = [item for item in containers if not _has_mount(item, _TOKEN_MOUNT_PATH)]
        if not unmounted:
            return
        volume = generated_name("kube-api-access-", self._random)
        for container in unmounted:
            mount = {"name": volume, "readOnly": True, "mountPath": _TOKEN_MOUNT_PATH}
            container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
        spec["volumes"] = [*(spec.get("volumes") or ()), {"name": volume, "projected": _token_projection()}]


def _has_mount(container: Document, path: str) -> bool:
    return any(mount.get("mountPath") == path for mount in container.get("volumeMounts") or ())


def _token_projection() -> Document:
    namespace_reference = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
    return {
        "defaultMode": 420,
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": _TOKEN_EXPIRATION_SECONDS, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": namespace_reference}]}},
        ],
    }


class Priority(_NewPodPlugin):
    """Resolves the priority class of a Pod to its priority and preemption policy."""

    name = "Priority"

    def __init__(self, cache: ObjectCache, objects: ObjectLookup) -> None:
        self._cache = cache
        self._objects = objects

    async def admit(self, attributes: AdmissionAttributes) -> None:
        """Set the priority; refuse an unknown class or a priority that is not the class's."""
        pod, spec = _new_pod(attributes)
        name = spec.get("priorityClassName") or ""
        chosen = await self._objects.priority_class(name) if name else self._default_class()
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
        spec.setdefault("preemptionPolicy", (chosen or {}).get("preemptionPolicy") or "PreemptLowerPriority")

    def _default_class(self) -> Document | None:
        defaults = [item for item in self._cache.priority_classes.values() if item.get("globalDefault")]
        return min(defaults, key=lambda item: item["value"]) if defaults else None


class DefaultTolerationSeconds(_NewPodPlugin):
    """Lets every Pod tolerate a node that is not ready or unreachable for five minutes."""

    name = "DefaultTolerationSeconds"

    async def admit(self, attributes: AdmissionAttributes) -> None:
        """Add the tolerations that the Pod does not have."""
        _, spec = _new_pod(attributes)
        tolerations = list(spec.get("tolerations") or ())
        for key in _TOLERATED_TAINTS:
            if not any(_tolerates(item, key) for item in tolerations):
                tolerations.append(
                    {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATION_SECONDS}
                )
        spec["tolerations"] = tolerations


def _tolerates(toleration: Document, key: str) -> bool:
    return toleration.get("key") in (key, "", None) and toleration.get("effect") in ("NoExecute", "", None)
