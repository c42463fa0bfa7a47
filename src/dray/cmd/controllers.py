"""The controllers of a cluster, wired to a client: shared by `dray up` and `dray controller-manager`."""

from __future__ import annotations

import random
from collections.abc import Coroutine, Iterator
from typing import Any, Protocol

from dray.api.features import FeatureGates
from dray.client.interface import Client, Resource
from dray.client.resources import JOBS, NODES, PODS, REPLICA_SETS, RESOURCE_CLAIMS
from dray.client.shared_informers import SharedInformerFactory
from dray.cmd.settings import NodeControl
from dray.controllers.classic_claim.reconciler import ClassicClaimController
from dray.controllers.cluster_role_aggregation import ClusterRoleAggregationController
from dray.controllers.daemon_set.reconciler import DaemonSetController
from dray.controllers.deployment.reconciler import DeploymentController
from dray.controllers.device_taint_eviction.reconciler import DeviceTaintEvictionController
from dray.controllers.garbage_collector.reconciler import GarbageCollector
from dray.controllers.job.reconciler import JobController
from dray.controllers.namespace.reconciler import NamespaceController
from dray.controllers.node_lifecycle.reconciler import LifecycleTiming, NodeLifecycleController
from dray.controllers.node_lifecycle.zones import Rates
from dray.controllers.pod_garbage_collector.reconciler import PodGarbageCollector
from dray.controllers.replica_set.reconciler import ReplicaSetController
from dray.controllers.resource_claim.reconciler import ResourceClaimController
from dray.controllers.resource_quota.reconciler import ResourceQuotaController
from dray.controllers.service_account.reconciler import ServiceAccountController
from dray.controllers.taint_eviction.reconciler import TaintEvictionController
from dray.controllers.ttl_after_finished import TTLAfterFinishedController
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup


class _Controller(Protocol):
    def run(self) -> Coroutine[Any, Any, None]:
        """Work until cancelled."""


def spawn_controllers(  # noqa: PLR0913 - wiring: each is a part that the caller has
    group: TaskGroup,
    client: Client,
    clock: Clock,
    metrics: Metrics,
    *,
    root_ca: str,
    gates: FeatureGates | None = None,
    nodes: NodeControl | None = None,
) -> None:
    """Run every controller in the group; `root_ca` is what workloads trust the API server by."""
    rng = random.Random()  # noqa: S311 - spreads load, guards nothing
    gates = gates or FeatureGates()
    informers = SharedInformerFactory(client, clock, rng)
    controllers: list[_Controller] = [
        GarbageCollector(client, informers, clock, metrics, whole=_followed_in_whole(gates)),
        NamespaceController(client, informers, clock, metrics),
        ClusterRoleAggregationController(client, informers, clock, metrics),
        ServiceAccountController(client, informers, clock, root_ca=root_ca, metrics=metrics),
        ResourceQuotaController(client, informers, clock, gates=gates, metrics=metrics),
        *_workload_controllers(client, informers, clock, metrics, rng),
        *_node_controllers(client, informers, clock, metrics, nodes or NodeControl()),
    ]
    if gates.enabled("DynamicResourceAllocation"):
        controllers.append(ResourceClaimController(client, informers, clock, gates=gates, metrics=metrics))
        if gates.enabled("DRADeviceTaints"):
            controllers.append(DeviceTaintEvictionController(client, informers, clock, gates=gates, metrics=metrics))
        if gates.enabled("DRAControlPlaneController"):
            controllers.append(ClassicClaimController(client, informers, clock, metrics))
    group.spawn(informers.run(), "informers")
    for controller in controllers:
        group.spawn(controller.run(), type(controller).__name__)


def _followed_in_whole(gates: FeatureGates) -> Iterator[Resource[Any]]:
    """Kinds that come in numbers and that a controller other than the garbage collector follows."""
    yield from (PODS, NODES, REPLICA_SETS, JOBS)
    if gates.enabled("DynamicResourceAllocation"):
        yield RESOURCE_CLAIMS


def _node_controllers(
    client: Client, informers: SharedInformerFactory, clock: Clock, metrics: Metrics, settings: NodeControl
) -> tuple[_Controller, ...]:
    timing = LifecycleTiming(
        settings.node_monitor_period, settings.node_monitor_grace_period, settings.node_startup_grace_period
    )
    rates = Rates(
        settings.node_eviction_rate,
        settings.secondary_node_eviction_rate,
        settings.unhealthy_zone_threshold,
        settings.large_cluster_size_threshold,
    )
    return (
        NodeLifecycleController(client, informers, clock, timing=timing, rates=rates, metrics=metrics),
        TaintEvictionController(client, informers, clock, metrics=metrics),
        PodGarbageCollector(
            client,
            informers,
            clock,
            finished_max=settings.terminated_pod_gc_threshold,
            quarantine_seconds=settings.pod_gc_quarantine,
            metrics=metrics,
        ),
    )


def _workload_controllers(
    client: Client, informers: SharedInformerFactory, clock: Clock, metrics: Metrics, rng: random.Random
) -> list[_Controller]:
    """Those that make Pods of what users ask for."""
    return [
        DeploymentController(client, informers, clock, metrics=metrics),
        ReplicaSetController(client, informers, clock, rng=rng, metrics=metrics),
        DaemonSetController(client, informers, clock, rng=rng, metrics=metrics),
        JobController(client, informers, clock, rng=rng, metrics=metrics),
        TTLAfterFinishedController(client, informers, clock, metrics=metrics),
    ]
