"""A real kube-scheduler with Dray's API server; `KUBE_SCHEDULER` in the environment names its binary."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dray.api.document import Document
from dray.api.features import FeatureGates
from dray.client.in_process import in_process_client
from dray.client.interface import Bookmark, Client, Resource
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.reconciler import ControllerContext
from dray.controllers.resource_claim.reconciler import ResourceClaimController
from dray.runtime.tasks import TaskGroup
from tests.differential.cases import Case
from tests.differential.driver import CLAIMS, PODS, Answer, Driver, resource_of, run_case
from tests.local_server import local_server

BINARY: Final = os.environ.get("KUBE_SCHEDULER", "")
_MASTERS: Final = ("system:masters",)
_POLL_SECONDS: Final = 0.01
_START_SECONDS_MAX: Final = 60.0
# Of the API server; kube-scheduler has its own defaults.
GATES: Final = "DRAControlPlaneController=false"
_CONFIGURATION: Final = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {{kubeconfig: "{kubeconfig}", qps: 1000, burst: 1000}}
leaderElection: {{leaderElect: false}}
percentageOfNodesToScore: 100
"""
_LOG: Final = "kube-scheduler.log"
_SCORE: Final = re.compile(r'"Plugin scored node for pod" pod="team/(\S+)" plugin="(\S+)" node="(\S+)" score=(-?\d+)')
_STORE_VERSION: Final = re.compile(r'^informer_store_resource_version\{.*resource="(\w+)".*\} (\S+)$', re.MULTILINE)
# Followed by kube-scheduler, and changed by cases.
_FOLLOWED: Final = ("Node", "DeviceClass", "ResourceSlice", "DeviceTaintRule", "PodDisruptionBudget")
_VERSIONS: Final = {"Node": "v1", "PodDisruptionBudget": "policy/v1"}


@dataclass(slots=True)
class KubeWorld:
    """Implements `World`."""

    client: Client
    address: str
    seconds_max: float = 30.0
    # The resource version of the last change, by resource.
    changed: dict[str, int] = field(default_factory=dict)

    async def follow(self, resource: Resource[Document]) -> None:
        """Record the last change of a resource."""
        async for event in self.client.watch(resource):
            if not isinstance(event, Bookmark):
                self.changed[resource.plural] = int(event.resource_version)

    async def settle(self) -> None:
        """Wait until the stores of kube-scheduler's informers have everything."""
        # The watches of this process get their events first.
        await asyncio.sleep(_POLL_SECONDS)
        while True:
            wanted = dict(self.changed)
            versions = await asyncio.to_thread(self._versions)
            if all(versions.get(name, 0) >= version for name, version in wanted.items() if name in versions):
                break
            await asyncio.sleep(_POLL_SECONDS)
        # What follows from the stores, such as its list of nodes, is updated within this time.
        await asyncio.sleep(_POLL_SECONDS)

    def _versions(self) -> Mapping[str, int]:
        return {name: int(float(value)) for name, value in _STORE_VERSION.findall(self.get("/metrics"))}

    def get(self, path: str) -> str:
        context = ssl._create_unverified_context()
        with urllib.request.urlopen(f"https://{self.address}{path}", context=context, timeout=10) as answer:
            return str(answer.read().decode())


@asynccontextmanager
async def kube_world(folder: Path, case: Case, *flags: str) -> AsyncIterator[KubeWorld]:
    """A cluster with the objects of the case, and a new kube-scheduler."""
    async with local_server(folder, GATES) as server, TaskGroup("cluster") as group:
        client = in_process_client(server.running.local, user="test", groups=_MASTERS, user_agent="test")
        clock = server.running.clock
        informers = SharedInformerFactory(client, clock, random.Random(1))
        context = ControllerContext(client, informers, clock, gates=FeatureGates.parse(GATES), rng=random.Random(2))
        group.spawn(ResourceClaimController(context).run(), "claims")
        group.spawn(informers.run(), "informers")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            world = KubeWorld(client, f"127.0.0.1:{free.getsockname()[1]}")
        followed = [
            resource_of({"kind": kind, "apiVersion": _VERSIONS.get(kind, "resource.k8s.io/v1")}) for kind in _FOLLOWED
        ]
        for resource in (PODS, CLAIMS, *followed):
            group.spawn(world.follow(resource), resource.plural)
        await Driver(_Unwatched(client)).apply(case.objects)
        log = folder / _LOG
        with log.open("w") as output:
            process = subprocess.Popen(  # noqa: ASYNC220 - takes milliseconds
                [*_command(folder, server.running.kubeconfig, world.address), *flags], stdout=output, stderr=output
            )
            try:
                await _ready(process, world, log)
                yield world
            finally:
                process.kill()
                process.wait()
        await group.cancel()


@dataclass(slots=True)
class _Unwatched:
    """Implements `World` for a cluster whose scheduler has not started."""

    client: Client
    seconds_max: float = 30.0

    async def settle(self) -> None:
        """Nobody observes anything."""


def _command(folder: Path, kubeconfig: Path, address: str) -> list[str]:
    configuration = folder / "kube-scheduler.yaml"
    configuration.write_text(_CONFIGURATION.format(kubeconfig=kubeconfig))
    host, _, port = address.partition(":")
    return [
        BINARY,
        f"--config={configuration}",
        f"--bind-address={host}",
        f"--secure-port={port}",
        # It makes its own certificate there; everything on loopback may read its metrics.
        f"--cert-dir={folder}",
        "--authorization-always-allow-paths=/metrics,/readyz",
    ]


async def _ready(process: subprocess.Popen[bytes], world: KubeWorld, log: Path) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_START_SECONDS_MAX):
            while process.poll() is None:
                with contextlib.suppress(OSError):
                    if await asyncio.to_thread(world.get, "/readyz") == "ok":
                        return
                await asyncio.sleep(_POLL_SECONDS)
    raise AssertionError(f"kube-scheduler did not become ready:\n{log.read_text()[-5000:]}")  # noqa: ASYNC240 - the end of the run


async def ask(folder: Path, case: Case, *flags: str) -> list[Answer]:
    """Return kube-scheduler's decisions about the Pods of a case."""
    async with kube_world(folder, case, *flags) as world:
        return await run_case(world, case)


def read_scores(folder: Path) -> Mapping[str, Mapping[str, Mapping[str, int]]]:
    """Return the weighted scores by Pod, node and plugin, which kube-scheduler logs with `-v=10`."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for pod, plugin, node, score in _SCORE.findall((folder / _LOG).read_text(encoding="utf-8")):
        found.setdefault(pod, {}).setdefault(node, {})[plugin] = int(score)
    return found
