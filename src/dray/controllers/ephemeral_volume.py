"""Creates the claims of ephemeral volumes, which belong to their Pod."""

from __future__ import annotations

from dray.api.codec import to_document
from dray.api.document import Document, NamespacedName
from dray.api.errors import AlreadyExistsError, APIError
from dray.api.persistent_volumes import claim_name
from dray.api.types.core_v1 import Pod, Volume
from dray.client.controller import Result
from dray.client.errors import ignore_not_found
from dray.client.event_recorder import WARNING
from dray.client.objects import controller_reference, key_of
from dray.client.resources import PERSISTENT_VOLUME_CLAIMS, PODS
from dray.controllers.pod_control.pod_status import is_active
from dray.controllers.reconciler import ControllerContext, Reconciler


def ephemeral_claim(pod: Pod, volume: Volume) -> Document:
    """Return the claim of an ephemeral volume."""
    assert volume.ephemeral is not None
    template = to_document(volume.ephemeral).get("volumeClaimTemplate") or {}
    metadata = template.get("metadata") or {}
    owner = to_document(controller_reference(PODS.group_version_kind, pod.metadata))
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": claim_name(pod, volume),
            "namespace": pod.metadata.namespace,
            "labels": metadata.get("labels") or {},
            "annotations": metadata.get("annotations") or {},
            "ownerReferences": [owner],
        },
        "spec": template.get("spec") or {},
    }


class EphemeralVolumeController(Reconciler[NamespacedName]):
    """Looks at every new Pod once; the garbage collector deletes the claims with it."""

    name = "ephemeral-volume"
    component = "ephemeral_volume"
    workers = 2

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._pods = context.informers.informer(PODS)
        self.controller.follow(self._pods, self._pod_changed)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None or new is None:
            return
        for volume in new.spec.volumes:
            if volume.ephemeral is not None:
                self.controller.queue.add(key_of(new))
                return

    async def reconcile(self, key: NamespacedName) -> Result:
        """Create the missing claims of a Pod."""
        pod = self._pods.lister.get_key(key)
        if pod is None or not is_active(pod):
            return None
        for volume in pod.spec.volumes:
            if volume.ephemeral is not None:
                await self._create(pod, ephemeral_claim(pod, volume))
        return None

    async def _create(self, pod: Pod, claim: Document) -> None:
        try:
            await self._client.create(PERSISTENT_VOLUME_CLAIMS, claim)
        except AlreadyExistsError:
            await self._check_owner(pod, claim)
        except APIError as error:
            text = f"ephemeral volume {claim['metadata']['name']}: create PVC: {error.message}"
            self._report(pod, text)
            raise

    async def _check_owner(self, pod: Pod, claim: Document) -> None:
        """Report a claim of the name that somebody else has created."""
        name, namespace = claim["metadata"]["name"], pod.metadata.namespace or ""
        found = await ignore_not_found(self._client.get(PERSISTENT_VOLUME_CLAIMS, name, namespace))
        owners = (found or {}).get("metadata", {}).get("ownerReferences") or ()
        if found is not None and all(owner.get("uid") != pod.metadata.uid for owner in owners):
            whose = f"{namespace}/{pod.metadata.name}"
            self._report(pod, f"PVC {namespace}/{name} was not created for pod {whose} (pod is not owner)")

    def _report(self, pod: Pod, text: str) -> None:
        self._recorder.event(PODS.group_version_kind, pod, WARNING, "EphemeralVolumeError", text)
