"""PodGroupProtection: keeps a PodGroup until its Pods have finished."""

from __future__ import annotations

from typing import Final

from dray.api.document import GroupResource
from dray.api.pod_groups import PROTECTION_FINALIZER
from dray.apiserver.admission.plugin import AdmissionAttributes, AdmissionPlugin, Operation

POD_GROUPS: Final = GroupResource("scheduling.k8s.io", "podgroups")


class PodGroupProtection(AdmissionPlugin):
    """Gives every new PodGroup the finalizer that the PodGroup protection controller removes."""

    name = "PodGroupProtection"

    def handles(self, resource: GroupResource, subresource: str, operation: Operation) -> bool:
        """Take part in creates of PodGroups."""
        return resource == POD_GROUPS and operation is Operation.CREATE and not subresource

    async def admit(self, attributes: AdmissionAttributes) -> None:
        """Add the finalizer."""
        group = attributes.object
        assert group is not None
        finalizers = group["metadata"].setdefault("finalizers", [])
        if PROTECTION_FINALIZER not in finalizers:
            finalizers.append(PROTECTION_FINALIZER)
