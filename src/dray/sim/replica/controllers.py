"""The controllers of a replica in which Pods are scheduled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from dray.client.resources import JOBS, NODES, PODS, REPLICA_SETS, RESOURCE_CLAIMS
from dray.controllers.daemon_set.reconciler import DaemonSetController
from dray.controllers.deployment.reconciler import DeploymentController
from dray.controllers.garbage_collector.reconciler import GarbageCollector
from dray.controllers.job.reconciler import JobController
from dray.controllers.persistent_volume.reconciler import PersistentVolumeController
from dray.controllers.reconciler import ControllerContext
from dray.controllers.replica_set.reconciler import ReplicaSetController
from dray.controllers.resource_quota.reconciler import ResourceQuotaController

_WORKLOADS: Final = (DeploymentController, ReplicaSetController, DaemonSetController, JobController)
# Kinds whose informers the garbage collector shares with the other controllers.
_CACHED: Final = (PODS, NODES, REPLICA_SETS, JOBS, RESOURCE_CLAIMS)


class Runnable(Protocol):
    """A controller."""

    async def run(self) -> None:
        """Run until it is cancelled."""
        ...


def cluster_controllers(
    context: ControllerContext, *, workloads: bool, volumes: bool, quotas: bool
) -> Iterator[Runnable]:
    """Yield the controllers that act on what is in the replica."""
    yield GarbageCollector(context, shared=_CACHED)
    for kind in _WORKLOADS if workloads else ():
        yield kind(context)
    if volumes:
        yield PersistentVolumeController(context)
    if quotas:
        # So that what an evicted Pod had is free for its replacement.
        yield ResourceQuotaController(context)
