"""A replica of a snapshot: an in-process API server, the real controllers and scheduler, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from dray.api.document import Document
from dray.api.features import FeatureGates
from dray.apiserver.in_process import in_process_server
from dray.client.in_process import in_process_client
from dray.client.interface import Client
from dray.client.resources import JOBS, NODES, PODS, REPLICA_SETS, RESOURCE_CLAIMS
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.classic_claim.reconciler import ClassicClaimController
from dray.controllers.daemon_set.reconciler import DaemonSetController
from dray.controllers.deployment.reconciler import DeploymentController
from dray.controllers.garbage_collector.reconciler import GarbageCollector
from dray.controllers.job.reconciler import JobController
from dray.controllers.reconciler import ControllerContext
from dray.controllers.replica_set.reconciler import ReplicaSetController
from dray.controllers.resource_claim.reconciler import ResourceClaimController
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup
from dray.scheduler.config import SchedulerConfig
from dray.scheduler.handle import PluginFactory
from dray.scheduler.plugins.volume_binding import VolumeBinding
from dray.scheduler.registry import BUILT_IN
from dray.scheduler.scheduler import Scheduler
from dray.sim.replica.kubelet import SimulatedKubelets
from dray.sim.replica.virtual_time import LoopClock
from dray.sim.snapshot import Snapshot

# A replica evaluates what it can; `notes` has the rest.
PLUGINS: Final[Mapping[str, PluginFactory]] = {**BUILT_IN, "VolumeBinding": partial(VolumeBinding, lenient=True)}
# Fixed, so that results are reproducible.
SEED: Final = 0
_MASTERS: Final = ("system:masters",)
# Kinds whose informers the garbage collector shares with the other controllers.
_CACHED: Final = (PODS, NODES, REPLICA_SETS, JOBS, RESOURCE_CLAIMS)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a replica."""

    gates: FeatureGates
    config: SchedulerConfig
    # Whether the scheduler runs; otherwise Pods can only be explained.
    schedules: bool = True


@dataclass(frozen=True, slots=True)
class Replica:
    """A running replica."""

    client: Client
    scheduler: Scheduler
    clock: LoopClock


@asynccontextmanager
async def running(snapshot: Snapshot, now: datetime, options: Options) -> AsyncIterator[Replica]:
    """Run a replica of the snapshot for the time of the block; the loop must be a `VirtualLoop`."""
    clock, rng = LoopClock(now), random.Random(SEED)  # noqa: S311 - repeatable, guards nothing
    async with (
        in_process_server(clock, rng, gates=options.gates, contents=contents(snapshot)) as local,
        TaskGroup("replica") as group,
    ):
        client = in_process_client(local, user="replica", groups=_MASTERS, user_agent="replica")
        informers = SharedInformerFactory(client, clock, rng)
        scheduler = Scheduler(
            client, informers, clock, Metrics(), factories=PLUGINS, config=options.config, features=options.gates
        )
        context = ControllerContext(client, informers, clock, gates=options.gates, rng=rng)
        group.spawn(informers.run(), "informers")
        group.spawn(ResourceClaimController(context).run(), "claims")
        if options.gates.enabled("DRAControlPlaneController"):
            group.spawn(ClassicClaimController(context).run(), "classic claims")
        if options.schedules:
            group.spawn(GarbageCollector(context, shared=_CACHED).run(), "garbage collector")
            for kind in (DeploymentController, ReplicaSetController, DaemonSetController, JobController):
                group.spawn(kind(context).run(), kind.__name__)
            group.spawn(SimulatedKubelets(client, informers).run(), "kubelets")
            group.spawn(scheduler.run(), "scheduler")
        await informers.wait_for_sync()
        try:
            yield Replica(client, scheduler, clock)
        finally:
            await group.cancel()


async def pass_time(seconds: float) -> None:
    """Advance virtual time."""
    await asyncio.sleep(seconds)


def contents(snapshot: Snapshot) -> Iterator[Document]:
    """Yield the initial objects: the snapshot, and the defaults of every namespace."""
    documents = [item for items in snapshot.documents.values() for item in items]
    present = {item["metadata"]["name"] for item in snapshot.documents.get("Namespace", ())}
    for name in sorted(_namespaces(documents)):
        if name not in present:
            yield namespace_document(name)
        yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}
    uids = {item["metadata"].get("uid") for item in documents}
    for item in documents:
        if item["kind"] not in ("ServiceAccount", "Event"):
            yield _with_known_owners(item, uids)


def _with_known_owners(document: Document, uids: set[str | None]) -> Document:
    """Remove owners that the snapshot does not contain: the garbage collector would consider them deleted.

    A snapshot contains all Pods, so dependents of missing Pods may be deleted.
    """
    owners = document["metadata"].get("ownerReferences")
    if not owners:
        return document
    known = [owner for owner in owners if owner["uid"] in uids or owner["kind"] == "Pod"]
    return {**document, "metadata": {**document["metadata"], "ownerReferences": known}}


def _namespaces(documents: Iterable[Document]) -> set[str]:
    found = {item["metadata"].get("namespace") or "" for item in documents}
    found |= {item["metadata"]["name"] for item in documents if item["kind"] == "Namespace"}
    return (found | {"default"}) - {""}


def namespace_document(name: str) -> Document:
    """Return an active namespace."""
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    }
