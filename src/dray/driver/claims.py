"""Claims in the SDK: the devices of this driver, each with its configuration. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dray.api.cdi import NO_EDITS, ContainerEdits
from dray.api.document import UID, NamespacedName
from dray.api.types.resource_v1 import (
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceAttribute,
    DeviceRequestAllocationResult,
    NetworkDeviceData,
    ResourceClaim,
)
from dray.driver.devices import AttributeValue, attribute


class ClaimError(Exception):
    """A claim that cannot be prepared; the text is reported to the Pod."""


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """A device allocated to a request of the claim."""

    request: str
    pool: str
    name: str
    share_id: str | None = None
    admin_access: bool = False
    consumed_capacity: Mapping[str, str] = field(default_factory=dict)
    # Parameters for this device: those of the class, then those of the claim, which take precedence.
    parameters: tuple[Any, ...] = ()

    def prepared(
        self,
        edits: ContainerEdits = NO_EDITS,
        *,
        cdi_device_ids: Sequence[str] = (),
        attributes: Mapping[str, AttributeValue | DeviceAttribute] | None = None,
        network: NetworkDeviceData | None = None,
    ) -> PreparedDevice:
        """Return the prepared device with its container edits, existing CDI devices, and what its metadata shows."""
        shown = {name: attribute(value) for name, value in (attributes or {}).items()}
        return PreparedDevice(self, edits, tuple(cdi_device_ids), shown, network)


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """A prepared device: its container edits and existing CDI devices."""

    device: AllocatedDevice
    edits: ContainerEdits = NO_EDITS
    cdi_device_ids: tuple[str, ...] = ()
    # For the metadata in containers, if the driver has `metadata_versions`.
    attributes: Mapping[str, DeviceAttribute] = field(default_factory=dict)
    network: NetworkDeviceData | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim to prepare; `devices` are those of this driver."""

    uid: UID
    key: NamespacedName
    devices: tuple[AllocatedDevice, ...]
    # The API object.
    object: ResourceClaim


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """A claim to unprepare, from the driver's checkpoint: the API object may be deleted."""

    uid: UID
    key: NamespacedName
    devices: tuple[AllocatedDevice, ...]


def claim_for(driver: str, uid: UID, claim: ResourceClaim) -> Claim:
    """Return the driver's part of an allocated claim; raise `ClaimError` if it was replaced or deallocated."""
    key = NamespacedName(claim.metadata.namespace or "", claim.metadata.name or "")
    if claim.status.allocation is None:
        raise ClaimError(f"claim {key} not allocated")
    if claim.metadata.uid != uid:
        raise ClaimError(f"claim {key} got replaced")
    allocated = claim.status.allocation.devices
    devices = tuple(_allocated(driver, result, allocated) for result in allocated.results if result.driver == driver)
    return Claim(uid, key, devices, claim)


def _allocated(
    driver: str, result: DeviceRequestAllocationResult, allocated: DeviceAllocationResult
) -> AllocatedDevice:
    return AllocatedDevice(
        request=result.request,
        pool=result.pool,
        name=result.device,
        share_id=result.share_id,
        admin_access=bool(result.admin_access),
        consumed_capacity=dict(result.consumed_capacity),
        parameters=tuple(
            config.opaque.parameters
            for config in allocated.config
            if config.opaque is not None and config.opaque.driver == driver and _applies(config, result.request)
        ),
    )


def _applies(config: DeviceAllocationConfiguration, request: str) -> bool:
    """Return whether the configuration applies; no requests means all, a request includes its subrequests."""
    return not config.requests or request in config.requests or request.partition("/")[0] in config.requests
