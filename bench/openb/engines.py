"""Two engines that schedule the Pods of the trace one by one: the scheduling code alone, and a whole cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from functools import partial
from typing import Final, Protocol

import msgspec

from bench import device_objects as kinds
from bench.cluster import cluster, create_all
from bench.openb import objects
from bench.openb.trace import TraceNode, TracePod
from bench.processes import serving, wait_until_idle
from dray.api.codec import from_document, to_document
from dray.api.document import Document
from dray.api.errors import AlreadyExistsError
from dray.api.types.core_v1 import Node, Pod
from dray.api.types.resource_v1 import DeviceClass, ResourceClaim, ResourceSlice
from dray.client.credentials import load_access
from dray.client.http import http_client
from dray.client.interface import Bookmark, Client, DeleteOptions, WatchOptions
from dray.client.resources import DEVICE_CLASSES, NODES, RESOURCE_SLICES
from dray.runtime.system import SystemClock
from dray.runtime.tasks import TaskGroup
from dray.scheduler.config import ProfileConfig, SchedulerConfig
from dray.scheduler.config_loader import installed_factories, profile_named
from dray.scheduler.named_profiles import NAMED_PROFILES
from dray.sim.placer import PlacedPod, Placer

_NOW: Final = DeleteOptions(grace_period_seconds=0)
_SECONDS_MAX: Final = 60.0
# The nodes are objects without agents.
_NO_HEARTBEATS: Final = ("--node-monitor-grace-period=10000h", "--node-startup-grace-period=10000h")


class Engine(Protocol):
    """Places Pods; one that does not fit is passed over for good."""

    # The process of the cluster, if it is another one.
    server_pid: int | None

    async def place(self, number: int, pod: TracePod) -> str | None:
        """Return the node's name, or None."""

    async def shares(self) -> list[objects.Share]:
        """Return the shares of GPUs that are allocated."""


class CoreEngine:
    """The scheduling and allocation code on objects in memory."""

    server_pid: int | None = None

    def __init__(self, nodes: Iterable[TraceNode], profile: ProfileConfig) -> None:
        self.placer = Placer(profile, factories=installed_factories())
        self._claims: dict[TracePod, ResourceClaim] = {}
        self._pods: dict[TracePod, Pod] = {}
        self.placer.put(DEVICE_CLASSES, from_document(DeviceClass, objects.device_class()))
        for item in nodes:
            self.placer.put(NODES, from_document(Node, objects.node(item)))
            for document in objects.slices(item):
                self.placer.put(RESOURCE_SLICES, from_document(ResourceSlice, document))

    async def place(self, number: int, pod: TracePod) -> str | None:
        """Schedule the Pod with its claim."""
        claims = (self._claim(number, pod),) if pod.gpus else ()
        found = self.placer.place(self._pod(number, pod), claims)
        return (found.pod.spec.node_name or None) if isinstance(found, PlacedPod) else None

    async def shares(self) -> list[objects.Share]:
        """Return the shares of GPUs that are allocated."""
        claims = (to_document(claim) for placed in self.placer.placed.values() for claim in placed.claims)
        return [share for claim in claims for share in objects.shares(claim)]

    def _claim(self, number: int, pod: TracePod) -> ResourceClaim:
        if pod not in self._claims:
            document = {"metadata": {"namespace": objects.NAMESPACE}, "spec": objects.claim_spec(pod)}
            self._claims[pod] = from_document(ResourceClaim, document)
        known = self._claims[pod]
        metadata = msgspec.structs.replace(known.metadata, name=f"claim-{number}", uid=f"claim-{number}")
        return msgspec.structs.replace(known, metadata=metadata)

    def _pod(self, number: int, pod: TracePod) -> Pod:
        if pod not in self._pods:
            self._pods[pod] = from_document(Pod, objects.pod(number, pod, None))
        known = self._pods[pod]
        metadata = msgspec.structs.replace(known.metadata, name=f"pod-{number}", uid=f"pod-{number}")
        changed = msgspec.structs.replace(known, metadata=metadata)
        if not pod.gpus:
            return changed
        entry = {"name": objects.CLAIM, "resourceClaimName": f"claim-{number}"}
        entries = from_document(Pod, {"spec": {"resourceClaims": [entry]}}).spec.resource_claims
        return msgspec.structs.replace(changed, spec=msgspec.structs.replace(changed.spec, resource_claims=entries))


