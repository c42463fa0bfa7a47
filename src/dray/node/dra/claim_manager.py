"""The base of the managers for both claim APIs: claims of Pods, prepared and unprepared by drivers.

A manager implements `ResourceManager` and is the handler of its drivers' plugins. It performs the actions of the
`ClaimInfoCache`: the checkpoint is written before any driver is called. Calls for different Pods run concurrently;
those that share a Pod or a claim wait for each other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, Generic, TypeVar

from dray.api.document import UID, Document, NamespacedName
from dray.api.types.core_v1 import Container, Pod
from dray.lib.clock import Clock
from dray.node.checkpoint_file import CheckpointFile, Loaded, load
from dray.node.dra import checkpoint
from dray.node.dra.claim_info_cache import (
    Action,
    CallPrepare,
    CallUnprepare,
    ClaimInfoCache,
    CountSkip,
    DriverPrepared,
    DriverUnprepared,
    OldClaimError,
    PodAdmitted,
    PodGone,
    SaveCheckpoint,
    merged,
)
from dray.node.dra.claims import ClaimError, ClaimInfo
from dray.node.dra.driver_client import ClientOptions, PluginClient, ResponseError
from dray.node.dra.driver_registry import DriverRegistry
from dray.node.dra.metrics import DriverMetrics
from dray.node.plugins.handler import Plugin
from dray.node.resource_manager import NodeResources, Rejection, RunOptions
from dray.node.runtimes.runtime import ContainerRecord
from dray.runtime.logs import fields
from dray.runtime.tasks import CoalescedCall, KeyedLocks, pause

_log = logging.getLogger(__name__)

RECONCILE_SECONDS: Final = 60.0
# The reasons of the events of a Pod whose claims cannot be prepared or unprepared.
FAILED_PREPARE: Final = "FailedPrepareDynamicResources"
FAILED_UNPREPARE: Final = "FailedUnprepareDynamicResources"
# The reason of the Node's event after a lost checkpoint.
CHECKPOINT_DAMAGED: Final = "ClaimCheckpointDamaged"

ClientT = TypeVar("ClientT", bound=PluginClient)
Call = CallPrepare | CallUnprepare
CallResult = DriverPrepared | DriverUnprepared


class SaveError(Exception):
    """The checkpoint was not written, so no driver may be called."""


# Failures that are not bugs: recorded as an event of the Pod, and retried.
EXPECTED: Final = (ClaimError, OldClaimError, ResponseError, SaveError)


class ClaimManager(Generic[ClientT]):
    """See the module."""

    # For logs and tasks.
    name: ClassVar[str]
    # How errors name a driver.
    driver_kind: ClassVar[str]
    # The call that prepares claims.
    method: ClassVar[str]
    # Whether a driver is called once for all claims of a Pod; otherwise each claim is a call of its own.
    batched: ClassVar[bool] = True
    # The annotation of a container with the claims of its Pod, which the container runtime keeps.
    annotation: ClassVar[str]

    def __init__(self, path: str, clock: Clock, metrics: DriverMetrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._options = ClientOptions(metrics, clock)
        self._file = CheckpointFile(path)
        self._loaded = load_checkpoint(path)
        self._cache = ClaimInfoCache(self._loaded.state or ())
        self._drivers: DriverRegistry[ClientT] = DriverRegistry()
        self._locks = KeyedLocks()
        self._save = CoalescedCall(self._write)
        self._encoded: checkpoint.Encoded = {}
        self._wake = asyncio.Event()
        # Since when drivers are preparing claims, by the Pod that waits for them.
        self._calls_of: dict[UID, dict[str, float]] = {}
        # Whether claims that were read from containers are not in a checkpoint yet.
        self._is_unsaved = False
        # Whether a Pod waits for a claim to be unprepared.
        self._is_waited_for = False
        self._driver_listeners: list[Callable[[], None]] = []
        self._change_listeners: list[Callable[[Sequence[str]], None]] = []
        self._update_metrics()

    # --- For subclasses. ---

    async def prepare(self, pod: Pod) -> None:
        """Prepare the Pod's claims; raises `ResourceError`."""
        raise NotImplementedError

    async def release(self, pod: Pod) -> None:
        """Unprepare the Pod's claims; raises `ResourceError`."""
        raise NotImplementedError

    def container_options(self, pod: Pod, container: str) -> RunOptions:
        """Return what the container's claims add to it; raises `ResourceError`."""
        raise NotImplementedError

    def validate(self, plugin: Plugin) -> None:
        """Raise `PluginError` if the plugin cannot be used."""
        raise NotImplementedError

    def _connect(self, plugin: Plugin) -> ClientT:
        """Return a client for the plugin."""
        raise NotImplementedError

    def _followers(self, _client: ClientT) -> Iterable[Coroutine[Any, Any, None]]:
        """Return what runs as long as the instance is registered."""
        return ()

    def _background(self) -> Iterable[tuple[Coroutine[Any, Any, None], str]]:
        """Return what runs as long as the manager does, with names."""
        return ()

    async def _call(self, client: ClientT, action: Call) -> CallResult:
        """Call the driver."""
        raise NotImplementedError

    # --- After a lost checkpoint. ---

    def recover(self, found: Iterable[ContainerRecord]) -> str:
        """Read from containers which claims are in use, if the newest checkpoint does not tell.

        Called before Pods are admitted, with the runs that there were when the agent started. Returns what to say of
        the damage, empty if there is none. The claims of Pods without the note are prepared once more, as all are.
        """
        if self._loaded.is_newest:
            return ""
        noted = (info for record in found for info in self._noted(record))
        self._cache = ClaimInfoCache(merged(self._cache.claims(), noted))
        self._is_unsaved = True
        self._update_metrics()
        return self._loaded.damage and f"{self._loaded.damage}; the claims in use were read from the containers"

    def _noted(self, record: ContainerRecord) -> Iterator[ClaimInfo]:
        """Yield the claims that the container's annotation tells."""
        try:
            infos = checkpoint.decode(record.annotations.get(self.annotation, "").encode())
        except checkpoint.CheckpointError:
            return
        for info in infos:
            if info.key.namespace == record.pod_namespace:
                yield replace(info, pod_uids=frozenset({UID(record.pod_uid)}))

    def note(self, pod: Pod) -> dict[str, str]:
        """Return the annotation of a container of the Pod; it has all claims of the Pod."""
        uid = uid_of(pod)
        own = [replace(info, pod_uids=frozenset({uid})) for info in self._cache.claims_of(uid)]
        return {self.annotation: checkpoint.encode(own).decode()} if own else {}

    # --- Running. ---

    async def run(self, known_pods: Callable[[], Collection[UID] | None] = lambda: None) -> None:
        """Serve plugins and reconcile with the known Pods (None: not known yet) until cancelled."""
        async with self._drivers.running(self.name) as group:
            for work, name in self._background():
                group.spawn(work, name)
            group.spawn(self._reconcile_periodically(known_pods), "claims of deleted pods")
            await group.wait(asyncio.Event())

    async def _reconcile_periodically(self, known_pods: Callable[[], Collection[UID] | None]) -> None:
        while True:
            self._wake.clear()
            known = known_pods()
            if known is not None:
                await self.reconcile(known)
            await pause(self._clock, self._wake, RECONCILE_SECONDS)

    async def reconcile(self, known_pods: Collection[UID]) -> None:
        """Unprepare the claims of Pods that the node no longer has; failures are retried by the next call."""
        if self._is_unsaved:
            try:
                await self._save()
            except SaveError as error:
                _log.warning("rebuilt claim checkpoint not written", extra=fields(error=str(error)))
        for uid in self._cache.pod_uids():
            if uid in known_pods:
                continue
            try:
                await self._unprepare(uid)
            except EXPECTED as error:
                _log.warning("claims of a deleted pod not unprepared", extra=fields(pod_uid=uid, error=str(error)))

    def reconcile_soon(self) -> None:
        """Reconcile now: Pods are gone, or a driver has registered."""
        self._wake.set()

    # --- The handler of plugins. ---

    async def register(self, plugin: Plugin) -> None:
        """Connect to the instance; from then on the newest connected one is used."""
        await self._drivers.wait_running()
        client = self._connect(plugin)
        await self._drivers.add(client, self._followers(client))
        self._driver_changed(plugin.name)
        # Claims that could not be unprepared without the driver now can.
        self.reconcile_soon()
        self._tell()

    def _tell(self) -> None:
        for listener in self._driver_listeners:
            listener()

    async def deregister(self, plugin: Plugin) -> None:
        """Remove the instance; its pending calls fail and are retried with another one."""
        await self._drivers.remove(plugin)
        self._driver_changed(plugin.name)

    def _driver_changed(self, driver: str) -> None:
        """Handle that an instance of the driver was added, removed, connected or disconnected."""

    def on_driver(self, listener: Callable[[], None]) -> None:
        """Call the listener when a driver has registered, or has unprepared what others waited for."""
        self._driver_listeners.append(listener)

    # --- `ResourceManager`. ---

    async def admit(self, pod: Pod) -> Rejection | None:
        """Admit every Pod: whether it may use its claims is checked when they are prepared."""
        return None

    def waits_for(self, pod: Pod) -> str:
        """Return which calls of drivers the Pod waits for, and for how long."""
        calls, now = self._calls_of.get(uid_of(pod), {}), self._clock.monotonic()
        return ", ".join(f"{self.method} of {name} is running for {now - calls[name]:.0f} s" for name in sorted(calls))

    async def pre_start(self, pod: Pod, container: str) -> None:
        """Do nothing."""

    def node_resources(self) -> NodeResources:
        """Return nothing: drivers publish their devices themselves."""
        return NodeResources()

    def container_resources(self, pod: Pod, container: str) -> Sequence[Document]:
        """Return nothing: drivers report no health."""
        return ()

    def on_change(self, listener: Callable[[Sequence[str]], None]) -> None:
        """Call the listener with the UIDs of Pods whose devices' health changed."""
        self._change_listeners.append(listener)

    # --- Claims. ---

    def claims(self) -> tuple[ClaimInfo, ...]:
        """Return all claims in use on the node."""
        return self._cache.claims()

    @property
    def revision(self) -> int:
        """A number that changes whenever what Pods hold may have changed."""
        return self._cache.revision

    def has_claim(self, pod: Pod, name: str) -> bool:
        """Whether the Pod uses the claim."""
        return self._held(pod, name) is not None

    def _held(self, pod: Pod, name: str) -> ClaimInfo | None:
        """Return the claim if the Pod uses it already."""
        return self._cache.used_by(uid_of(pod), NamespacedName(pod.metadata.namespace or "", name))

    async def _prepare(self, pod: Pod, infos: tuple[ClaimInfo, ...]) -> tuple[ClaimInfo, ...]:
        """Prepare the Pod's claims, except those that are prepared already."""
        pod_uid = uid_of(pod)
        # A Pod's lock is always acquired before those of claims, so that two callers cannot wait for each other.
        async with self._locks.held([f"pod/{pod_uid}"]), self._locks.held(_keys(infos)):
            try:
                actions = self._cache.handle(PodAdmitted(pod_uid, infos))
            except OldClaimError:
                self._is_waited_for = True
                raise
            since = self._clock.monotonic()
            drivers = [action.driver for action in actions if isinstance(action, CallPrepare)]
            self._calls_of[pod_uid] = dict.fromkeys(drivers, since)
            try:
                await self._perform(actions)
            finally:
                del self._calls_of[pod_uid]
            return self._cache.claims_of(pod_uid)

    async def _unprepare(self, pod_uid: UID) -> None:
        """Unprepare the Pod's claims, except those that other Pods use."""
        with self._metrics.operation("UnprepareResources", self._clock):
            # Under the Pod's lock its claims do not change; their own locks keep the calls of other Pods away.
            async with (
                self._locks.held([f"pod/{pod_uid}"]),
                self._locks.held(_keys(self._cache.claims_of(pod_uid))),
            ):
                await self._perform(self._cache.handle(PodGone(pod_uid)))
        if self._is_waited_for:
            self._is_waited_for = False
            self._tell()

    def _client(self, driver: str) -> ClientT:
        client = self._drivers.get(driver)
        if client is None:
            raise ClaimError(f"{self.driver_kind} {driver} is not registered")
        return client

    # --- Actions. ---

    async def _perform(self, actions: Sequence[Action]) -> None:
        """Save first, then call all drivers concurrently."""
        calls = []
        for action in actions:
            if isinstance(action, SaveCheckpoint):
                self._update_metrics()
                await self._save()
            elif isinstance(action, CountSkip):
                self._metrics.count_skip(action.driver, action.operation)
            else:
                calls += [self._perform_call(part) for part in self._parts(action)]
        if len(calls) == 1:
            # The usual case; it needs no task of its own.
            await calls[0]
        elif calls:
            await _gather(calls)

    def _parts(self, action: Call) -> Iterator[Call]:
        if self.batched:
            yield action
        else:
            yield from (replace(action, claims=(claim,)) for claim in action.claims)

    async def _perform_call(self, action: Call) -> None:
        result = await self._call(self._client(action.driver), action)
        await self._perform(self._cache.handle(result))

    async def _write(self) -> None:
        try:
            await asyncio.to_thread(self._write_file, self._cache.claims())
        except OSError as error:
            raise SaveError(f"checkpoint ResourceClaim cache: {error}") from error
        self._is_unsaved = False

    def _write_file(self, claims: Sequence[ClaimInfo]) -> None:
        self._file.replace(checkpoint.encode(claims, self._encoded))

    def _update_metrics(self) -> None:
        self._metrics.show_claims(*self._cache.counts())


