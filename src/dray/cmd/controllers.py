"""The controllers of a cluster, wired to a client: shared by `dray up` and `dray controller-manager`."""

from __future__ import annotations

import random
from collections.abc import Coroutine
from typing import Any, Protocol

from dray.api.features import FeatureGates
from dray.client.interface import Client
from dray.client.loop import Informers
from dray.controllers.classic_claim.reconciler import ClassicClaimController
from dray.controllers.cluster_role_aggregation.reconciler import ClusterRoleAggregationController
from dray.controllers.garbage_collector.reconciler import GarbageCollector
from dray.controllers.namespace.reconciler import NamespaceController
from dray.controllers.resource_claim.reconciler import ResourceClaimController
from dray.controllers.resource_quota.reconciler import ResourceQuotaController
from dray.controllers.service_account.reconciler import ServiceAccountController
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup


class _Controller(Protocol):
    def run(self) -> Coroutine[Any, Any, None]:
        """Work until cancelled."""


def spawn_controllers(
    group: TaskGroup,
    client: Client,
    clock: Clock,
    metrics: Metrics,
    *,
    root_ca: str,
    gates: FeatureGates | None = None,
) -> None:
    """Run every controller in the group; `root_ca` is what workloads trust the API server by."""
    rng = random.Random()  # noqa: S311 - spreads load, guards nothing
    gates = gates or FeatureGates()
    informers = Informers(client, clock, rng)
    controllers: list[_Controller] = [
        GarbageCollector(client, informers, clock, metrics),
        NamespaceController(client, informers, clock, metrics),
        ClusterRoleAggregationController(client, informers, clock, metrics),
        ServiceAccountController(client, informers, clock, root_ca=root_ca, metrics=metrics),
        ResourceQuotaController(client, informers, clock, gates=gates, metrics=metrics),
    ]
    if gates.enabled("DynamicResourceAllocation"):
        controllers.append(ResourceClaimController(client, informers, clock, gates=gates, metrics=metrics))
        if gates.enabled("DRAControlPlaneController"):
            controllers.append(ClassicClaimController(client, informers, clock, metrics))
    group.spawn(informers.run(), "informers")
    for controller in controllers:
        group.spawn(controller.run(), type(controller).__name__)
