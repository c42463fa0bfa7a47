"""Two schedulers without a common Lease on one server: what one of them gives away, the other does not."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from dray.api.document import Document
from dray.client.in_process import in_process_client
from dray.client.interface import Client
from dray.client.resources import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dray.client.shared_informers import SharedInformerFactory
from dray.cmd import apiserver
from dray.cmd.settings import APIServerSettings
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup
from dray.scheduler.config import ProfileConfig, SchedulerConfig
from dray.scheduler.plugins.dynamic_resources.tracker import ClaimTracker
from dray.scheduler.registry import BUILT_IN
from dray.scheduler.scheduler import Scheduler

DRIVER = "gpu.example.com"
NODE_COUNT, DEVICE_COUNT = 5, 20
PODS_IN_ALL = NODE_COUNT * DEVICE_COUNT
SECONDS_MAX = 120.0


async def create_cluster(client: Client) -> None:
    """Nodes with as many devices as there will be Pods."""
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    await client.create(DEVICE_CLASSES.unstructured, {"metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}})
    for number in range(NODE_COUNT):
        name = f"node-{number}"
        amounts = {"cpu": "100", "memory": "100Gi", "pods": "110"}
        status = {"allocatable": amounts, "capacity": amounts}
        await client.create(NODES.unstructured, {"metadata": {"name": name}, "status": status})
        devices = [{"name": f"gpu-{index}"} for index in range(DEVICE_COUNT)]
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
        await client.create(RESOURCE_SLICES.unstructured, {"metadata": {"name": name}, "spec": spec})


def start_scheduler(group: TaskGroup, running: apiserver.Running, name: str) -> None:
    client = in_process_client(running.local, user="system:kube-scheduler")
    informers = SharedInformerFactory(client, running.clock, random.Random(1))
    config = SchedulerConfig((ProfileConfig(name),))
    scheduler = Scheduler(client, informers, running.clock, Metrics(), factories=BUILT_IN, config=config)
    group.spawn(informers.run(), "informers")
    group.spawn(scheduler.run(), "scheduler")


async def submit(client: Client, number: int, scheduler: str) -> None:
    """A Pod with a claim for one device."""
    name = f"pod-{number}"
    claim = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}
    metadata = {"name": name, "namespace": "default"}
    await client.create(RESOURCE_CLAIMS.unstructured, {"metadata": metadata, "spec": claim})
    spec: Document = {
        "schedulerName": scheduler,
        "containers": [{"name": "c", "image": "i"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
    }
    await client.create(PODS.unstructured, {"metadata": metadata, "spec": spec})


@pytest.mark.parametrize("looks", [True, False], ids=["dray", "schedulers-that-do-not-look-for-other-claims"])
async def test_two_schedulers_without_a_common_lease_give_no_device_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: bool
) -> None:
    if not looks:
        monkeypatch.setattr(ClaimTracker, "conflicting_claims", lambda *_arguments: ())
    settings = APIServerSettings(
        data_dir=str(tmp_path),
        port=0,
        store="memory",
        disable_admission_plugins=("TaintNodesByCondition", "ServiceAccount"),
    )
    async with apiserver.running(settings) as running, TaskGroup("schedulers") as group:
        client = in_process_client(running.local, user="tester", groups=("system:masters",))
        await create_cluster(client)
        for name in ("one", "two"):
            start_scheduler(group, running, name)
        await asyncio.gather(*(submit(client, number, ("one", "two")[number % 2]) for number in range(PODS_IN_ALL)))
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                listed = (await client.list(PODS.unstructured, "default")).items
                if all(item["spec"].get("nodeName") for item in listed):
                    break
                await asyncio.sleep(0.05)
        claims = (await client.list(RESOURCE_CLAIMS.unstructured, "default")).items
        await group.cancel()
    given: Counter[tuple[str, str]] = Counter()
    for claim in claims:
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        given[result["pool"], result["device"]] += 1
    assert len(given) == PODS_IN_ALL
    assert set(given.values()) == {1}
