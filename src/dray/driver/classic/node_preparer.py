"""Prepares classic claims by a `NodePlugin`.

In the checkpoint a classic claim is one device, whose parameters are what the plugin needs to unprepare it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dray.api import classic_claims as classic
from dray.api.cdi import ContainerEdits
from dray.api.document import UID
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.client.errors import ignore_not_found
from dray.client.interface import Client
from dray.client.resources import CLASSIC_CLAIMS, CLASSIC_CLASSES
from dray.client.shared_informers import SharedInformer, SharedInformerFactory
from dray.driver.claims import AllocatedDevice, ClaimError, PreparedClaim, PreparedDevice
from dray.driver.classic.interface import Claim, NodePlugin
from dray.driver.classic.plan import to_claim
from dray.driver.prepared.checkpoint import AnsweredDevice
from dray.driver.prepared.preparer import ClaimMissingError, ClaimRef, Preparer, PreparerOptions
from dray.driver.program import call_author

RESOURCE: Final = "resource"
_BY_UID: Final = "uid"


class NodePluginPreparer(Preparer[Claim]):
    """Kubelet identifies classic claims by uid alone, so an informer looks them up."""

    def __init__(
        self, plugin: NodePlugin, client: Client, informers: SharedInformerFactory, options: PreparerOptions
    ) -> None:
        super().__init__(options)
        self._plugin = plugin
        self._client = client
        self.informer: SharedInformer[ResourceClaim] = informers.informer(CLASSIC_CLAIMS, indexes={_BY_UID: _uid_of})

    async def _fetch(self, ref: ClaimRef) -> tuple[Claim, PreparedClaim]:
        found = await self._find(ref.uid)
        if found is None:
            raise ClaimMissingError(f"resource {ref.uid} does not exist")
        check_allocated(found, self._plugin.name)
        claim_class = await ignore_not_found(self._client.get(CLASSIC_CLASSES, found.spec.resource_class_name))
        claim = to_claim(found, claim_class)
        return claim, PreparedClaim(claim.uid, claim.key, (to_device(claim),))

    async def _find(self, uid: UID) -> ResourceClaim | None:
        """Read the claim from the API server: the informer may be behind kubelet."""
        known = next(iter(self.informer.lister.by_index(_BY_UID, uid)), None)
        if known is None:
            claims = (await self._client.list(CLASSIC_CLAIMS)).items
            return next((claim for claim in claims if claim.metadata.uid == uid), None)
        name, namespace = known.metadata.name or "", known.metadata.namespace or ""
        found = await ignore_not_found(self._client.get(CLASSIC_CLAIMS, name, namespace))
        return found if found is not None and found.metadata.uid == uid else None

    async def _call_prepare(self, claim: Claim) -> tuple[PreparedDevice, ...]:
        prepared = await call_author(self._plugin.prepare, claim)
        device = to_device(claim)
        if isinstance(prepared, ContainerEdits):
            return (device.prepared(prepared),)
        return (device.prepared(cdi_device_ids=tuple(prepared or ())),)

    async def _call_unprepare(self, claim: PreparedClaim) -> None:
        await call_author(self._plugin.unprepare, from_record(claim))


def check_allocated(claim: ResourceClaim, driver: str) -> None:
    """Raise an error unless the driver has allocated the claim."""
    status = classic.status_of(claim)
    if not classic.is_allocated(claim):
        raise ClaimError(f"claim {classic.label(claim)} not allocated")
    if status.driver_name != driver:
        raise ClaimError(f"claim {classic.label(claim)} was allocated by {status.driver_name}")


def to_device(claim: Claim) -> AllocatedDevice:
    """Return the device that represents the claim in the checkpoint."""
    parameters = {
        "class": claim.class_name,
        "classParameters": dict(claim.class_parameters),
        "parameters": dict(claim.parameters),
        "attributes": dict(claim.attributes),
    }
    return AllocatedDevice("", "", RESOURCE, parameters=(parameters,))


def from_record(prepared: PreparedClaim) -> Claim:
    """Return the claim as it was when it was prepared."""
    (parameters,) = prepared.devices[0].parameters
    return Claim(
        prepared.key,
        prepared.uid,
        parameters["class"],
        parameters["parameters"],
        parameters["classParameters"],
        parameters["attributes"],
    )


def cdi_devices(answer: Sequence[AnsweredDevice]) -> list[str]:
    """Return the CDI device names of an answer to kubelet."""
    return [name for device in answer for name in device.cdi_device_ids]


def _uid_of(claim: Any) -> tuple[str, ...]:
    return (claim.metadata.uid or "",)
