"""Keeps a volume claim that is being deleted while a Pod uses it, and a volume while it is bound.

The API server gives both a finalizer when they are created; the controllers add it to older objects, and remove it when
an object that is being deleted is no longer in use.
"""

from __future__ import annotations

from dray.api.document import Document, NamespacedName
from dray.api.persistent_volumes import PV_PROTECTION, PVC_PROTECTION, claim_names, is_claim_used_by, phase_of
from dray.api.types.core_v1 import Pod
from dray.client.controller import Result
from dray.client.errors import ignore_not_found
from dray.client.indexer import ImmutableFields
from dray.client.interface import ListOptions
from dray.client.objects import key_of
from dray.client.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS
from dray.controllers.reconciler import ControllerContext, Reconciler

PODS_BY_VOLUME_CLAIM = "spec.volumes.persistentVolumeClaim.claimName"
_BOUND = "Bound"


class VolumeClaimProtectionController(Reconciler[NamespacedName]):
    """Protects claims that scheduled Pods use."""

    name = "persistentvolumeclaim-protection"
    component = "pvc-protection-controller"
    workers = 2

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._claims = context.informers.informer(PERSISTENT_VOLUME_CLAIMS)
        self._pods = context.informers.informer(PODS, indexes={PODS_BY_VOLUME_CLAIM: ImmutableFields(_claim_keys)})
        self.controller.follow(self._claims, self._claim_changed)
        self.controller.follow(self._pods, self._pod_changed, needed_while=self._claims.lister.namespaces)

    def _claim_changed(self, _old: Document | None, new: Document | None) -> None:
        if new is not None and _needs_write(new, PVC_PROTECTION):
            self.controller.queue.add(key_of(new))

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Look at the claims of a Pod that may no longer use them; another Pod may have taken its name meanwhile."""
        keys: set[NamespacedName] = set()
        for pod in (old, new):
            if pod is not None:
                keys.update(_claim_keys(pod))
        for key in sorted(keys):
            claim = self._claims.lister.get_key(key)
            if claim is not None and _needs_write(claim, PVC_PROTECTION):
                self.controller.queue.add(key)

    async def reconcile(self, key: NamespacedName) -> Result:
        """Add the finalizer, or remove it from a claim that is being deleted and that no Pod uses."""
        claim = self._claims.lister.get_key(key)
        if claim is None or not _needs_write(claim, PVC_PROTECTION):
            return None
        if _is_terminating(claim):
            if any(is_claim_used_by(claim, pod) for pod in self._pods.lister.by_index(PODS_BY_VOLUME_CLAIM, key)):
                return None
            # The informer may lack Pods that were just created or scheduled.
            page = await self._client.list(PODS, key.namespace, ListOptions())
            if any(is_claim_used_by(claim, pod) for pod in page.items):
                return None
        changed = _with_finalizer_changed(claim, PVC_PROTECTION)
        await ignore_not_found(self._client.update(PERSISTENT_VOLUME_CLAIMS, changed))
        return None


class VolumeProtectionController(Reconciler[str]):
    """Protects volumes that are bound to a claim."""

    name = "persistentvolume-protection"
    component = "pv-protection-controller"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._volumes = context.informers.informer(PERSISTENT_VOLUMES)
        self.controller.follow(self._volumes, self._volume_changed)

    def _volume_changed(self, _old: Document | None, new: Document | None) -> None:
        if new is not None and _needs_write(new, PV_PROTECTION):
            self.controller.queue.add(new["metadata"]["name"])

    async def reconcile(self, key: str) -> Result:
        """Add the finalizer, or remove it from a volume that is being deleted and is not bound."""
        volume = self._volumes.lister.get(key)
        if volume is None or not _needs_write(volume, PV_PROTECTION):
            return None
        if _is_terminating(volume) and phase_of(volume) == _BOUND:
            return None
        changed = _with_finalizer_changed(volume, PV_PROTECTION)
        await ignore_not_found(self._client.update(PERSISTENT_VOLUMES, changed))
        return None


def _claim_keys(pod: Pod) -> tuple[NamespacedName, ...]:
    """Return the volume claims of a Pod, for the index `PODS_BY_VOLUME_CLAIM`."""
    names = claim_names(pod)
    if not names:
        return ()
    namespace = pod.metadata.namespace or ""
    return tuple(NamespacedName(namespace, name) for name, _ in names)


def _is_terminating(item: Document) -> bool:
    return bool(item["metadata"].get("deletionTimestamp"))


def _has_finalizer(item: Document, finalizer: str) -> bool:
    return finalizer in (item["metadata"].get("finalizers") or ())


def _needs_write(item: Document, finalizer: str) -> bool:
    """Return whether the finalizer is missing, or is to be removed once the object is not in use."""
    return _is_terminating(item) == _has_finalizer(item, finalizer)


def _with_finalizer_changed(item: Document, finalizer: str) -> Document:
    """Return the object without the finalizer if it is being deleted, else with it."""
    others = [name for name in item["metadata"].get("finalizers") or () if name != finalizer]
    finalizers = others if _is_terminating(item) else [*others, finalizer]
    return {**item, "metadata": {**item["metadata"], "finalizers": finalizers}}
