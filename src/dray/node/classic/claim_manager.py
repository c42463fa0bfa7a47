"""Classic claims of one node: performs what the claim book decides, with the plugins of classic drivers.

The owner runs `run`, registers the object as the handler of `ResourcePlugin` plugins, and calls `prepare` before a
Pod's sandbox is made, `container_devices` when a container is made, and `release` when all have ended. Until
`prepare` has succeeded nobody else need know which group a claim's name belongs to: then `has_claim` tells.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from dray.api import classic_claims as classic
from dray.api.classic_claims import Actor, ClassicEntry
from dray.api.document import UID, NamespacedName
from dray.api.errors import APIError, ConflictError, ForbiddenError, NotFoundError
from dray.api.pod_claims import is_reserved_for
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.api.types.core_v1 import Container, Pod
from dray.client.interface import Client, ignore_not_found
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
from dray.node.classic.driver_client import ClassicDriverClient, UnknownResourceError
from dray.node.dra.claim_info_cache import CallPrepare, CallUnprepare, ClaimRef, DriverPrepared, DriverUnprepared
from dray.node.dra.claim_manager import EXPECTED, ClaimKeeper
from dray.node.dra.claims import ClaimError, ClaimInfo
from dray.node.dra.driver_registry import DriverRegistry
from dray.node.dra.metrics import DriverMetrics
from dray.node.plugins.handler import Plugin, PluginError
from dray.runtime.logs import fields
from dray.runtime.metrics import Metrics

_log = logging.getLogger(__name__)


FILE_NAME: Final = "classic_claims_state"
# How long a server is believed to have no classic claims.
ABSENT_SECONDS: Final = 60.0
# Several nodes may take their Pods out of a shared claim at once; each round one of them gets through.
UNRESERVE_ATTEMPTS_MAX: Final = 10


class ReleaseError(Exception):
    """The Pod cannot finish yet."""


class ClassicResources:
    """See the module; raises `CheckpointError` when the last checkpoint is damaged."""

    def __init__(self, client: Client, root: str, clock: Clock, metrics: Metrics) -> None:
        self._client = client
        self._clock = clock
        self._metrics = DriverMetrics(metrics, prefix="classic_")
        self._keeper = ClaimKeeper(str(Path(root) / FILE_NAME), self._call, clock, self._show_claims, batched=False)
        self._book = self._keeper.book
        self._instances: DriverRegistry[ClassicDriverClient] = DriverRegistry()
        # Until then the server is known to have no classic claims.
        self._absent_until = 0.0
        # Told that a driver has come; set by the owner.
        self.on_driver: Callable[[], None] = lambda: None
        self._show_claims()

    async def run(self, known_pods: Callable[[], Collection[UID] | None] = lambda: None) -> None:
        """Serve plugins, and reconcile with the known Pods (None: not known yet) until cancelled."""
        async with self._instances.running("classic claims") as group:
            group.spawn(self._keeper.run(known_pods, self.reconcile), "claims of gone pods")
            await group.wait(asyncio.Event())

    async def reconcile(self, known_pods: Collection[UID]) -> None:
        """Unprepare what Pods left behind that the node no longer has; failures are tried again the next time."""
        for uid in self._keeper.left_behind(known_pods):
            try:
                await self._keeper.leave(uid)
            except EXPECTED as error:
                _log.warning("claims of a gone pod", extra=fields(pod_uid=uid, error=str(error)))

    def look_again(self) -> None:
        """The known Pods have become fewer: reconcile now."""
        self._keeper.look_again()

    # --- For whoever runs Pods. ---

    async def prepare(self, pod: Pod) -> None:
        """Have the plugins prepare the Pod's classic claims; raises `ClaimError`."""
        try:
            infos = await self._validated(pod)
            # Without any, the keeper would wait for the Pod's lock for nothing.
            if infos:
                with self._metrics.operation("PrepareResources", self._clock):
                    await self._keeper.admit(_uid(pod), infos)
        except EXPECTED as error:
            raise ClaimError(f"prepare classic resources: {error}") from error

    async def release(self, pod: Pod) -> None:
        """Give the Pod's claims up, and if it is deleted take it out of their users; raises `ReleaseError`.

        A Pod that ends by itself is still expected among the users when the agent restarts before it has told of the
        end; once it has, the claim controller takes it out.
        """
        try:
            if self._book.claims_of(_uid(pod)):
                with self._metrics.operation("UnprepareResources", self._clock):
                    await self._keeper.leave(_uid(pod))
            if pod.metadata.deletion_timestamp is not None:
                for wanted in possible_entries(pod):
                    await self._unreserve(pod, claim_key(pod, wanted))
        except (*EXPECTED, APIError) as error:
            raise ReleaseError(f"unprepare classic resources: {error}") from error

    def has_claim(self, pod: Pod, name: str) -> bool:
        """Whether the Pod uses a classic claim of the name."""
        return self._book.used_by(_uid(pod), NamespacedName(pod.metadata.namespace or "", name)) is not None

    def container_devices(self, pod: Pod, container: Container) -> tuple[str, ...]:
        """The CDI names of the container's classic claims."""
        keys = (claim_key(pod, wanted) for wanted in container_claims(pod, container))
        infos = (self._book.used_by(_uid(pod), key) for key in keys)
        return tuple(name for info in infos if info is not None for name in cdi_devices_of(info))

    def claims(self) -> tuple[ClaimInfo, ...]:
        """All classic claims in use on the node."""
        return self._book.claims()

    # --- The handler of plugins. ---

    def validate(self, plugin: Plugin) -> None:
        """Any list of versions will do."""
        if not plugin.name:
            raise PluginError(f"resource plugin at endpoint {plugin.endpoint} has no name")

    async def register(self, plugin: Plugin) -> None:
        """Connect to the instance; the newest connected one is used from then on."""
        await self._instances.wait_running()
        await self._instances.add(
            ClassicDriverClient(plugin.name, plugin.endpoint, self._metrics, self._clock, lambda: None)
        )
        # What could not be unprepared without the driver now can.
        self._keeper.look_again()
        self.on_driver()

    async def deregister(self, plugin: Plugin) -> None:
        """Give up the instance; calls under way fail and are made again elsewhere."""
        await self._instances.remove(plugin)

    # --- Preparing. ---

    async def _validated(self, pod: Pod) -> tuple[ClaimInfo, ...]:
        """Check everything before anything is noted: a Pod that fails here can go without a trace."""
        infos: dict[UID, ClaimInfo] = {}
        for wanted in possible_entries(pod):
            claim = await self._fetch(pod, wanted)
            if claim is None or is_left_out(pod, wanted, claim):
                continue
            info = check_usable(pod, wanted, claim)
            for driver in info.drivers:
                self._connection(driver)
            # Two entries may name one claim.
            infos[info.uid] = info
        return tuple(infos.values())

    async def _fetch(self, pod: Pod, wanted: ClassicEntry) -> ResourceClaim | None:
        """None when the name is not one of a classic claim, or when the Pod can do without."""
        key = claim_key(pod, wanted)
        try:
            claim = await self._read(key)
            if claim is None and wanted.generated and not wanted.optional:
                raise ClaimError(f"ResourceClaim {key.name} does not exist")
            if claim is None or wanted.generated or self.has_claim(pod, key.name):
                return claim
            other = await ignore_not_found(self._client.get(RESOURCE_CLAIMS, key.name, key.namespace))
        except APIError as error:
            raise ClaimError(f"fetch ResourceClaim {key.name}: {error}") from error
        if other is None:
            return claim
        # The scheduler lets no such Pod through: one of the two came later, and is not the Pod's.
        ours = classic.is_reserved_for(claim, pod)
        if ours == is_reserved_for(other, pod):
            raise ClaimError(
                f'resourceclaim "{key.name}" exists in resource.k8s.io and in {classic.GROUP}, one of them must go'
            )
        return claim if ours else None

    async def _read(self, key: NamespacedName) -> ResourceClaim | None:
        """The claim, if there is one. A server without such claims may forbid to ask for them."""
        if self._clock.monotonic() < self._absent_until:
            return None
        try:
            return await ignore_not_found(self._client.get(CLASSIC_CLAIMS, key.name, key.namespace))
        except ForbiddenError:
            if any(
                (item.group, item.plural) == (CLASSIC_CLAIMS.group, CLASSIC_CLAIMS.plural)
                for item in await self._client.resources()
            ):
                raise
            self._absent_until = self._clock.monotonic() + ABSENT_SECONDS
            return None

    async def _call(self, action: CallPrepare | CallUnprepare) -> DriverPrepared | DriverUnprepared:
        connection = self._connection(action.driver)
        (claim,) = action.claims
        if isinstance(action, CallPrepare):
            # When the plugin does not know it, the next attempt looks at the claim first.
            device = prepared_device(await connection.prepare(claim.uid))
            return DriverPrepared(action.driver, {claim.uid: (device,)})
        try:
            await connection.unprepare(claim.uid, self._answered(claim))
        except UnknownResourceError:
            if await self._exists(claim):
                raise
            # The claim is gone, and with it what there was to undo.
        return DriverUnprepared(action.driver, (claim.uid,))

    def _answered(self, claim: ClaimRef) -> tuple[str, ...]:
        info = self._book.get(claim.key)
        return () if info is None else cdi_devices_of(info)

    async def _exists(self, claim: ClaimRef) -> bool:
        try:
            found = await ignore_not_found(self._client.get(CLASSIC_CLAIMS, claim.key.name, claim.key.namespace))
        except ForbiddenError:
            # The node may no longer ask, since no Pod here refers to the claim any more.
            return False
        except APIError as error:
            raise ClaimError(f"fetch ResourceClaim {claim.key.name}: {error}") from error
        return found is not None and found.metadata.uid == claim.uid

    # --- Leaving. ---

    async def _unreserve(self, pod: Pod, key: NamespacedName) -> None:
        for _ in range(UNRESERVE_ATTEMPTS_MAX):
            try:
                claim = await self._read(key)
                if claim is None or not classic.is_reserved_for(claim, pod):
                    return
                after = classic.without_user(claim, pod.metadata.uid or "")
                classic.check_move(Actor.NODE, claim, after)
                await self._client.update_status(CLASSIC_CLAIMS, after)
            except ConflictError:
                continue
            except NotFoundError:
                return
            except ForbiddenError as error:
                # The Pod is gone from the API server, and its node may no longer ask; the claim controller sees to it.
                _log.info("not unreserved", extra=fields(claim=str(key), error=str(error)))
            return
        raise ClaimError(f"ResourceClaim {key.name} keeps changing")

    # --- Inside. ---

    def _connection(self, driver: str) -> ClassicDriverClient:
        connection = self._instances.get(driver)
        if connection is None:
            raise ClaimError(f"resource driver {driver} is not registered")
        return connection

    def _show_claims(self) -> None:
        self._metrics.show_claims(*self._book.counts())


def _uid(pod: Pod) -> UID:
    return UID(pod.metadata.uid or "")
