"""Runs the controller of a classic driver, with leader election."""

from __future__ import annotations

import os
import random
import socket
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dray.api.document import NamespacedName
from dray.client.interface import Client
from dray.client.kubeconfig import KubeconfigError
from dray.client.leader_election import (
    LEASE_SECONDS,
    RENEW_DEADLINE_SECONDS,
    RETRY_SECONDS,
    LeaderElector,
    LeadershipLostError,
    Timing,
)
from dray.client.shared_informers import SharedInformerFactory
from dray.driver.classic.interface import ClassicController
from dray.driver.classic.reconciler import DriverReconciler
from dray.driver.program import program_context, run_program
from dray.lib.clock import Clock
from dray.runtime.health import HealthChecks
from dray.runtime.metrics import Metrics
from dray.runtime.settings import BOOLEAN, DURATION, PORT, STRING, SettingsError, load, number, setting
from dray.runtime.tasks import TaskGroup

LEASE_NAMESPACE: Final = "kube-system"


@dataclass(frozen=True, slots=True)
class Options:
    """How a controller runs."""

    # Allows several instances, of which one is active.
    leader_elect: bool = True
    lease_namespace: str = LEASE_NAMESPACE
    # Unique among the instances.
    identity: str = ""
    timing: Timing | None = None
    # Allocate on this node only, without election: each node has one instance.
    node_name: str = ""


async def serve(
    controller: ClassicController,
    client: Client,
    clock: Clock,
    metrics: Metrics | None = None,
    options: Options | None = None,
    health: HealthChecks | None = None,
) -> None:
    """Run the controller until cancelled, while leading; raise `LeadershipLostError` when the lease is lost."""
    options = options or Options()
    metrics = metrics or Metrics()
    health = health or HealthChecks()
    controller.client = client
    informers = SharedInformerFactory(client, clock, random.SystemRandom())
    # A candidate has no informers, and is in sync.
    health.add("informer-sync", informers.out_of_sync)

    async def work() -> None:
        reconciler = DriverReconciler(controller, client, informers, clock, metrics, options.node_name)
        async with TaskGroup(controller.name) as group:
            group.spawn(informers.run(), "informers")
            group.spawn(reconciler.run(), "claims")
            await group.wait()

    if options.node_name or not options.leader_elect:
        await work()
        return
    elector = LeaderElector(
        client,
        clock,
        random.SystemRandom(),
        lease=NamespacedName(options.lease_namespace, controller.name),
        identity=options.identity or f"{socket.gethostname()}_{uuid.uuid4()}",
        timing=options.timing,
    )
    # The name of the check in kube-controller-manager.
    health.add("leaderElection", elector.health)
    await elector.run(work)


@dataclass(frozen=True)
class Settings:
    """The controller of a classic resource driver."""

    kubeconfig: str = setting(STRING, "", "Access to the API server; by default KUBECONFIG's, or a Pod's own.")
    leader_elect: bool = setting(BOOLEAN, default=True, text="Work only while holding the driver's Lease.")
    lease_namespace: str = setting(STRING, LEASE_NAMESPACE, "Namespace of the Lease.", environment="POD_NAMESPACE")
    leader_elect_lease_duration: float = setting(
        DURATION, LEASE_SECONDS, "Time before other candidates take over an unrenewed Lease."
    )
    leader_elect_renew_deadline: float = setting(
        DURATION, RENEW_DEADLINE_SECONDS, "Time after which a leader that cannot renew stops."
    )
    leader_elect_retry_period: float = setting(
        DURATION, RETRY_SECONDS, "Time between attempts to acquire or renew the Lease."
    )
    metrics_port: int = setting(PORT, 0, "Port of metrics and health checks on loopback; 0 for none.")
    log_format: str = setting(STRING, "text", "text or json.")
    v: int = setting(number(0, 10), 0, "Log verbosity.", flag="v")

    @property
    def timing(self) -> Timing:
        """The timing of the election."""
        return Timing(
            self.leader_elect_lease_duration, self.leader_elect_renew_deadline, self.leader_elect_retry_period
        )


def run(
    controller: ClassicController,
    kubeconfig: str = "",
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> int:
    """Run a controller as a program, with flags, logging and signals; return the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    return run_program(
        lambda: _checked(load(Settings, arguments, environ)),
        lambda settings: _run(controller, settings, kubeconfig, environ),
        (KubeconfigError, LeadershipLostError),
    )


def _checked(settings: Settings) -> Settings:
    try:
        settings.timing.check()
    except ValueError as error:
        raise SettingsError(str(error)) from error
    return settings


async def _run(controller: ClassicController, settings: Settings, kubeconfig: str, environ: Mapping[str, str]) -> None:
    options = Options(settings.leader_elect, settings.lease_namespace, timing=settings.timing)
    agent = f"{controller.name}/dray"
    async with program_context(settings, environ, controller.name, kubeconfig=kubeconfig, user_agent=agent) as program:
        work = serve(controller, program.client, program.clock, program.metrics, options, program.health)
        program.group.spawn(work, "controller")
        await program.group.wait(program.stop)
