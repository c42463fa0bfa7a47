"""Plugins that complete Pods: ServiceAccount and DefaultTolerationSeconds."""

from __future__ import annotations

import random
from typing import Final

from dray.api.document import Document, GroupResource, NamespacedName
from dray.api.errors import ForbiddenError
from dray.apiserver.admission.plugin import AdmissionAttributes, AdmissionPlugin, Operation
from dray.apiserver.metadata import generated_name
from dray.apiserver.object_cache import PODS
from dray.apiserver.object_lookup import ObjectLookup
from dray.lib.clock import Clock
from dray.lib.processor_time import ticking

_MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
_TOKEN_MOUNT_PATH: Final = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path
_TOKEN_EXPIRATION_SECONDS: Final = 3607
# The default account of a new namespace is created by a controller, some milliseconds later.
_DEFAULT_ACCOUNT: Final = "default"
_DEFAULT_ACCOUNT_ATTEMPTS: Final = 10
_DEFAULT_ACCOUNT_INTERVAL_SECONDS: Final = (0.1, 0.2)
_DEFAULT_TOLERATIONS: Final[tuple[Document, ...]] = tuple(
    {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
)


def _written_pod(attributes: AdmissionAttributes) -> tuple[Document, Document]:
    pod = attributes.object
    assert pod is not None
    return pod, pod.setdefault("spec", {})


class ServiceAccount(AdmissionPlugin):
    """Gives a new Pod its service account, with the account's token and image pull secrets."""

    name = "ServiceAccount"

    def __init__(self, objects: ObjectLookup, clock: Clock, random_source: random.Random) -> None:
        self._objects = objects
        self._clock = clock
        self._random = random_source

    def handles(self, resource: GroupResource, subresource: str, operation: Operation) -> bool:
        """Take part in creates of Pods alone."""
        return operation is Operation.CREATE and resource == PODS and not subresource

    async def admit(self, attributes: AdmissionAttributes) -> None:
        """Complete the Pod; refuse it if its account does not exist."""
        pod, spec = _written_pod(attributes)
        metadata = pod["metadata"]
        if _MIRROR_ANNOTATION in (metadata.get("annotations") or {}):
            return
        name = spec.get("serviceAccountName") or _DEFAULT_ACCOUNT
        spec["serviceAccountName"] = spec["serviceAccount"] = name
        namespace = metadata.get("namespace", "")
        account = await self._account(NamespacedName(namespace, name))
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

    async def _account(self, key: NamespacedName) -> Document | None:
        """Return the account; wait for the default one of a namespace, at most as long as kube-apiserver does."""
        account = await self._objects.service_account(key)
        if account is not None or key.name != _DEFAULT_ACCOUNT:
            return account
        interval = self._random.uniform(*_DEFAULT_ACCOUNT_INTERVAL_SECONDS)
        for _ in range(_DEFAULT_ACCOUNT_ATTEMPTS - 1):
            await self._clock.sleep(interval)
            account = await self._objects.service_account(key)
            if account is not None:
                return account
        return None

    def _mount_token(self, spec: Document) -> None:
        containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
        unmounted = [item for item in containers if not _has_mount(item, _TOKEN_MOUNT_PATH)]
        if not unmounted:
            return
        volume = generated_name("kube-api-access-", self._random)
        for container in ticking(unmounted):
            mount = {"name": volume, "readOnly": True, "mountPath": _TOKEN_MOUNT_PATH}
            container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
        spec["volumes"] = [*(spec.get("volumes") or ()), {"name": volume, "projected": _token_projection()}]


def _has_mount(container: Document, path: str) -> bool:
    mounts = container.get("volumeMounts") or ()
    return bool(mounts) and any(mount.get("mountPath") == path for mount in mounts)


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


class DefaultTolerationSeconds(AdmissionPlugin):
    """Lets every Pod tolerate a node that is not ready or unreachable for five minutes."""

    name = "DefaultTolerationSeconds"

    def handles(self, resource: GroupResource, subresource: str, operation: Operation) -> bool:
        """Take part in creates and updates of Pods: an update may leave out what a create has added."""
        return operation is not Operation.DELETE and resource == PODS and not subresource

    async def admit(self, attributes: AdmissionAttributes) -> None:
        """Add the tolerations that the Pod does not have."""
        _, spec = _written_pod(attributes)
        given = spec.get("tolerations") or ()
        added = [
            dict(default)
            for default in _DEFAULT_TOLERATIONS
            # Most Pods have none.
            if not given or not any(_tolerates(item, default["key"]) for item in given)
        ]
        spec["tolerations"] = [*given, *added]


def _tolerates(toleration: Document, key: str) -> bool:
    return toleration.get("key") in (key, "", None) and toleration.get("effect") in ("NoExecute", "", None)
