"""Runs a component as its own process: a client of any API server, with health checks and leader election."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from dray import __version__
from dray.api.document import NamespacedName
from dray.api.features import FeatureGates
from dray.client.credentials import load_access
from dray.client.http import http_client
from dray.client.interface import Client
from dray.client.kubeconfig import Access
from dray.client.leader_election import LeaderElector, Timing
from dray.cmd.settings import ControllerManagerSettings, SchedulerSettings
from dray.lib.clock import Clock
from dray.runtime.http.server import serve_health
from dray.runtime.metrics import Metrics
from dray.runtime.system import SystemClock
from dray.runtime.tasks import TaskGroup


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


# Starts the component's tasks in the group.
Spawn = Callable[[TaskGroup, Dependencies], object]


async def run_component(
    name: str,
    settings: ControllerManagerSettings | SchedulerSettings,
    stop: asyncio.Event,
    spawn: Spawn,
    *,
    election: Election | None,
) -> None:
    """Run the tasks, with leader election if there is one, until stopped; the name is that of the field manager."""
    clock, metrics = SystemClock(), Metrics()
    access = load_access(os.environ, path=settings.kubeconfig)
    client = http_client(access, clock, user_agent=f"{name}/{__version__}")
    try:
        # Readiness is reported only after the server has answered.
        await client.get_path("/version")
        gates = await served_features(client, settings.feature_gates)
        work = partial(_work, name, spawn, Dependencies(client, access, clock, metrics, gates))
        async with TaskGroup(name) as group:
            port = await serve_health(group, settings.host, settings.port, metrics.exposition)
            group.spawn(work() if election is None else _elector(election, client, clock).run(work), "lead")
            sys.stdout.write(f"ready {access.server} health http://{settings.host}:{port}\n")
            sys.stdout.flush()
            await group.wait(stop)
    finally:
        await client.close()


async def _work(name: str, spawn: Spawn, dependencies: Dependencies) -> None:
    async with TaskGroup(f"{name} tasks") as group:
        spawn(group, dependencies)
        await group.wait()


def _elector(election: Election, client: Client, clock: Clock) -> LeaderElector:
    rng = random.Random()  # noqa: S311 - spreads load, guards nothing
    identity = f"{socket.gethostname()}_{uuid.uuid4()}"
    return LeaderElector(client, clock, rng, lease=election.lease, identity=identity, timing=election.timing)


# Feature gates that need a resource (group, version, plural); without it their informers would never sync.
_NEEDED: Final[Mapping[str, tuple[str, str, str]]] = {
    "DRADeviceTaintRules": ("resource.k8s.io", "v1beta2", "devicetaintrules"),
    "DRAControlPlaneController": ("cdi.k8s.io", "v1alpha1", "resourceclaims"),
}


async def served_features(client: Client, features: FeatureGates) -> FeatureGates:
    """Return the features without those whose resources the server does not serve."""
    served = {(item.group, item.version, item.plural) for item in await client.resources()}
    missing = {gate: False for gate, kind in _NEEDED.items() if kind not in served}
    return FeatureGates({**features.overrides, **missing})
