"""A replica of a snapshot: an in-process API server, the real controllers and scheduler, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from dray.api.features import FeatureGates
from dray.apiserver.in_process import in_process_server
from dray.client.in_process import in_process_client
from dray.client.interface import Client
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.classic_claim.reconciler import ClassicClaimController
from dray.controllers.reconciler import ControllerContext
from dray.controllers.resource_claim.reconciler import ResourceClaimController
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup
from dray.scheduler.config import ConfigError, SchedulerConfig
from dray.scheduler.plugins.volume_binding import WaitsForClaim
from dray.scheduler.scheduler import Scheduler
from dray.sim.replica.contents import contents
from dray.sim.replica.group_gates import GROUP_KINDS, with_groups
from dray.sim.replica.kubelet import SimulatedKubelets
from dray.sim.replica.plugins import replica_plugins
from dray.sim.replica.virtual_time import LoopClock
from dray.sim.snapshot import SCHEDULER_CONFIGURATION, Snapshot, SnapshotError

# Virtual time for the creation of claims from templates.
CLAIM_SECONDS: Final = 30.0
# Fixed, so that results are reproducible.
SEED: Final = 0
_MASTERS: Final = ("system:masters",)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a replica."""

    gates: FeatureGates
    config: SchedulerConfig
    # Whether the scheduler runs; otherwise Pods can only be explained.
    schedules: bool = True
    # Whether the controllers of workloads run as well.
    workloads: bool = True
    # Whether the controller of volumes runs although the snapshot has none.
    volumes: bool = False
    # Which Pods wait for volume claims; if it is not given, none does.
    waits_for_claim: WaitsForClaim | None = None
    # The uids of Pods that existed until the replica starts.
    removed_pods: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Replica:
    """A running replica."""

    client: Client
    informers: SharedInformerFactory
    scheduler: Scheduler
    clock: LoopClock


@asynccontextmanager
async def running(snapshot: Snapshot, now: datetime, options: Options) -> AsyncIterator[Replica]:
    """Run a replica of the snapshot for the time of the block; the loop must be a `VirtualLoop`."""
    clock, rng = LoopClock(now), random.Random(SEED)  # noqa: S311 - repeatable, guards nothing
    documents = (item for kind in GROUP_KINDS for item in snapshot.documents.get(kind, ()))
    options = replace(options, gates=with_groups(options.gates, documents))
    async with (
        in_process_server(clock, rng, gates=options.gates, contents=contents(snapshot, options.removed_pods)) as local,
        TaskGroup("replica") as group,
    ):
        client = in_process_client(local, user="replica", groups=_MASTERS, user_agent="replica")
        informers = SharedInformerFactory(client, clock, rng)
        scheduler = _scheduler(client, informers, clock, options)
        context = ControllerContext(client, informers, clock, gates=options.gates, rng=rng)
        group.spawn(informers.run(), "informers")
        group.spawn(ResourceClaimController(context).run(), "claims")
        if options.gates.enabled("DRAControlPlaneController"):
            group.spawn(ClassicClaimController(context).run(), "classic claims")
        if options.schedules:
            # Imported lazily: they are slow to import, and nothing is scheduled in order to explain.
            from dray.sim.replica.controllers import cluster_controllers

            for controller in cluster_controllers(
                context,
                workloads=options.workloads,
                volumes=options.volumes or bool(snapshot.documents.get("PersistentVolume")),
                quotas=bool(snapshot.documents.get("ResourceQuota")),
            ):
                group.spawn(controller.run(), type(controller).__name__)
            group.spawn(SimulatedKubelets(client, informers, now).run(), "kubelets")
            group.spawn(scheduler.run(), "scheduler")
        await informers.wait_for_sync()
        try:
            yield Replica(client, informers, scheduler, clock)
        finally:
            await group.cancel()


def _scheduler(client: Client, informers: SharedInformerFactory, clock: LoopClock, options: Options) -> Scheduler:
    plugins = replica_plugins(options.waits_for_claim)
    try:
        return Scheduler(
            client, informers, clock, Metrics(), factories=plugins, config=options.config, features=options.gates
        )
    except ConfigError as error:
        raise SnapshotError(f"{SCHEDULER_CONFIGURATION}: {error}") from error


async def pass_time(seconds: float) -> None:
    """Advance virtual time."""
    await asyncio.sleep(seconds)
