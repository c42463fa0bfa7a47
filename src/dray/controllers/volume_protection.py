"""Keeps volume claims that are being deleted while Pods use them, and volumes while they are bound."""

from __future__ import annotations

from dray.api.document import Document, NamespacedName
from dray.api.persistent_volumes import PV_PROTECTION, PVC_PROTECTION, claim_names, phase_of
from dray.api.types.core_v1 import Pod
from dray.client.controller import Result
from dray.client.interface import ListOptions, Resource, ignore_not_found
from dray.client.objects import key_of
from dray.client.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS
from dray.controllers.reconciler import ControllerContext, Reconciler, newest

_FINISHED = ("Succeeded", "Failed")
_PODS_BY_CLAIM = "volumeClaims"


def claim_keys(pod: Pod) -> tuple[NamespacedName, ...]:
    """Return the volume claims of a Pod."""
    return tuple(NamespacedName(pod.metadata.namespace or "", name) for name, _ in claim_names(pod))


def uses(pod: Pod, key: NamespacedName) -> bool:
    """Return whether the Pod uses the claim: it has a node, and has not finished."""
    return bool(pod.spec.node_name) and pod.status.phase not in _FINISHED and key in claim_keys(pod)


def is_waiting(item: Document, finalizer: str) -> bool:
    """Return whether the object is being deleted and still has the finalizer."""
    metadata = item["metadata"]
    return bool(metadata.get("deletionTimestamp")) and finalizer in (metadata.get("finalizers") or ())


def without_finalizer(item: Document, finalizer: str) -> Document:
    """Return the object without the finalizer."""
    metadata = item["metadata"]
    left = [name for name in metadata.get("finalizers") or () if name != finalizer]
    return {**item, "metadata": {**metadata, "finalizers": left}}


class _Protection(Reconciler[NamespacedName]):
    """Removes a finalizer that the API server gives to every object of a resource."""

    resource: Resource[Document]
    finalizer: str

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._objects = context.informers.informer(self.resource)
        self.controller.follow(self._objects, self._object_changed)

    def _object_changed(self, _old: Document | None, new: Document | None) -> None:
        if new is not None and is_waiting(new, self.finalizer):
            self.controller.queue.add(key_of(new))

    async def reconcile(self, key: NamespacedName) -> Result:
        """Remove the finalizer of an object that is being deleted and not used."""
        item = self._objects.lister.get_key(key)
        if item is not None and is_waiting(item, self.finalizer) and not await self._is_used(item):
            await ignore_not_found(self._client.update(self.resource, without_finalizer(item, self.finalizer)))
        return None

    async def _is_used(self, item: Document) -> bool:
        raise NotImplementedError


class VolumeClaimProtectionController(_Protection):
    """Keeps claims while a Pod that has a node and has not finished names them."""

    name = "persistentvolumeclaim-protection"
    component = "pvc-protection-controller"
    resource = PERSISTENT_VOLUME_CLAIMS
    finalizer = PVC_PROTECTION

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._pods = context.informers.informer(PODS, indexes={_PODS_BY_CLAIM: claim_keys})
        self.controller.follow(self._pods, self._pod_changed)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Look at the claims of a Pod that has finished or is gone."""
        if new is not None and new.status.phase not in _FINISHED:
            return
        for key in claim_keys(newest(old, new)):
            claim = self._objects.lister.get_key(key)
            if claim is not None and is_waiting(claim, self.finalizer):
                self.controller.queue.add(key)

    async def _is_used(self, item: Document) -> bool:
        key = key_of(item)
        if any(uses(pod, key) for pod in self._pods.lister.by_index(_PODS_BY_CLAIM, key)):
            return True
        # The informer may lack Pods that were just bound.
        page = await self._client.list(PODS, key.namespace, ListOptions())
        return any(uses(pod, key) for pod in page.items)


class VolumeProtectionController(_Protection):
    """Keeps volumes while they are bound."""

    name = "persistentvolume-protection"
    component = "pv-protection-controller"
    resource = PERSISTENT_VOLUMES
    finalizer = PV_PROTECTION

    async def _is_used(self, item: Document) -> bool:
        return phase_of(item) == "Bound"
