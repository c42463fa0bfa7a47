"""`dray scheduler`: the scheduler as a client of any Kubernetes API server."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from dray.api.document import NamespacedName
from dray.api.features import FeatureGates
from dray.api.types.core_v1 import Pod
from dray.client.indexer import Lister
from dray.client.interface import Client
from dray.client.leader_election import Timing
from dray.client.resources import PODS
from dray.client.shared_informers import SharedInformerFactory
from dray.client.skipped_objects import SkippedObjects
from dray.cmd.decision_page import DECISIONS, DecisionPage
from dray.cmd.settings import SchedulerSettings
from dray.lib.clock import Clock
from dray.runtime.http.requests import Request
from dray.runtime.http.router import Reply
from dray.runtime.metrics import CONTENT_TYPE, Metrics
from dray.runtime.tasks import TaskGroup
from dray.scheduler.cluster_events import UNFINISHED
from dray.scheduler.config import ConfigError, SchedulerConfig
from dray.scheduler.config_loader import installed_factories, read_config
from dray.scheduler.decisions import DecisionLog
from dray.scheduler.pod_resource_metrics import pod_resources_page
from dray.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from dray.cmd.component import Election


# The owner of what the scheduler writes, in managedFields; not kube-scheduler, which may run in the same cluster.
FIELD_MANAGER: Final = "dray-scheduler"
POD_RESOURCES_PATH: Final = "metrics/resources"


def spawn_scheduler(  # noqa: PLR0913 - the dependencies of a component
    group: TaskGroup,
    client: Client,
    clock: Clock,
    metrics: Metrics,
    *,
    config: SchedulerConfig,
    features: FeatureGates,
    decisions: DecisionLog | None = None,
) -> SharedInformerFactory:
    """Run a scheduler in the group; return its informers."""
    skipped = SkippedObjects(client, clock, metrics, FIELD_MANAGER)
    informers = SharedInformerFactory(client, clock, random.Random(), skipped)  # noqa: S311 - spreads load
    scheduler = Scheduler(
        client,
        informers,
        clock,
        metrics,
        factories=installed_factories(),
        config=config,
        features=features,
        decisions=decisions,
    )
    group.spawn(informers.run(), "scheduler informers")
    group.spawn(scheduler.run(), "scheduler")
    return informers


def _election(config: SchedulerConfig, settings: SchedulerSettings) -> Election | None:
    """Return the Lease by the flags that are given, else by the configuration; None without an election."""
    from dray.cmd.component import Election

    wanted = config.leader_election
    if not (wanted.enabled if settings.leader_elect is None else settings.leader_elect):
        return None
    lease = NamespacedName(
        settings.leader_elect_resource_namespace or wanted.namespace,
        settings.leader_elect_resource_name or wanted.name,
    )
    timing = Timing(
        settings.leader_elect_lease_duration or wanted.lease_seconds,
        settings.leader_elect_renew_deadline or wanted.renew_deadline_seconds,
        settings.leader_elect_retry_period or wanted.retry_seconds,
    )
    try:
        timing.check()
    except ValueError as error:
        raise ConfigError(f"leaderElection: {error}") from error
    return Election(lease, timing)


async def run(settings: SchedulerSettings, stop: asyncio.Event) -> None:
    """Run the scheduler, with leader election if enabled, until stopped."""
    # Imported here: `dray up` does not need the HTTP client and starts faster without it.
    from dray.cmd.component import Dependencies, run_component

    config = read_config(settings.scheduler_config, settings.scheduler_profile)
    resources, decisions = PodResources(), DecisionPage(DecisionLog())

    def spawn(group: TaskGroup, dependencies: Dependencies) -> SharedInformerFactory:
        informers = spawn_scheduler(
            group,
            dependencies.client,
            dependencies.clock,
            dependencies.metrics,
            config=config,
            features=dependencies.gates,
            decisions=decisions.log,
        )
        decisions.reviews = dependencies.client
        resources.pods = informers.informer(PODS, UNFINISHED).lister
        return informers

    election = _election(config, settings)
    pages = {f"/{POD_RESOURCES_PATH}": resources.serve, DECISIONS: decisions.serve}
    await run_component(FIELD_MANAGER, settings, stop, spawn, election=election, pages=pages)


class PodResources:
    """The page `/metrics/resources`; as in kube-scheduler, it is empty unless the scheduler leads."""

    def __init__(self, pods: Lister[Pod] | None = None) -> None:
        self.pods = pods

    async def page(self) -> bytes:
        """Return the metrics of all Pods; computed in a thread, since there may be many."""
        return b"" if self.pods is None else await asyncio.to_thread(pod_resources_page, self.pods.list())

    async def serve(self, _request: Request) -> Reply:
        """Serve the page."""
        return Reply(await self.page(), content_type=CONTENT_TYPE)
