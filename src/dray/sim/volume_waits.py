"""Whether a Pod in a replica waits for a volume claim, as it would in the cluster. Pure.

A replica does not provision volumes, and a snapshot from files may lack claims that exist. So a claim that cannot be
used keeps a Pod pending only if that is known of the cluster, as `dray explain` says it.
"""

from __future__ import annotations

from dray.api.document import Document, NamespacedName
from dray.api.persistent_volumes import class_of, provisioner_of
from dray.api.types.core_v1 import Pod
from dray.client.objects import key_of
from dray.scheduler.plugins.volume_claims import claim_problem
from dray.sim.scheduler_messages import reports_missing_claim, reports_unbound_claims, scheduler_message
from dray.sim.snapshot import Snapshot


class VolumeWaits:
    """The volume claims of a cluster that keep Pods pending."""

    def __init__(self, snapshot: Snapshot) -> None:
        # As the cluster was read: the run changes claims and conditions.
        self._snapshot = snapshot
        self._messages = {key_of(pod): scheduler_message(pod) for pod in snapshot.pods if not pod.spec.node_name}

    def waits(self, pod: Pod, name: str, claim: Document | None) -> bool:
        """Return whether a Pod waits for a claim that is not usable in the replica; it is None if it does not exist."""
        message = self._messages.get(key_of(pod), "")
        if claim is None:
            return reports_missing_claim(message, name) or self._knows_all("PersistentVolumeClaim")
        before = self._snapshot.volume_claims.get(NamespacedName(pod.metadata.namespace or "", name))
        if before is not None and claim_problem(name, before, ephemeral=False):
            return True
        if before is not None and before["spec"].get("volumeName"):
            # It is bound; what the replica lacks is its volume.
            return False
        class_name = class_of(claim)
        storage_class = self._snapshot.storage_classes.get(class_name)
        if class_name and storage_class is None and not self._knows_all("StorageClass"):
            return reports_unbound_claims(message)
        if before is None and provisioner_of(storage_class):
            # It is created in the run, and its provisioner does not run here.
            return False
        return before is not None or self._knows_all("PersistentVolume")

    def waits_as_known(self, pod: Pod, name: str, claim: Document | None) -> bool:
        """Return whether a pending Pod of the cluster waits for a claim; other Pods do not."""
        return key_of(pod) in self._messages and self.waits(pod, name, claim)

    def _knows_all(self, kind: str) -> bool:
        """Return whether an object of the kind that is not in the snapshot does not exist."""
        snapshot = self._snapshot
        return (kind in snapshot.listed or bool(snapshot.documents.get(kind))) and snapshot.covers(kind, "Pod")
