"""The manager of claims of resource.k8s.io: prepares and unprepares the ResourceClaims of Pods with DRA drivers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from dray.api.codec import from_document, to_document
from dray.api.document import UID, Document, NamespacedName
from dray.api.errors import APIError, NotFoundError
from dray.api.features import FeatureGates
from dray.api.types.core_v1 import Container, Pod, ResourceStatus
from dray.api.types.resource_v1 import ResourceClaim
from dray.client.interface import Client
from dray.client.resources import RESOURCE_CLAIMS
from dray.lib.clock import Clock
from dray.node.dra import checkpoint
from dray.node.dra.claim_info_cache import CallPrepare, DriverPrepared, DriverUnprepared
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
from dray.node.dra.claims import (
    EXTENDED_RESOURCES,
    PREPARE,
    ClaimError,
    ClaimInfo,
    ContainerClaim,
    PodClaim,
    check_usable,
    container_requests,
    is_left_out,
    optional_claim_variables,
    optional_names,
    pod_claims,
    skipped_operations,
)
from dray.node.dra.driver_client import DriverClient, choose_service
from dray.node.dra.health import cache as health_cache
from dray.node.dra.health.cache import DeviceKey
from dray.node.dra.health.statuses import resource_statuses
from dray.node.dra.health.watcher import HealthWatcher
from dray.node.dra.metrics import DriverMetrics
from dray.node.dra.slice_cleaner import SliceCleaner
from dray.node.plugins.handler import Plugin
from dray.node.resource_manager import NO_OPTIONS, ResourceError, RunOptions
from dray.runtime.metrics import Metrics


@dataclass(frozen=True, slots=True)
class DraOptions:
    """The feature gates, and whether a Pod uses a classic claim of a name, which is another manager's."""

    gates: FeatureGates = field(default_factory=FeatureGates)
    has_classic_claim: Callable[[Pod, str], bool] = lambda _pod, _name: False


DEFAULT_OPTIONS: Final = DraOptions()
OPTIONAL_OPERATIONS: Final = "DRAOptionalNodeOperations"
# A newer API server has fields that the typed claim lacks.
_CLAIMS: Final = RESOURCE_CLAIMS.unstructured


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


