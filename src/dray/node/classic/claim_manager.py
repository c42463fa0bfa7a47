"""The manager of claims of cdi.k8s.io: prepares and unprepares the classic claims of Pods with their drivers' plugins.

A claim's name does not tell which API group it belongs to. When `prepare` has succeeded, `has_claim` tells.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from dray.api import classic_claims as classic
from dray.api.classic_claims import Actor, ClassicEntry
from dray.api.document import UID, NamespacedName
from dray.api.errors import APIError, ConflictError, ForbiddenError, NotFoundError
from dray.api.features import FeatureGates
from dray.api.pod_claims import is_reserved_for
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.api.types.core_v1 import Container, Pod
from dray.client.errors import ignore_not_found
from dray.client.interface import Client
from dray.client.resources import CLASSIC_CLAIMS, RESOURCE_CLAIMS
from dray.lib.clock import Clock
from dray.node.classic.claims import (
    cdi_devices_of,
    check_usable,
    claim_key,
    container_claims,
    is_left_out,
    possible_entries,
    prepared_device,
)
from dray.node.classic.driver_client import PREPARE, ClassicDriverClient, UnknownResourceError
from dray.node.dra.claim_info_cache import CallPrepare, ClaimRef, DriverPrepared, DriverUnprepared
from dray.node.dra.claim_manager import (
    EXPECTED,
    FAILED_PREPARE,
    FAILED_UNPREPARE,
    Call,
    CallResult,
    ClaimManager,
    disabled,
    find_container,
    uid_of,
)
from dray.node.dra.claims import ClaimError, ClaimInfo, ContainerClaim
from dray.node.dra.metrics import DriverMetrics
from dray.node.plugins.handler import Plugin, PluginError
from dray.node.resource_manager import NO_OPTIONS, ResourceError, RunOptions
from dray.runtime.logs import fields
from dray.runtime.metrics import Metrics

_log = logging.getLogger(__name__)

FILE_NAME: Final = "classic_claims_state"
NEEDED_GATES: Final = ("DynamicResourceAllocation", "DRAControlPlaneController")
ALL: Final = FeatureGates()
# How long a server is assumed to have no classic claims after it answered so.
ABSENT_SECONDS: Final = 60.0
# Several nodes may remove their Pods from a shared claim concurrently; in each round one of them succeeds.
UNRESERVE_ATTEMPTS_MAX: Final = 10


class ClassicClaimManager(ClaimManager[ClassicDriverClient]):
    """Implements `ResourceManager` for classic claims; Pods pass through it before the `DraManager`."""

    name = "classic claims"
    driver_kind = "resource driver"
    method = PREPARE
    annotation = "dray.dev/classic-claims"
    # One failing claim must not fail the others.
    batched = False

    def __init__(self, client: Client, root: str, clock: Clock, metrics: Metrics, gates: FeatureGates = ALL) -> None:
        super().__init__(str(Path(root) / FILE_NAME), clock, DriverMetrics(metrics, prefix="classic_"))
        self._api = client
        # While one of these is disabled, Pods keep the claims that they have, and get no others.
        self._disabled_gate = next((gate for gate in NEEDED_GATES if not gates.enabled(gate)), None)
        # Until then the server is known to have no classic claims.
        self._absent_until = 0.0

    # --- Drivers. ---

    def validate(self, plugin: Plugin) -> None:
        """Raise `PluginError` if the plugin has no name; any list of versions is accepted."""
        if not plugin.name:
            raise PluginError(f"resource plugin at endpoint {plugin.endpoint} has no name")

    def _connect(self, plugin: Plugin) -> ClassicDriverClient:
        return ClassicDriverClient(plugin, self._options)

    # --- `ResourceManager`. ---

    async def prepare(self, pod: Pod) -> None:
        """Prepare the Pod's classic claims; raises `ResourceError`."""
        if not pod.spec.resource_claims:
            return
        try:
            infos = await self._usable_claims(pod)
            # Without any, there is no need to wait for the Pod's lock.
            if infos:
                with self._metrics.operation("PrepareResources", self._clock):
                    await self._prepare(pod, infos)
        except EXPECTED as error:
            text = f"Failed to prepare dynamic resources: prepare classic resources: {error}"
            raise ResourceError(FAILED_PREPARE, text) from error

    async def release(self, pod: Pod) -> None:
        """Unprepare the Pod's claims, and remove a deleted Pod from their users; raises `ResourceError`.

        A Pod that has completed stays a user: until its final status is written, an agent restart prepares its claims
        again. Then the claim controller removes it.
        """
        if not pod.spec.resource_claims:
            return
        try:
            entries = self._entries(pod)
            if self._cache.claims_of(uid_of(pod)):
                await self._unprepare(uid_of(pod))
            if pod.metadata.deletion_timestamp is not None:
                for wanted in entries:
                    await self._unreserve(pod, claim_key(pod, wanted))
        except (*EXPECTED, APIError) as error:
            text = f"Failed to unprepare dynamic resources: unprepare classic resources: {error}"
            raise ResourceError(FAILED_UNPREPARE, text) from error

    def container_options(self, pod: Pod, container: str) -> RunOptions:
        """Return the CDI devices of the container's claims."""
        found = find_container(pod, container)
        if found is None:
            return NO_OPTIONS
        return RunOptions(annotations=self.note(pod), cdi_devices=self.container_devices(pod, found))

    def container_devices(self, pod: Pod, container: Container) -> tuple[str, ...]:
        """Return the CDI names of the container's classic claims."""
        infos = (self._held(pod, wanted.claim_name) for wanted in container_claims(pod, container))
        return tuple(name for info in infos if info is not None for name in cdi_devices_of(info))

    def container_claims(self, pod: Pod, container: Container) -> tuple[ContainerClaim, ...]:
        """Return the classic claims that the container uses, for PodResources; raises `ClaimError`."""
        found: list[ContainerClaim] = []
        for wanted in container_claims(pod, container):
            info = self._held(pod, wanted.claim_name)
            if info is not None:
                found.append(ContainerClaim(info, ("",)))
            elif wanted.generated and not wanted.optional:
                raise ClaimError(f"ResourceClaim {wanted.claim_name} is not prepared")
        return tuple(found)

    # --- Preparing. ---

    async def _usable_claims(self, pod: Pod) -> tuple[ClaimInfo, ...]:
        """Check all claims before anything is recorded; raises `ClaimError`."""
        infos: dict[UID, ClaimInfo] = {}
        gate = self._disabled_gate
        for wanted in self._entries(pod):
            held = self._held(pod, wanted.claim_name)
            if gate is not None and held is not None:
                # Whatever the gate says, the Pod keeps what it has.
                infos[held.uid] = held
                continue
            if gate is not None and not wanted.optional:
                raise disabled(wanted.claim_name, gate)
            claim = await self._fetch(pod, wanted)
            if claim is None or is_left_out(pod, wanted, claim):
                continue
            if gate is not None:
                raise disabled(wanted.claim_name, gate)
            info = check_usable(pod, wanted, claim)
            for driver in info.drivers:
                self._client(driver)
            # Two entries may refer to the same claim.
            infos[info.uid] = info
        return tuple(infos.values())

    def _entries(self, pod: Pod) -> tuple[ClassicEntry, ...]:
        """Return the entries whose claims may be classic ones; while disabled, not those that only name a claim."""
        found = possible_entries(pod)
        if self._disabled_gate is None:
            return found
        return tuple(entry for entry in found if entry.generated or self.has_claim(pod, entry.claim_name))

    async def _fetch(self, pod: Pod, wanted: ClassicEntry) -> ResourceClaim | None:
        """Return the claim; None if the name is not that of a classic claim, or if the claim is optional."""
        key = claim_key(pod, wanted)
        try:
            claim = await self._read(key)
            if claim is None and wanted.generated and not wanted.optional:
                raise ClaimError(f"ResourceClaim {key.name} does not exist")
            if claim is None or wanted.generated or self.has_claim(pod, key.name):
                return claim
            other = await ignore_not_found(self._api.get(RESOURCE_CLAIMS, key.name, key.namespace))
        except APIError as error:
            raise ClaimError(f"fetch ResourceClaim {key.name}: {error}") from error
        if other is None:
            return claim
        # The scheduler rejects such Pods: one of the two was created later, and is not the Pod's.
        ours = classic.is_reserved_for(claim, pod)
        if ours == is_reserved_for(other, pod):
            raise ClaimError(
                f'resourceclaim "{key.name}" exists in resource.k8s.io and in {classic.GROUP}, one of them must go'
            )
        return claim if ours else None

    async def _read(self, key: NamespacedName) -> ResourceClaim | None:
        """Return the claim, if it exists; a server without classic claims may forbid to read them."""
        if self._clock.monotonic() < self._absent_until:
            return None
        try:
            return await ignore_not_found(self._api.get(CLASSIC_CLAIMS, key.name, key.namespace))
        except ForbiddenError:
            if any(
                (item.group, item.plural) == (CLASSIC_CLAIMS.group, CLASSIC_CLAIMS.plural)
                for item in await self._api.resources()
            ):
                raise
            self._absent_until = self._clock.monotonic() + ABSENT_SECONDS
            return None

    async def _call(self, client: ClassicDriverClient, action: Call) -> CallResult:
        (claim,) = action.claims
        if isinstance(action, CallPrepare):
            # If the plugin does not know the resource, the next attempt checks the claim first.
            device = prepared_device(await client.prepare(claim.uid))
            return DriverPrepared(action.driver, {claim.uid: (device,)})
        try:
            await client.unprepare(claim.uid, self._prepared_devices(claim))
        except UnknownResourceError:
            if await self._exists(claim):
                raise
            # The claim is gone, and there is nothing to unprepare.
        return DriverUnprepared(action.driver, (claim.uid,))

    def _prepared_devices(self, claim: ClaimRef) -> tuple[str, ...]:
        info = self._cache.get(claim.key)
        return () if info is None else cdi_devices_of(info)

    async def _exists(self, claim: ClaimRef) -> bool:
        try:
            found = await ignore_not_found(self._api.get(CLASSIC_CLAIMS, claim.key.name, claim.key.namespace))
        except ForbiddenError:
            # The node may not read the claim, since no Pod here refers to it any more.
            return False
        except APIError as error:
            raise ClaimError(f"fetch ResourceClaim {claim.key.name}: {error}") from error
        return found is not None and found.metadata.uid == claim.uid

    # --- Unreserving. ---

    async def _unreserve(self, pod: Pod, key: NamespacedName) -> None:
        for _ in range(UNRESERVE_ATTEMPTS_MAX):
            try:
                claim = await self._read(key)
                if claim is None or not classic.is_reserved_for(claim, pod):
                    return
                after = classic.without_user(claim, pod.metadata.uid or "")
                classic.check_transition(Actor.NODE, claim, after)
                await self._api.update_status(CLASSIC_CLAIMS, after)
            except ConflictError:
                continue
            except NotFoundError:
                return
            except ForbiddenError as error:
                # The Pod is deleted, and its node may not read the claim; the claim controller removes it.
                _log.info("claim not unreserved", extra=fields(claim=str(key), error=str(error)))
            return
        raise ClaimError(f"ResourceClaim {key.name} keeps changing")