def _keys(infos: Iterable[ClaimInfo]) -> Iterator[str]:
    """Yield the locks of claims and their devices: who gets a device waits for the claim that is left to end its."""
    for info in infos:
        yield info.uid
        yield from map("/".join, info.allocated)


def disabled(name: str, gate: str) -> ClaimError:
    """Return the error for a claim that the Pod does not use yet, and whose feature is disabled."""
    return ClaimError(f"ResourceClaim {name}: the feature gate {gate} is disabled on this node")


def uid_of(pod: Pod) -> UID:
    """Return the Pod's UID."""
    return UID(pod.metadata.uid or "")


def find_container(pod: Pod, name: str) -> Container | None:
    """Return a container or init container; None for an ephemeral container, which has no resources."""
    return next((item for item in (*pod.spec.init_containers, *pod.spec.containers) if item.name == name), None)


async def _gather(calls: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run the calls concurrently; raise the first failure when every call has ended."""
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    # An expected failure must not hide a bug.
    failures.sort(key=lambda failure: isinstance(failure, EXPECTED))
    if failures:
        raise failures[0]


def load_checkpoint(path: str) -> Loaded[tuple[ClaimInfo, ...]]:
    """Return the newest checkpoint that can be read, with an error in the log if it is not the newest of all."""
    loaded = load(path, checkpoint.decode)
    if loaded.damage:
        instead = "beginning without" if loaded.state is None else "using the one before"
        _log.error("claim checkpoint not used, %s", instead, extra=fields(error=loaded.damage))
    return loaded
