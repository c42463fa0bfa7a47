"""What `dray simulate` says is what then happens: random clusters, simulated and then really run."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime

import pytest

from dray.api.document import Document, GroupVersion
from dray.api.features import FeatureGates
from dray.client.in_process import in_process_client
from dray.client.interface import Client, unstructured
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.reconciler import ControllerContext
from dray.controllers.resource_claim.reconciler import ResourceClaimController
from dray.runtime.metrics import Metrics
from dray.runtime.system import SystemClock
from dray.runtime.tasks import TaskGroup
from dray.scheduler.registry import BUILT_IN
from dray.scheduler.scheduler import Scheduler
from dray.sim.cluster_reader import read_cluster
from dray.sim.snapshot import PLACEMENT_KINDS, Snapshot
from dray.sim.whatif.changes import Changed
from dray.sim.whatif.outcome import compare
from dray.sim.whatif.simulation import Run, apply, simulate
from tests.in_process_server import in_process_server
from tests.unit.sim.cluster import GPU, device, device_class, exactly, node, resource_slice, template, waiting_pod

SECONDS_MAX = 30.0
PODS = unstructured(GroupVersion("", "v1"), "pods", "Pod")
MODELS = ("a100", "h100", "t4")


def random_cluster(rng: random.Random) -> list[Document]:
    documents = [device_class("gpu", f'device.driver == "{GPU}"')]
    for number in range(rng.randint(1, 4)):
        name = f"node-{number}"
        devices = [
            device(f"gpu-{index}", attributes={"model": {"string": rng.choice(MODELS)}})
            for index in range(rng.randint(1, 5))
        ]
        documents += [node(name), resource_slice(name, GPU, *devices, nodeName=name)]
    return documents


def random_manifests(rng: random.Random) -> list[Document]:
    documents: list[Document] = []
    for number in range(rng.randint(1, 3)):
        selector = f"device.attributes['{GPU}'].model == '{rng.choice(MODELS)}'"
        request = exactly(rng.randint(1, 3), *([selector] if rng.random() < 0.5 else []))
        documents.append(template(f"template-{number}", request))
    pods = [waiting_pod(f"pod-{number}", rng.choice(documents)["metadata"]["name"]) for number in range(5)]
    return [*documents, *pods]


async def really(cluster: list[Document], manifests: list[Document]) -> Snapshot:
    """The same with the system's clock; each Pod is there when the one before has been decided about."""
    clock = SystemClock()
    async with in_process_server(clock, random.Random(1), "team") as local, TaskGroup("stack") as group:
        client = in_process_client(local, user="test", groups=("system:masters",), user_agent="test")
        await apply(client, cluster)
        informers = SharedInformerFactory(client, clock, random.Random(2))
        scheduler = Scheduler(client, informers, clock, Metrics(), factories=BUILT_IN)
        group.spawn(informers.run(), "informers")
        group.spawn(ResourceClaimController(ControllerContext(client, informers, clock)).run(), "claims")
        group.spawn(scheduler.run(), "scheduler")
        await apply(client, [item for item in manifests if item["kind"] != "Pod"])
        for pod in manifests:
            if pod["kind"] == "Pod":
                await apply(client, [pod])
                await asyncio.wait_for(decided(client, pod["metadata"]["name"]), SECONDS_MAX)
        found = await read_cluster(client, PLACEMENT_KINDS)
        await group.cancel()
        return found


async def decided(client: Client, name: str) -> None:
    while True:
        pod = await client.get(PODS, name, "team")
        if pod["spec"].get("nodeName") or pod["status"].get("conditions"):
            return
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("seed", range(25))
def test_what_is_said_is_what_happens(seed: int) -> None:
    rng = random.Random(seed)
    cluster, manifests = random_cluster(rng), random_manifests(rng)
    before = Snapshot.of(cluster)
    run = Run(before, Changed(before), datetime(2026, 1, 1, tzinfo=UTC), FeatureGates(), lambda *_: None)
    predicted = simulate(run, manifests)
    happened = compare(before, asyncio.run(really(cluster, manifests)))
    assert {(row.name, row.node, row.devices) for row in predicted.placed} == {
        (row.name, row.node, row.devices) for row in happened.placed
    }
    assert {row.name for row in predicted.pending} == {row.name for row in happened.pending}
