"""How many Pods their controllers want: the sum over the controllers of some Pods, each counted once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from dray.api.document import Document, GroupResource, GroupVersionKind
from dray.api.errors import NotFoundError
from dray.api.types.core_v1 import Pod
from dray.client.errors import ignore_not_found
from dray.client.interface import Client, ServedResource
from dray.client.objects import OwnerReference, controller_of, uid_of
from dray.client.resources import DEPLOYMENTS, REPLICA_SETS
from dray.client.shared_informers import SharedInformer, SharedInformerFactory

# Kinds whose number is in their spec; others need the scale subresource.
_WITH_REPLICAS: Final = frozenset({("", "ReplicationController"), ("apps", "StatefulSet")})


class ScaleError(Exception):
    """The number of expected Pods is unknown."""


class ControllerScales:
    """Finds the controllers of Pods, and their scales."""

    def __init__(self, client: Client, informers: SharedInformerFactory) -> None:
        self._client = client
        self._replica_sets = informers.informer(REPLICA_SETS)
        self._deployments = informers.informer(DEPLOYMENTS)
        # From discovery; read again for a kind that is not in it.
        self._served: dict[GroupVersionKind, ServedResource] = {}

    @property
    def informers(self) -> tuple[SharedInformer[Any], ...]:
        """The controllers that are cached."""
        return self._replica_sets, self._deployments

    async def total(self, pods: Iterable[Pod]) -> tuple[int, bool]:
        """Return the sum of the scales, and whether there are Pods without a controller, which do not count."""
        scales: dict[str, int] = {}
        # Owner -> the controller that counts, which may be the owner's own.
        known: set[str] = set()
        unmanaged = False
        for pod in pods:
            owner = controller_of(pod)
            if owner is None:
                unmanaged = True
                continue
            if owner.uid in known:
                continue
            found = await self._find(owner, pod.metadata.namespace or "")
            if found is None:
                raise ScaleError(f'found no controllers for pod "{pod.metadata.name}"')
            known.add(owner.uid)
            uid, scale = found
            scales[uid] = scale
        return sum(scales.values()), unmanaged

    async def _find(self, owner: OwnerReference, namespace: str) -> tuple[str, int] | None:
        group = owner.api_version.rpartition("/")[0]
        if (group, owner.kind) == ("apps", "ReplicaSet"):
            return self._of_replica_set(owner, namespace)
        return await self._of_any(owner, namespace)

    def _of_replica_set(self, owner: OwnerReference, namespace: str) -> tuple[str, int] | None:
        replica_set = self._replica_sets.lister.get(owner.name, namespace)
        if replica_set is None or uid_of(replica_set) != owner.uid:
            return None
        parent = controller_of(replica_set)
        if parent is None or parent.kind != "Deployment":
            return owner.uid, _or_one(replica_set.spec.replicas)
        deployment = self._deployments.lister.get(parent.name, namespace)
        if deployment is None or uid_of(deployment) != parent.uid:
            return None
        return parent.uid, _or_one(deployment.spec.replicas)

    async def _of_any(self, owner: OwnerReference, namespace: str) -> tuple[str, int] | None:
        served = await self._kind(owner)
        if served is None:
            return None
        resource, with_replicas = served.resource(), (served.group, served.kind) in _WITH_REPLICAS
        if not with_replicas and "scale" not in served.subresources:
            name = GroupResource(served.group, served.plural)
            raise ScaleError(f"{name} does not implement the scale subresource")
        document: Document | None
        if with_replicas:
            document = await ignore_not_found(self._client.get(resource, owner.name, namespace))
        else:
            try:
                document = await self._client.get_subresource(resource, owner.name, namespace, "scale")
            except NotFoundError:
                document = None
        if document is None or uid_of(document) != owner.uid:
            return None
        replicas = (document.get("spec") or {}).get("replicas")
        return owner.uid, _or_one(replicas) if with_replicas else int(replicas or 0)

    async def _kind(self, owner: OwnerReference) -> ServedResource | None:
        group, _, version = owner.api_version.rpartition("/")
        wanted = GroupVersionKind(group, version, owner.kind)
        if wanted not in self._served:
            found = await self._client.resources(complete=True)
            self._served = {GroupVersionKind(item.group, item.version, item.kind): item for item in found}
        return self._served.get(wanted)


def _or_one(replicas: int | None) -> int:
    """Return the number of replicas; 1 is the default of all kinds that have one."""
    return 1 if replicas is None else replicas
