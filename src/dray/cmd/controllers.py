"""Composes the controllers of a cluster, for `dray up` and `dray controller-manager`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

from dray.api.features import FeatureGates
from dray.client.interface import Client, Resource
from dray.client.resources import JOBS, NODES, PODS, REPLICA_SETS, RESOURCE_CLAIMS
from dray.client.shared_informers import SharedInformerFactory
from dray.cmd.settings import NodeControl
from dray.controllers.certificates.reconciler import (
    BootstrapTokenController,
    CertificateAuthority,
    CertificateController,
)
from dray.controllers.classic_claim.reconciler import ClassicClaimController
from dray.controllers.cluster_role_aggregation import ClusterRoleAggregationController
from dray.controllers.cron_job.reconciler import CronJobController
from dray.controllers.daemon_set.reconciler import DaemonSetController
from dray.controllers.deployment.reconciler import DeploymentController
from dray.controllers.device_taint_eviction.reconciler import DeviceTaintEvictionController
from dray.controllers.disruption.reconciler import DisruptionController
from dray.controllers.garbage_collector.reconciler import GarbageCollector
from dray.controllers.job.reconciler import JobController
from dray.controllers.namespace.reconciler import NamespaceController
from dray.controllers.node_lifecycle.reconciler import LifecycleTiming, NodeLifecycleController
from dray.controllers.node_lifecycle.zones import Rates
from dray.controllers.pod_garbage_collector.reconciler import PodGarbageCollector
from dray.controllers.pod_group_protection import PodGroupProtectionController
from dray.controllers.reconciler import ControllerContext, Reconciler
from dray.controllers.replica_set.reconciler import ReplicaSetController
from dray.controllers.resource_claim.reconciler import ResourceClaimController
from dray.controllers.resource_pool_status.reconciler import ResourcePoolStatusRequestController
from dray.controllers.resource_quota.reconciler import ResourceQuotaController
from dray.controllers.service_account.reconciler import ServiceAccountController
from dray.controllers.service_endpoints.reconciler import EndpointSliceMirroringController, ServiceEndpointsController
from dray.controllers.taint_eviction.reconciler import TaintEvictionController
from dray.controllers.ttl_after_finished import TTLAfterFinishedController
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup

# A year, as in Kubernetes.
SIGNING_SECONDS: Final = 8760 * 3600.0


def spawn_controllers(  # noqa: PLR0913 - wiring: each is a part that the caller has
    group: TaskGroup,
    client: Client,
    clock: Clock,
    metrics: Metrics,
    *,
    root_ca: str,
    gates: FeatureGates | None = None,
    nodes: NodeControl | None = None,
    authority: CertificateAuthority | None = None,
    signing_seconds: float = SIGNING_SECONDS,
) -> SharedInformerFactory:
    """Run every controller in the group; `root_ca` is the CA certificate that Pods verify the API server with.

    Without an authority nobody signs certificate requests.

    Returns the informers.
    """
    rng = random.Random()  # noqa: S311 - spreads load, guards nothing
    gates = gates or FeatureGates()
    informers = SharedInformerFactory(client, clock, rng)
    context = ControllerContext(client, informers, clock, metrics, gates, rng)
    controllers: list[Reconciler[Any]] = [
        GarbageCollector(context, shared=_cached_kinds(gates)),
        NamespaceController(context),
        ClusterRoleAggregationController(context),
        ServiceAccountController(context, root_ca=root_ca),
        ResourceQuotaController(context),
        DeploymentController(context),
        ReplicaSetController(context),
        DaemonSetController(context),
        JobController(context),
        CronJobController(context),
        TTLAfterFinishedController(context),
        DisruptionController(context),
        ServiceEndpointsController(context),
        EndpointSliceMirroringController(context),
        *_node_controllers(context, nodes or NodeControl()),
    ]
    if gates.enabled("GenericWorkload"):
        controllers.append(PodGroupProtectionController(context))
    if authority is not None:
        controllers.append(CertificateController(context, authority, signing_seconds))
        controllers.append(BootstrapTokenController(context))
    if gates.enabled("DynamicResourceAllocation"):
        controllers.append(ResourceClaimController(context))
        if gates.enabled("DRADeviceTaints"):
            controllers.append(DeviceTaintEvictionController(context))
        if gates.enabled("DRAResourcePoolStatus"):
            controllers.append(ResourcePoolStatusRequestController(context))
        if gates.enabled("DRAControlPlaneController"):
            controllers.append(ClassicClaimController(context))
    group.spawn(informers.run(), "informers")
    for controller in controllers:
        group.spawn(controller.run(), type(controller).__name__)
    return informers


def _cached_kinds(gates: FeatureGates) -> Iterator[Resource[Any]]:
    """Yield numerous kinds whose full objects a controller other than the garbage collector caches."""
    yield from (PODS, NODES, REPLICA_SETS, JOBS)
    if gates.enabled("DynamicResourceAllocation"):
        yield RESOURCE_CLAIMS


def _node_controllers(context: ControllerContext, settings: NodeControl) -> tuple[Reconciler[Any], ...]:
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
        NodeLifecycleController(context, timing=timing, rates=rates),
        TaintEvictionController(context),
        PodGarbageCollector(
            context,
            finished_max=settings.terminated_pod_gc_threshold,
            quarantine_seconds=settings.pod_gc_quarantine,
        ),
    )