class StackEngine:
    """A whole cluster: API server on SQLite, controllers and scheduler."""

    server_pid: int | None = None

    def __init__(self, client: Client) -> None:
        self._client = client
        self._decided: dict[str, asyncio.Future[str | None]] = {}

    async def watch(self, resource_version: str) -> None:
        """Follow the scheduler's decisions until cancelled."""
        options = WatchOptions(resource_version=resource_version)
        async with aclosing(self._client.watch(kinds.PODS, objects.NAMESPACE, options)) as events:
            async for event in events:
                if isinstance(event, Bookmark):
                    continue
                waiting = self._decided.get(event.object["metadata"]["name"])
                if waiting is not None and not waiting.done() and _is_decided(event.object):
                    waiting.set_result(event.object["spec"].get("nodeName"))

    async def place(self, number: int, pod: TracePod) -> str | None:
        """Create the Pod, and wait for the scheduler's decision."""
        claim = {"resourceClaimTemplateName": objects.template_name(pod)} if pod.gpus else None
        document = objects.pod(number, pod, claim)
        name = document["metadata"]["name"]
        decided = self._decided[name] = asyncio.get_running_loop().create_future()
        await self._client.create(kinds.PODS, document)
        node_name: str | None = await asyncio.wait_for(decided, _SECONDS_MAX)
        del self._decided[name]
        if node_name is None:
            await self._client.delete(kinds.PODS, name, objects.NAMESPACE, _NOW)
        return node_name

    async def shares(self) -> list[objects.Share]:
        """Return the shares of GPUs that are allocated."""
        listed = await self._client.list(kinds.CLAIMS, objects.NAMESPACE)
        return [share for claim in listed.items for share in objects.shares(claim)]


def _is_decided(pod: Document) -> bool:
    if pod["spec"].get("nodeName"):
        return True
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(
        item["type"] == "PodScheduled" and item["status"] == "False" and item.get("reason") == "Unschedulable"
        for item in conditions
    )


@asynccontextmanager
async def _core(nodes: Sequence[TraceNode], _pods: Iterable[TracePod], profile: str) -> AsyncIterator[Engine]:
    yield CoreEngine(nodes, profile_named(profile))


async def _create_cluster(client: Client, nodes: Sequence[TraceNode], pods: Iterable[TracePod]) -> None:
    """Create everything that exists before the first Pod."""
    shapes = {objects.template_name(pod): pod for pod in pods if pod.gpus}
    await create_all(client, [(kinds.CLASSES, objects.device_class())])
    await create_all(client, ((kinds.TEMPLATES, objects.template(pod)) for pod in shapes.values()))
    # In this order, so that the scheduler's nodes are in the order of the trace.
    for item in nodes:
        await client.create(kinds.NODES, objects.node(item))
    await create_all(client, ((kinds.SLICES, document) for item in nodes for document in objects.slices(item)))


@asynccontextmanager
async def _following(client: Client) -> AsyncIterator[StackEngine]:
    """Yield an engine that follows the scheduler's decisions."""
    engine = StackEngine(client)
    listed = await client.list(kinds.PODS, objects.NAMESPACE)
    async with TaskGroup("trace") as group:
        group.spawn(engine.watch(listed.resource_version), "decisions")
        yield engine
        await group.cancel()


@asynccontextmanager
async def _stack(nodes: Sequence[TraceNode], pods: Iterable[TracePod], profile: str) -> AsyncIterator[Engine]:
    config = SchedulerConfig(profiles=(profile_named(profile),))
    setup = partial(_create_cluster, nodes=nodes, pods=pods)
    async with cluster(setup, config) as (client, _counted), _following(client) as engine:
        yield engine


@asynccontextmanager
async def _tls(nodes: Sequence[TraceNode], pods: Iterable[TracePod], profile: str) -> AsyncIterator[Engine]:
    """Run `dray up` as a process of its own, with this process as its client."""
    flag = "--scheduler-profile" if profile in NAMED_PROFILES else "--scheduler-config"
    flags = (f"{flag}={profile}", "--disable-admission-plugins=TaintNodesByCondition", *_NO_HEARTBEATS)
    with serving(*flags) as server:
        client = http_client(load_access({}, path=str(server.kubeconfig)), SystemClock())
        try:
            with suppress(AlreadyExistsError):
                account = {"metadata": {"name": "default", "namespace": objects.NAMESPACE}}
                await client.create(kinds.SERVICE_ACCOUNTS, account)
            await _create_cluster(client, nodes, pods)
            await asyncio.to_thread(wait_until_idle, server.process.pid)
            async with _following(client) as engine:
                engine.server_pid = server.process.pid
                yield engine
        finally:
            await client.close()


# What places the Pods: the scheduler's code alone, a cluster in this process, or `dray up` over TLS.
ENGINES: Final = {"core": _core, "stack": _stack, "tls": _tls}


def engine(
    name: str, nodes: Sequence[TraceNode], pods: Iterable[TracePod], profile: str
) -> AbstractAsyncContextManager[Engine]:
    """Return one of the engines, with the nodes and a named profile of the scheduler."""
    return ENGINES[name](nodes, pods, profile)
