"""Runs a component as its own process: a client of any API server, with health checks and leader election."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from dray import __version__
from dray.api.document import NamespacedName
from dray.api.errors import APIError
from dray.api.features import FeatureGates
from dray.client.credentials import load_access
from dray.client.http import http_client
from dray.client.interface import Client
from dray.client.kubeconfig import Access
from dray.client.leader_election import LeaderElector, Timing
from dray.client.request_state import RequestState
from dray.client.rest import RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.client.skipped_objects import summary
from dray.cmd.served_features import GroupVersionResource, resources_of, served_features
from dray.cmd.settings import ControllerManagerSettings, SchedulerSettings
from dray.lib.clock import Clock
from dray.runtime.health import HealthChecks
from dray.runtime.http.health import serve_health
from dray.runtime.http.router import Handler
from dray.runtime.http.urls import parse_url
from dray.runtime.logs import fields
from dray.runtime.metrics import Metrics
from dray.runtime.settings import SettingsError
from dray.runtime.system import SystemClock
from dray.runtime.tasks import TaskGroup

_log = logging.getLogger(__name__)

# Between requests to a server that does not answer when the component starts; doubled up to the maximum, with jitter.
RETRY_FIRST_SECONDS: Final = 0.5
RETRY_SECONDS_MAX: Final = 2.0
READY_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The dependencies of a component's tasks."""

    client: Client
    access: Access
    clock: Clock
    metrics: Metrics
    # Enabled features whose resources the server serves.
    gates: FeatureGates


@dataclass(frozen=True, slots=True)
class Election:
    """The Lease of a component; None instead of it runs the component without leader election."""

    lease: NamespacedName
    timing: Timing = field(default_factory=Timing)


# Starts the component's tasks in the group; returns their informers, which must be in sync for it to be ready.
Spawn = Callable[[TaskGroup, Dependencies], SharedInformerFactory]


async def run_component(
    name: str,
    settings: ControllerManagerSettings | SchedulerSettings,
    stop: asyncio.Event,
    spawn: Spawn,
    *,
    election: Election | None,
    pages: Mapping[str, Handler] | None = None,
) -> None:
    """Run the tasks, with leader election if there is one, until stopped; the name is that of the field manager.

    The pages are served next to health checks and metrics.
    """
    access = with_fallback_servers(load_access(os.environ, path=settings.kubeconfig), settings.api_servers)
    clock = SystemClock()
    client = http_client(access, clock, user_agent=f"{name}/{__version__}")
    component = _Component(name, client, access, clock, election)
    try:
        async with TaskGroup(name) as group:
            port = await serve_health(
                group, settings.host, settings.port, component.metrics.exposition, component.health, pages
            )
            address = f"http://{settings.host}:{port}"
            _log.info("serving health checks and metrics", extra=fields(address=address))
            group.spawn(component.run(spawn, settings.feature_gates), "run")
            group.spawn(announce_ready(component.health, clock, f"ready {access.server} health {address}"), "announce")
            await group.wait(stop)
    finally:
        await client.close()


def with_fallback_servers(access: Access, servers: Sequence[str]) -> Access:
    """Return the access with further API servers, whose URLs are checked."""
    for server in servers:
        try:
            is_same_scheme = parse_url(server).origin.is_secure == parse_url(access.server).origin.is_secure
        except ValueError as error:
            raise SettingsError(f"--api-servers: {server}: {error}") from error
        if not is_same_scheme:
            raise SettingsError(f"--api-servers: {server}: must begin as {access.server} does")
    others = dict.fromkeys(server.rstrip("/") for server in servers)
    others.pop(access.server, None)
    return replace(access, fallback_servers=tuple(others))


async def announce_ready(health: HealthChecks, clock: Clock, line: str) -> None:
    """Print the line when all checks of readiness hold for the first time."""
    while health.failures():
        await clock.sleep(READY_POLL_SECONDS)
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class _Component:
    """A component and the state of its health."""

    def __init__(self, name: str, client: RestClient, access: Access, clock: Clock, election: Election | None) -> None:
        self._name = name
        self._client = client
        self._access = access
        self._clock = clock
        self.metrics = Metrics()
        self._rng = random.Random()  # noqa: S311 - spreads load, guards nothing
        self._elector = None if election is None else self._make_elector(election)
        self._discovery = RequestState(_log, "API discovery")
        # None until the component starts its work, which a candidate does when it is elected.
        self._informers: SharedInformerFactory | None = None
        self.health = HealthChecks()
        self.health.add("informer-sync", self._out_of_sync)
        self.health.add_note("decodable-objects", self._skipped_objects)
        if self._elector is not None:
            # The name of the check in kube-scheduler and kube-controller-manager.
            self.health.add("leaderElection", self._elector.health)

    async def run(self, spawn: Spawn, features: FeatureGates) -> None:
        """Run the component's tasks while it leads."""
        served = await self._served_resources()
        gates = served_features(served, features)

        async def work() -> None:
            async with TaskGroup(f"{self._name} tasks") as group:
                dependencies = Dependencies(self._client, self._access, self._clock, self.metrics, gates)
                self._informers = spawn(group, dependencies)
                await group.wait()

        await (work() if self._elector is None else self._elector.run(work))

    async def _served_resources(self) -> frozenset[GroupVersionResource]:
        """Return what the server serves as soon as it answers."""
        delay = RETRY_FIRST_SECONDS
        while True:
            try:
                served = await self._client.resources()
            except APIError as error:
                self._discovery.failed("get", error)
                await self._clock.sleep(delay * (0.5 + self._rng.random() / 2))
                delay = min(delay * 2, RETRY_SECONDS_MAX)
            else:
                self._discovery.succeeded()
                return resources_of(served)

    def _out_of_sync(self) -> str | None:
        if self._informers is not None:
            return self._informers.out_of_sync()
        if not self._discovery.has_succeeded:
            return self._discovery.failure or "waiting for the API server"
        is_candidate = self._elector is not None and not self._elector.is_leader
        return None if is_candidate else "informers have not started"

    def _skipped_objects(self) -> str | None:
        skipped = None if self._informers is None else self._informers.skipped
        return None if skipped is None else summary(skipped.names())

    def _make_elector(self, election: Election) -> LeaderElector:
        identity = f"{socket.gethostname()}_{uuid.uuid4()}"
        return LeaderElector(
            self._client, self._clock, self._rng, lease=election.lease, identity=identity, timing=election.timing
        )
