"""Calls a driver's `bind` for claims whose devices have binding conditions, and reports the conditions.

The scheduler binds a Pod only when all binding conditions of its devices are true, so that slow work such as attaching
a device over a fabric happens before the Pod is on the node. Only drivers that override `bind` watch claims.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from dray.api.document import UID, NamespacedName
from dray.api.types.resource_v1 import DeviceRequestAllocationResult, ResourceClaim
from dray.api.validation.resource_claim_status import DeviceID
from dray.client.controller import Controller
from dray.client.resources import RESOURCE_CLAIMS
from dray.client.shared_informers import SharedInformer, SharedInformerFactory
from dray.driver.claims import Claim, ClaimError, claim_for
from dray.driver.device_status import DeviceCondition, id_of
from dray.driver.interface import Driver
from dray.driver.program import call_author
from dray.driver.status_reporter import StatusReporter
from dray.lib.clock import Clock
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)

BOUND: Final = "Bound"
FAILED: Final = "BindingFailed"
# Kubernetes' limit of a condition's message.
_MESSAGE_LENGTH_MAX: Final = 32768


def is_overridden(driver: Driver) -> bool:
    """Whether the driver has a `bind` of its own."""
    return type(driver).bind is not Driver.bind


def unbound_results(
    claim: ResourceClaim, driver: str, has_pool: Callable[[str], bool]
) -> dict[DeviceID, DeviceRequestAllocationResult]:
    """Return the driver's devices that wait for their binding conditions; none if one has failed."""
    if claim.status.allocation is None or claim.metadata.deletion_timestamp is not None:
        return {}
    true = {
        (item.driver, item.pool, item.device, item.share_id or ""): {
            condition.type for condition in item.conditions if condition.status == "True"
        }
        for item in claim.status.devices
    }
    found: dict[DeviceID, DeviceRequestAllocationResult] = {}
    for result in claim.status.allocation.devices.results:
        if result.driver != driver or not result.binding_conditions or not has_pool(result.pool):
            continue
        key = (result.driver, result.pool, result.device, result.share_id or "")
        reached = true.get(key, set())
        if reached & set(result.binding_failure_conditions):
            return {}
        if not reached.issuperset(result.binding_conditions):
            found[key] = result
    return found


class DeviceBinder:
    """Binds the devices of one driver, in the pools that it publishes."""

    def __init__(
        self,
        driver: Driver,
        informers: SharedInformerFactory,
        reporter: StatusReporter,
        clock: Clock,
        has_pool: Callable[[str], bool],
    ) -> None:
        self._driver = driver
        self._reporter = reporter
        self._has_pool = has_pool
        self._claims: SharedInformer[ResourceClaim] = informers.informer(RESOURCE_CLAIMS)
        self._controller: Controller[NamespacedName] = Controller("device binding", self._reconcile, clock)
        self._controller.watch(self._claims, self._keys)
        # By claim, the allocation and the devices whose conditions are reported and may not be in the cache yet.
        self._reported: dict[NamespacedName, tuple[object, frozenset[DeviceID]]] = {}

    async def run(self) -> None:
        """Bind until cancelled."""
        await self._controller.run()

    def _keys(self, claim: ResourceClaim) -> Iterable[NamespacedName]:
        key = NamespacedName(claim.metadata.namespace or "", claim.metadata.name or "")
        if key in self._reported or unbound_results(claim, self._driver.name, self._has_pool):
            yield key

    async def _reconcile(self, key: NamespacedName) -> None:
        found = self._claims.lister.get(key.name, key.namespace)
        waiting = {} if found is None else unbound_results(found, self._driver.name, self._has_pool)
        if found is None or not waiting:
            self._reported.pop(key, None)
            return
        allocation = _allocation_of(found)
        reported_allocation, reported_devices = self._reported.get(key, (None, frozenset()))
        if reported_allocation == allocation and waiting.keys() <= reported_devices:
            return
        claim = claim_for(self._driver.name, UID(found.metadata.uid or ""), found)
        devices = tuple(item for item in claim.devices if id_of(self._driver.name, item) in waiting)
        try:
            await call_author(self._driver.bind, replace(claim, devices=devices))
        except ClaimError as error:
            self._report(claim, waiting, error)
        else:
            self._report(claim, waiting)
        self._reported[key] = allocation, frozenset(waiting)

    def _report(
        self, claim: Claim, waiting: dict[DeviceID, DeviceRequestAllocationResult], error: ClaimError | None = None
    ) -> None:
        if error is not None and not all(result.binding_failure_conditions for result in waiting.values()):
            # Nothing tells the scheduler that it failed: it is tried until the scheduler's timeout.
            raise error
        for device in claim.devices:
            result = waiting.get(id_of(self._driver.name, device))
            if result is None:
                continue
            types = result.binding_conditions if error is None else result.binding_failure_conditions[:1]
            reason, message = (BOUND, "") if error is None else (FAILED, str(error)[:_MESSAGE_LENGTH_MAX])
            conditions = [DeviceCondition(name, is_true=True, reason=reason, message=message) for name in types]
            self._reporter.report(claim, device, self._reporter.check(device, conditions, None, None))
        _log.info("binding reported", extra=fields(claim=str(claim.key), failed=error is not None))


def _allocation_of(claim: ResourceClaim) -> object:
    """Return what tells an allocation of the claim from a later one."""
    assert claim.status.allocation is not None
    return claim.metadata.uid, claim.status.allocation.allocation_timestamp
