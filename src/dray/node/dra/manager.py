"""Dynamic resources of one node: performs what the claim book decides, for whoever runs Pods.

The owner runs `run`, registers the object as the handler of `DRAPlugin` plugins, and calls:

* `prepare(pod)` before the Pod's sandbox is made, again and again until it is `Prepared`;
* `container_devices(pod, container)` when a container is made;
* `unprepare(pod_uid)` when the Pod's containers have ended for good, again until it returns None, and before the Pod
  is reported as finished (`uses_claims` says whether there is anything left);
* `reconcile(known)` with the Pods the node has, or lets `run` do so every minute.

Calls for different Pods may be made at the same time; those that share a Pod or a claim wait for each other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dray.api.document import UID, NamespacedName
from dray.api.errors import APIError, NotFoundError
from dray.api.features import FeatureGates
from dray.api.types.core_v1 import Container, Pod, ResourceStatus
from dray.api.types.resource_v1 import ResourceClaim
from dray.client.interface import Client
from dray.client.resources import RESOURCE_CLAIMS
from dray.lib.clock import Clock
from dray.node.dra import checkpoint
from dray.node.dra.claim_info_cache import CallPrepare, CallUnprepare, DriverPrepared, DriverUnprepared
from dray.node.dra.claim_manager import EXPECTED, ClaimKeeper
from dray.node.dra.claims import (
    ClaimError,
    ClaimInfo,
    PodClaim,
    check_usable,
    container_requests,
    is_left_out,
    optional_names,
    pod_claims,
)
from dray.node.dra.driver_client import DriverClient
from dray.node.dra.driver_registry import DriverRegistry
from dray.node.dra.drivers.choice import choose_service
from dray.node.dra.health import cache as health_cache
from dray.node.dra.health.cache import DeviceKey
from dray.node.dra.health.statuses import resource_statuses
from dray.node.dra.health.watcher import HealthWatcher
from dray.node.dra.metrics import DriverMetrics
from dray.node.dra.slice_cleaner import SliceCleaner
from dray.node.plugins.handler import Plugin
from dray.runtime.logs import fields
from dray.runtime.metrics import Metrics

_log = logging.getLogger(__name__)

# The reason of the event that a Pod gets while its claims cannot be prepared.
FAILED_PREPARE: Final = "FailedPrepareDynamicResources"


@dataclass(frozen=True, slots=True)
class Prepared:
    """All claims of the Pod are prepared."""

    claims: tuple[ClaimInfo, ...]


@dataclass(frozen=True, slots=True)
class PrepareError:
    """The Pod cannot start yet; `message` is for its event."""

    message: str


@dataclass(frozen=True, slots=True)
class UnprepareError:
    """The Pod cannot finish yet."""

    message: str


class DynamicResources:
    """See the module; raises `CheckpointError` when the last checkpoint is damaged."""

    def __init__(
        self,
        client: Client,
        node_name: str,
        root: str,
        clock: Clock,
        metrics: Metrics,
        gates: FeatureGates = FeatureGates(),  # noqa: B008 - immutable
    ) -> None:
        self._client = client
        self._clock = clock
        self._extended = gates.enabled("DRAExtendedResource")
        self._follow_health = gates.enabled("ResourceHealthStatus")
        self._metrics = DriverMetrics(metrics)
        path = str(Path(root) / checkpoint.FILE_NAME)
        self._keeper = ClaimKeeper(path, self._call, clock, self._show_claims)
        self._book = self._keeper.book
        self._instances: DriverRegistry[DriverClient] = DriverRegistry()
        self._cleaner = SliceCleaner(client, node_name, clock)
        self._health = HealthWatcher(str(Path(root) / health_cache.FILE_NAME), clock, self._health_changed)
        # Whether a claim that the Pod names is one of cdi.k8s.io, and so not ours; set by the owner.
        self.is_classic: Callable[[Pod, str], bool] = lambda _pod, _name: False
        # Told of Pods whose devices' health has changed; set by the owner.
        self.on_health: Callable[[frozenset[UID]], None] = lambda _: None
        # Told that a driver has come; set by the owner.
        self.on_driver: Callable[[], None] = lambda: None
        self._show_claims()

    # --- Running. ---

    async def run(self, known_pods: Callable[[], Collection[UID] | None] = lambda: None) -> None:
        """Serve plugins, clean up slices, and reconcile with the known Pods (None: not known yet) until cancelled."""
        async with self._instances.running("dynamic resources") as group:
            group.spawn(self._cleaner.run(), "slice clean-up")
            group.spawn(self._health.run(), "health expiry")
            group.spawn(self._keeper.run(known_pods, self.reconcile), "claims of gone pods")
            await group.wait(asyncio.Event())

    async def reconcile(self, known_pods: Collection[UID]) -> None:
        """Unprepare what Pods left behind that the node no longer has; failures are tried again the next time."""
        for uid in self._keeper.left_behind(known_pods):
            if (error := await self.unprepare(uid)) is not None:
                _log.warning("claims of a gone pod", extra=fields(pod_uid=uid, error=error.message))

    def look_again(self) -> None:
        """The known Pods have become fewer: reconcile now."""
        self._keeper.look_again()

    # --- For whoever runs Pods. ---

    async def prepare(self, pod: Pod) -> Prepared | PrepareError:
        """Have the drivers prepare the Pod's claims; claims that are prepared already are left alone."""
        try:
            with self._metrics.operation("PrepareResources", self._clock):
                return Prepared(await self._prepare(pod))
        except EXPECTED as error:
            return PrepareError(f"prepare dynamic resources: {error}")

    async def unprepare(self, pod_uid: UID) -> UnprepareError | None:
        """Give up the Pod's claims; drivers are asked for those that no other Pod uses."""
        try:
            with self._metrics.operation("UnprepareResources", self._clock):
                await self._keeper.leave(pod_uid)
        except EXPECTED as error:
            return UnprepareError(f"unprepare dynamic resources: {error}")
        return None

    def has_claim(self, pod: Pod, name: str) -> bool:
        """Whether the Pod uses the claim."""
        key = NamespacedName(pod.metadata.namespace or "", name)
        return self._book.used_by(UID(pod.metadata.uid or ""), key) is not None

    def uses_claims(self, pod_uid: UID) -> bool:
        """Whether the Pod still holds any claim, prepared or not."""
        return bool(self._book.claims_of(pod_uid))

    def container_devices(self, pod: Pod, container: Container) -> tuple[str, ...]:
        """The CDI names of the container's devices, in the order of its claims; raises `ClaimError`."""
        return tuple(
            name
            for claim, request in self._requests(pod, container)
            for name in self._info(pod, claim).cdi_device_ids(request)
        )

    @property
    def revision(self) -> int:
        """Another number whenever `claim_infos` may say something else."""
        return self._book.revision

    def claim_infos(self, pod: Pod, container: Container) -> tuple[ClaimInfo, ...]:
        """The claims the container uses, each once, for PodResources; raises `ClaimError`."""
        names = dict.fromkeys(name for name, _ in self._requests(pod, container))
        return tuple(self._info(pod, name) for name in names)

    def resource_statuses(self, pod: Pod, container: Container) -> tuple[ResourceStatus, ...]:
        """The container's `allocatedResourcesStatus` entries for devices of claims."""
        return resource_statuses(pod, container, self._book.get, self._health.get)

    def claims(self) -> tuple[ClaimInfo, ...]:
        """All claims in use on the node."""
        return self._book.claims()

    # --- The handler of DRA plugins. ---

    def validate(self, plugin: Plugin) -> None:
        """Raise when none of the plugin's services is ours."""
        choose_service(plugin)

    async def register(self, plugin: Plugin) -> None:
        """Connect to the instance; the newest connected one is used from then on."""
        await self._instances.wait_running()
        service = choose_service(plugin)
        driver = plugin.name
        connection = DriverClient(
            driver, plugin.endpoint, service, self._metrics, self._clock, lambda: self._sync_slices(driver)
        )
        await self._instances.add(connection, [self._health.follow(connection)] if self._follow_health else ())
        self._sync_slices(driver)
        # What could not be unprepared without the driver now can.
        self._keeper.look_again()
        self.on_driver()

    async def deregister(self, plugin: Plugin) -> None:
        """Give up the instance; calls under way fail and are made again elsewhere."""
        await self._instances.remove(plugin)
        self._sync_slices(plugin.name)

    # --- Inside. ---

    async def _prepare(self, pod: Pod) -> tuple[ClaimInfo, ...]:
        return await self._keeper.admit(UID(pod.metadata.uid or ""), await self._validated(pod))

    async def _validated(self, pod: Pod) -> tuple[ClaimInfo, ...]:
        """Check everything before anything is noted: a Pod that fails here can go without a trace."""
        infos = []
        for wanted in pod_claims(pod, extended=self._extended):
            if self.is_classic(pod, wanted.name):
                continue
            claim = await self._fetch(pod, wanted)
            if claim is None or is_left_out(pod, wanted, claim):
                continue
            info = check_usable(pod, wanted, claim)
            for driver in info.drivers:
                self._connection(driver)
            infos.append(info)
        return tuple(infos)

    async def _fetch(self, pod: Pod, wanted: PodClaim) -> ResourceClaim | None:
        """None when the Pod can do without, and has to."""
        try:
            return await self._client.get(RESOURCE_CLAIMS, wanted.name, pod.metadata.namespace or "")
        except APIError as error:
            if wanted.optional and isinstance(error, NotFoundError):
                return None
            raise ClaimError(f"fetch ResourceClaim {wanted.name}: {error}") from error

    async def _call(self, action: CallPrepare | CallUnprepare) -> DriverPrepared | DriverUnprepared:
        connection = self._connection(action.driver)
        if isinstance(action, CallPrepare):
            return DriverPrepared(action.driver, await connection.prepare(action.claims))
        return DriverUnprepared(action.driver, await connection.unprepare(action.claims))

    def _requests(self, pod: Pod, container: Container) -> Iterator[tuple[str, str]]:
        """What the container has of claims that are ours, and there."""
        optional = optional_names(pod)
        for name, request in container_requests(pod, container, extended=self._extended):
            if not self.is_classic(pod, name) and (name not in optional or self.has_claim(pod, name)):
                yield name, request

    def _connection(self, driver: str) -> DriverClient:
        connection = self._instances.get(driver)
        if connection is None:
            raise ClaimError(f"DRA driver {driver} is not registered")
        return connection

    def _info(self, pod: Pod, name: str) -> ClaimInfo:
        namespace = pod.metadata.namespace or ""
        info = self._book.get(NamespacedName(namespace, name))
        if info is None:
            text = f"unable to get claim info for ResourceClaim {name} in namespace {namespace}"
            raise ClaimError(f"internal error: {text}")
        return info

    def _sync_slices(self, driver: str) -> None:
        if self._instances.usable(driver):
            self._cleaner.usable(driver)
        else:
            self._cleaner.unusable(driver)

    def _show_claims(self) -> None:
        self._metrics.show_claims(*self._book.counts())

    def _health_changed(self, keys: Iterable[DeviceKey]) -> None:
        changed = frozenset(keys)
        pods = frozenset(
            uid
            for info in self._book.claims()
            for driver in info.drivers
            for device in info.devices[driver]
            if DeviceKey(driver, device.pool_name, device.device_name) in changed
            for uid in info.pod_uids
        )
        if pods:
            self.on_health(pods)