class DraManager(ClaimManager[DriverClient]):
    """Implements `ResourceManager` for ResourceClaims."""

    name = "claims"
    driver_kind = "DRA driver"
    method = PREPARE
    annotation = "dray.dev/claims"

    def __init__(
        self,
        client: Client,
        node_name: str,
        root: str,
        clock: Clock,
        metrics: Metrics,
        options: DraOptions = DEFAULT_OPTIONS,
    ) -> None:
        super().__init__(str(Path(root) / checkpoint.FILE_NAME), clock, DriverMetrics(metrics))
        self._api = client
        self._has_classic_claim = options.has_classic_claim
        self._gates = options.gates
        self._follow_health = options.gates.enabled("ResourceHealthStatus")
        self._cleaner = SliceCleaner(client, node_name, clock)
        self._health = HealthWatcher(str(Path(root) / health_cache.FILE_NAME), clock, self._health_changed)

    # --- Drivers. ---

    def validate(self, plugin: Plugin) -> None:
        """Raise `PluginError` if none of the plugin's services is supported."""
        choose_service(plugin)

    def _connect(self, plugin: Plugin) -> DriverClient:
        return DriverClient(plugin, self._options, lambda: self._driver_changed(plugin.name))

    def _followers(self, client: DriverClient) -> Iterable[Coroutine[Any, Any, None]]:
        return (self._health.follow(client),) if self._follow_health and client.health_service else ()

    def _background(self) -> Iterable[tuple[Coroutine[Any, Any, None], str]]:
        return (self._cleaner.run(), "slice cleanup"), (self._health.run(), "health expiry")

    def _driver_changed(self, driver: str) -> None:
        if self._drivers.usable(driver):
            self._cleaner.usable(driver)
        else:
            self._cleaner.unusable(driver)

    async def _call(self, client: DriverClient, action: Call) -> CallResult:
        if isinstance(action, CallPrepare):
            return DriverPrepared(action.driver, await client.prepare(action.claims))
        return DriverUnprepared(action.driver, await client.unprepare(action.claims))

    # --- `ResourceManager`. ---

    async def prepare(self, pod: Pod) -> None:
        """Prepare the Pod's claims; raises `ResourceError`."""
        outcome = await self.prepare_claims(pod)
        if isinstance(outcome, PrepareError):
            raise ResourceError(FAILED_PREPARE, f"Failed to prepare dynamic resources: {outcome.message}")

    async def release(self, pod: Pod) -> None:
        """Unprepare the Pod's claims; raises `ResourceError`."""
        failure = await self.unprepare_claims(uid_of(pod))
        if failure is not None:
            raise ResourceError(FAILED_UNPREPARE, f"Failed to unprepare dynamic resources: {failure.message}")

    def container_options(self, pod: Pod, container: str) -> RunOptions:
        """Return the CDI devices of the container's claims, and the variables about its optional claims."""
        found = find_container(pod, container)
        if found is None:
            return NO_OPTIONS
        try:
            devices = self.container_devices(pod, found)
            variables = optional_claim_variables(pod, found, lambda name: self._has_any_claim(pod, name))
        except ClaimError as error:
            raise ResourceError(FAILED_PREPARE, str(error)) from error
        return RunOptions(envs=variables, annotations=self.note(pod), cdi_devices=devices)

    def container_resources(self, pod: Pod, container: str) -> Sequence[Document]:
        """Return the health of the container's devices."""
        found = find_container(pod, container) if self._follow_health else None
        return [] if found is None else [to_document(item) for item in self.resource_statuses(pod, found)]

    # --- Claims of Pods. ---

    async def prepare_claims(self, pod: Pod) -> Prepared | PrepareError:
        """Prepare the Pod's claims, except those that are prepared already."""
        try:
            with self._metrics.operation("PrepareResources", self._clock):
                return Prepared(await self._prepare(pod, await self._usable_claims(pod)))
        except EXPECTED as error:
            return PrepareError(f"prepare dynamic resources: {error}")

    async def unprepare_claims(self, pod_uid: UID) -> UnprepareError | None:
        """Unprepare the Pod's claims, except those that other Pods use."""
        try:
            await self._unprepare(pod_uid)
        except EXPECTED as error:
            return UnprepareError(f"unprepare dynamic resources: {error}")
        return None

    def uses_claims(self, pod_uid: UID) -> bool:
        """Whether the Pod holds any claim, prepared or not."""
        return bool(self._cache.claims_of(pod_uid))

    def container_devices(self, pod: Pod, container: Container) -> tuple[str, ...]:
        """Return the CDI names of the container's devices, in the order of its claims; raises `ClaimError`."""
        return tuple(
            name
            for claim, request in self._requests(pod, container)
            for name in self._info(pod, claim).cdi_device_ids(request)
        )

    def container_claims(self, pod: Pod, container: Container) -> tuple[ContainerClaim, ...]:
        """Return the claims that the container uses, each once, for PodResources; raises `ClaimError`."""
        requests: dict[str, list[str]] = {}
        for name, request in self._requests(pod, container):
            requests.setdefault(name, []).append(request)
        return tuple(ContainerClaim(self._info(pod, name), tuple(asked)) for name, asked in requests.items())

    def resource_statuses(self, pod: Pod, container: Container) -> tuple[ResourceStatus, ...]:
        """Return the container's `allocatedResourcesStatus` entries for devices of claims."""
        return resource_statuses(pod, container, self._cache.get, self._health.get)

    async def _usable_claims(self, pod: Pod) -> tuple[ClaimInfo, ...]:
        """Check all claims before anything is recorded; raises `ClaimError`."""
        infos = []
        for wanted in pod_claims(pod):
            if self._has_classic_claim(pod, wanted.name):
                continue
            gate = self._disabled_gate(wanted)
            held = self._held(pod, wanted.name)
            if gate is not None and held is not None:
                # Whatever the gate says, the Pod keeps what it has.
                infos.append(held)
                continue
            if gate is not None and not wanted.optional:
                raise disabled(wanted.name, gate)
            document = await self._fetch(pod, wanted)
            claim = None if document is None else from_document(ResourceClaim, document)
            if document is None or claim is None or is_left_out(pod, wanted, claim):
                continue
            if gate is not None:
                raise disabled(wanted.name, gate)
            info = replace(check_usable(pod, wanted, claim), skipped=skipped_operations(_results(document)))
            if info.skipped and not self._gates.enabled(OPTIONAL_OPERATIONS):
                raise ClaimError(
                    f"ResourceClaim {wanted.name}: {OPTIONAL_OPERATIONS} feature gate is disabled on kubelet"
                )
            for driver in info.drivers:
                if not info.skips(driver, PREPARE):
                    self._client(driver)
            infos.append(info)
        return tuple(infos)

    def _disabled_gate(self, wanted: PodClaim) -> str | None:
        """Return the feature gate that the claim needs and that is disabled; None if all are enabled."""
        needed = ["DynamicResourceAllocation", *(["DRAExtendedResource"] if wanted.entry == EXTENDED_RESOURCES else [])]
        return next((gate for gate in needed if not self._gates.enabled(gate)), None)

    async def _fetch(self, pod: Pod, wanted: PodClaim) -> Document | None:
        """Return the claim; None if it does not exist and is optional."""
        try:
            return await self._api.get(_CLAIMS, wanted.name, pod.metadata.namespace or "")
        except APIError as error:
            if wanted.optional and isinstance(error, NotFoundError):
                return None
            raise ClaimError(f"fetch ResourceClaim {wanted.name}: {error}") from error

    def _requests(self, pod: Pod, container: Container) -> Iterator[tuple[str, str]]:
        """Yield the container's requests of claims that are this manager's and that the Pod has."""
        optional = optional_names(pod)
        for name, request in container_requests(pod, container):
            if not self._has_classic_claim(pod, name) and (name not in optional or self.has_claim(pod, name)):
                yield name, request

    def _has_any_claim(self, pod: Pod, name: str) -> bool:
        return self.has_claim(pod, name) or self._has_classic_claim(pod, name)

    def _info(self, pod: Pod, name: str) -> ClaimInfo:
        namespace = pod.metadata.namespace or ""
        info = self._cache.get(NamespacedName(namespace, name))
        if info is None:
            text = f"unable to get claim info for ResourceClaim {name} in namespace {namespace}"
            raise ClaimError(f"internal error: {text}")
        return info

    def _health_changed(self, keys: Iterable[DeviceKey]) -> None:
        changed = frozenset(keys)
        pods = {
            uid
            for info in self._cache.claims()
            for driver in info.drivers
            for device in info.devices[driver]
            if DeviceKey(driver, device.pool_name, device.device_name) in changed
            for uid in info.pod_uids
        }
        if pods:
            for listener in self._change_listeners:
                listener(sorted(pods))


def _results(claim: Document) -> Sequence[Document]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return (allocation.get("devices") or {}).get("results") or ()
