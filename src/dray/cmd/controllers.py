"""Composes the controllers of a cluster, for `dray up` and `dray controller-manager`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from dray.api.features import FeatureGates
from dray.client.interface import Client, Resource
from dray.client.resources import JOBS, NODES, PODS, REPLICA_SETS, RESOURCE_CLAIMS
from dray.client.shared_informers import SharedInformerFactory
from dray.client.skipped_objects import SkippedObjects
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
from dray.controllers.ephemeral_volume import EphemeralVolumeController
from dray.controllers.garbage_collector.reconciler import GarbageCollector
from dray.controllers.job.reconciler import JobController
from dray.controllers.namespace.reconciler import NamespaceController
from dray.controllers.node_ipam import NodeIpamController, NodeRanges
from dray.controllers.node_lifecycle.reconciler import LifecycleTiming, NodeLifecycleController
from dray.controllers.node_lifecycle.zones import Rates
from dray.controllers.persistent_volume.reconciler import PersistentVolumeController
from dray.controllers.pod_garbage_collector.reconciler import PodGarbageCollector
from dray.controllers.pod_group_protection import PodGroupProtectionController
from dray.controllers.reconciler import ControllerContext, Reconciler
from dray.controllers.replica_set.reconciler import ReplicaSetController, ReplicationControllerController
from dray.controllers.resource_claim.reconciler import ResourceClaimController
from dray.controllers.resource_pool_status.reconciler import ResourcePoolStatusRequestController
from dray.controllers.resource_quota.reconciler import ResourceQuotaController
from dray.controllers.service_account.reconciler import ServiceAccountController
from dray.controllers.service_endpoints.reconciler import EndpointSliceMirroringController, ServiceEndpointsController
from dray.controllers.stateful_set.reconciler import StatefulSetController
from dray.controllers.taint_eviction.reconciler import TaintEvictionController
from dray.controllers.ttl_after_finished import TTLAfterFinishedController
from dray.controllers.volume_protection import VolumeClaimProtectionController, VolumeProtectionController
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics
from dray.runtime.settings import SettingsError
from dray.runtime.tasks import TaskGroup

# A year, as in Kubernetes.
SIGNING_SECONDS: Final = 8760 * 3600.0
# In `--controllers`: every controller.
ALL: Final = "*"
_DRA: Final = "DynamicResourceAllocation"


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
    chosen: Sequence[str] = (ALL,),
) -> SharedInformerFactory:
    """Run the chosen controllers in the group; `root_ca` is the CA certificate that Pods verify the API server with.

    Without an authority nobody signs certificate requests.

    Returns the informers.
    """
    rng = random.Random()  # noqa: S311 - spreads load, guards nothing
    gates, nodes = gates or FeatureGates(), nodes or NodeControl()
    skipped = SkippedObjects(client, clock, metrics, "kube-controller-manager")
    informers = SharedInformerFactory(client, clock, rng, skipped)
    context = ControllerContext(client, informers, clock, metrics, gates, rng)
    factories = {
        **_workload_controllers(root_ca, gates),
        **_node_controllers(nodes),
        **_device_controllers(gates),
    }
    if authority is not None:
        factories["certificatesigningrequest-signing-controller"] = lambda context: CertificateController(
            context, authority, signing_seconds, nodes.kubelet_serving_networks
        )
        factories["bootstrap-signer-controller"] = BootstrapTokenController
    group.spawn(informers.run(), "informers")
    for name, factory in factories.items():
        if is_enabled(name, chosen):
            group.spawn(factory(context).run(), name)
    return informers


# Creates a controller.
Factory: TypeAlias = Callable[[ControllerContext], Reconciler[Any]]


def is_enabled(name: str, chosen: Sequence[str]) -> bool:
    """Return whether `--controllers` enables a controller: named, or by `*` unless `-name` disables it."""
    if name in chosen:
        return True
    return f"-{name}" not in chosen and ALL in chosen


def check_controllers(chosen: Sequence[str]) -> None:
    """Raise `SettingsError` for a name that no controller has."""
    known = {
        *_workload_controllers("", FeatureGates()),
        *_node_controllers(NodeControl(allocate_node_cidrs=True)),
        *_device_controllers(None),
        "certificatesigningrequest-signing-controller",
        "bootstrap-signer-controller",
    }
    for item in chosen:
        if item != ALL and item.removeprefix("-") not in known:
            raise SettingsError(
                f'--controllers: "{item}" is not in the list of known controllers: {", ".join(sorted(known))}'
            )


def _workload_controllers(root_ca: str, gates: FeatureGates) -> dict[str, Factory]:
    """Return the controllers of workloads and of the API's own objects, by Kubernetes' names."""
    return {
        "garbage-collector-controller": lambda context: GarbageCollector(context, shared=_cached_kinds(gates)),
        "namespace-controller": NamespaceController,
        "clusterrole-aggregation-controller": ClusterRoleAggregationController,
        "serviceaccount-controller": lambda context: ServiceAccountController(context, root_ca=root_ca),
        "resourcequota-controller": ResourceQuotaController,
        "deployment-controller": DeploymentController,
        "replicaset-controller": ReplicaSetController,
        "replicationcontroller-controller": ReplicationControllerController,
        "statefulset-controller": StatefulSetController,
        "daemonset-controller": DaemonSetController,
        "job-controller": JobController,
        "cronjob-controller": CronJobController,
        "ttl-after-finished-controller": TTLAfterFinishedController,
        "disruption-controller": DisruptionController,
        "persistentvolume-binder-controller": PersistentVolumeController,
        "persistentvolumeclaim-protection-controller": VolumeClaimProtectionController,
        "persistentvolume-protection-controller": VolumeProtectionController,
        "ephemeral-volume-controller": EphemeralVolumeController,
        "endpointslice-controller": ServiceEndpointsController,
        "endpointslice-mirroring-controller": EndpointSliceMirroringController,
    }


def _device_controllers(gates: FeatureGates | None) -> dict[str, Factory]:
    """Return the controllers of claims, devices and groups that the gates enable; all without gates."""
    by_gates: dict[str, tuple[Factory, tuple[str, ...]]] = {
        "podgroup-protection-controller": (PodGroupProtectionController, ("GenericWorkload",)),
        "resourceclaim-controller": (ResourceClaimController, (_DRA,)),
        "device-taint-eviction-controller": (DeviceTaintEvictionController, (_DRA, "DRADeviceTaints")),
        "resourcepoolstatusrequest-controller": (ResourcePoolStatusRequestController, (_DRA, "DRAResourcePoolStatus")),
        "classic-claim-controller": (ClassicClaimController, (_DRA, "DRAControlPlaneController")),
    }
    return {
        name: factory
        for name, (factory, needed) in by_gates.items()
        if gates is None or all(gates.enabled(gate) for gate in needed)
    }


def _cached_kinds(gates: FeatureGates) -> Iterator[Resource[Any]]:
    """Yield numerous kinds whose full objects a controller other than the garbage collector caches."""
    yield from (PODS, NODES, REPLICA_SETS, JOBS)
    if gates.enabled(_DRA):
        yield RESOURCE_CLAIMS


def _node_controllers(settings: NodeControl) -> dict[str, Factory]:
    timing = LifecycleTiming(
        settings.node_monitor_period, settings.node_monitor_grace_period, settings.node_startup_grace_period
    )
    rates = Rates(
        settings.node_eviction_rate,
        settings.secondary_node_eviction_rate,
        settings.unhealthy_zone_threshold,
        settings.large_cluster_size_threshold,
    )
    ipam: dict[str, Factory] = {}
    if settings.allocate_node_cidrs:
        ranges = NodeRanges(settings.cluster_cidr, settings.node_cidr_mask_size)
        ipam["node-ipam-controller"] = lambda context: NodeIpamController(context, ranges)
    return ipam | {
        "node-lifecycle-controller": lambda context: NodeLifecycleController(context, timing=timing, rates=rates),
        "taint-eviction-controller": TaintEvictionController,
        "pod-garbage-collector-controller": lambda context: PodGarbageCollector(
            context,
            finished_max=settings.terminated_pod_gc_threshold,
            quarantine_seconds=settings.pod_gc_quarantine,
        ),
    }
