"""Classic claims in the record of prepared claims: each is one device, whose parameters are what its author needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dray.api import classic_claims as classic
from dray.api.cdi import ContainerEdits
from dray.api.document import UID, NamespacedName
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.driver.claims import AllocatedDevice, ClaimError, PreparedClaim, PreparedDevice
from dray.driver.classic.interface import Claim, NodePlugin, Prepared
from dray.driver.prepared.checkpoint import AnsweredDevice

RESOURCE: Final = "resource"


@dataclass(frozen=True, slots=True)
class FoundClaim:
    """A claim that is to be prepared."""

    claim: Claim

    @property
    def uid(self) -> UID:
        """Which it is."""
        return self.claim.uid

    @property
    def key(self) -> NamespacedName:
        """Its name."""
        return self.claim.key

    @property
    def devices(self) -> tuple[AllocatedDevice, ...]:
        """The one device that stands for it."""
        kept = {
            "class": self.claim.class_name,
            "classParameters": dict(self.claim.class_parameters),
            "parameters": dict(self.claim.parameters),
            "attributes": dict(self.claim.attributes),
        }
        return (AllocatedDevice("", "", RESOURCE, parameters=(kept,)),)


def check_allocated(claim: ResourceClaim, driver: str) -> None:
    """Raise unless the claim has something of the driver's."""
    status = classic.status_of(claim)
    if not classic.is_allocated(claim):
        raise ClaimError(f"claim {classic.label(claim)} not allocated")
    if status.driver_name != driver:
        raise ClaimError(f"claim {classic.label(claim)} was allocated by {status.driver_name}")


def from_record(prepared: PreparedClaim) -> Claim:
    """The claim as it was when it was prepared."""
    (kept,) = prepared.devices[0].parameters
    return Claim(
        prepared.key, prepared.uid, kept["class"], kept["parameters"], kept["classParameters"], kept["attributes"]
    )


def cdi_devices(answer: Sequence[AnsweredDevice]) -> list[str]:
    """What the node agent is told."""
    return [name for device in answer for name in device.cdi_device_ids]


class PluginAuthor:
    """A plugin's code in the form that the record's keeper calls: coroutines stay so, and so do plain methods."""

    def __init__(self, plugin: NodePlugin) -> None:
        self.name = plugin.name
        self._plugin = plugin
        self.prepare: Callable[[Any], Any] = self._prepare
        self.unprepare: Callable[[PreparedClaim], Any] = self._unprepare
        if inspect.iscoroutinefunction(plugin.prepare):
            self.prepare = self._prepare_here
        if inspect.iscoroutinefunction(plugin.unprepare):
            self.unprepare = self._unprepare_here

    def _prepare(self, found: FoundClaim) -> tuple[PreparedDevice, ...]:
        return _prepared(found, self._plugin.prepare(found.claim))

    async def _prepare_here(self, found: FoundClaim) -> tuple[PreparedDevice, ...]:
        return _prepared(found, await self._plugin.prepare(found.claim))  # type: ignore[misc]

    def _unprepare(self, prepared: PreparedClaim) -> None:
        self._plugin.unprepare(from_record(prepared))

    async def _unprepare_here(self, prepared: PreparedClaim) -> None:
        await self._plugin.unprepare(from_record(prepared))  # type: ignore[misc]


def _prepared(found: FoundClaim, given: Prepared | Any) -> tuple[PreparedDevice, ...]:
    (device,) = found.devices
    if isinstance(given, ContainerEdits):
        return (device.prepared(given),)
    return (device.prepared(cdi_device_ids=tuple(given or ())),)
