"""The controllers and the scheduler in the process of the API server.

Their writes are committed asynchronously: they see each other's writes at once and do not wait for the disk, while
everyone else sees a write when it is durable. They act on nothing but the API, so that a crash takes back nothing that
anyone has seen. A disk that refuses writes after they were seen is like a crash of the components: they start anew with
what is durable.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final

from dray.client.in_process import in_process_client
from dray.client.resources import PODS
from dray.cmd.apiserver import Running
from dray.cmd.cluster_authority import ClusterAuthority, authorities_by_signer
from dray.cmd.controllers import spawn_controllers
from dray.cmd.scheduler import FIELD_MANAGER, POD_RESOURCES_PATH, PodResources, spawn_scheduler
from dray.cmd.served_features import resources_of, served_features
from dray.cmd.settings import UpSettings
from dray.runtime.tasks import TaskGroup
from dray.scheduler.cluster_events import UNFINISHED
from dray.scheduler.config import SchedulerConfig
from dray.scheduler.decisions import DecisionLog

_LOG: Final = logging.getLogger(__name__)


async def run_components(
    settings: UpSettings, server: Running, scheduler_config: SchedulerConfig, decisions: DecisionLog
) -> None:
    """Run the controllers and the scheduler until cancelled; after a rollback of the store, start them anew."""
    rolled_back = asyncio.Event()
    store = server.store.with_asynchronous_commit()
    if store is not None:
        store.on_roll_back(lambda _revision: rolled_back.set())
    discovery = in_process_client(server.local, user="system:kube-scheduler", user_agent=FIELD_MANAGER)
    features = served_features(resources_of(await discovery.resources()), settings.feature_gates)
    while True:
        rolled_back.clear()
        async with TaskGroup("components") as group:
            _spawn(group, replace(settings, feature_gates=features), server, scheduler_config, decisions)
            await rolled_back.wait()
        _LOG.warning("writes could not be stored: the controllers and the scheduler start anew with what is stored")


def _spawn(
    group: TaskGroup, settings: UpSettings, server: Running, scheduler_config: SchedulerConfig, decisions: DecisionLog
) -> None:
    controllers = spawn_controllers(
        group,
        in_process_client(
            server.components, user="system:kube-controller-manager", user_agent="kube-controller-manager"
        ),
        server.clock,
        server.metrics,
        root_ca=server.pki.authority.certificate.decode(),
        gates=settings.feature_gates,
        nodes=settings,
        authority=ClusterAuthority(authorities_by_signer(server.pki.authority, server.pki.kubelet_serving)),
        signing_seconds=settings.cluster_signing_duration,
    )
    scheduler = spawn_scheduler(
        group,
        in_process_client(server.components, user="system:kube-scheduler", user_agent=FIELD_MANAGER),
        server.clock,
        server.metrics,
        config=scheduler_config,
        features=settings.feature_gates,
        decisions=decisions,
    )
    server.server.component_metrics[POD_RESOURCES_PATH] = PodResources(scheduler.informer(PODS, UNFINISHED).lister).page
    for name, informers in (("controllers", controllers), ("scheduler", scheduler)):
        if informers.skipped is not None:
            server.server.health.skipped[name] = informers.skipped.names
