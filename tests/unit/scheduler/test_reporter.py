"""The scheduler's background writes: Events of one Pod keep their order, and statuses that were not sent are merged."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from dray.api.codec import from_document
from dray.api.document import Document
from dray.api.types.core_v1 import Pod, PodSpec
from dray.api.types.meta_v1 import ObjectMeta
from dray.client.event_recorder import WARNING
from dray.client.interface import Client, Patch, WriteOptions
from dray.lib.clock import VirtualClock
from dray.scheduler.reporter import Reporter
from dray.scheduler.status_writer import WRITES_MAX

MESSAGES = [f"attempt {number}" for number in range(5)]


class BlockedClient:
    """Blocks every create until released; records which have begun and how many run at once."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.first_begun = asyncio.Event()
        self.all_begun = asyncio.Event()
        self.release = asyncio.Event()
        self.running = 0
        self.running_max = 0

    async def create(self, _resource: object, document: Document, *_: object) -> Document:
        self.begun.append(document["message"])
        self.running += 1
        self.running_max = max(self.running, self.running_max)
        self.first_begun.set()
        if len(self.begun) == len(MESSAGES):
            self.all_begun.set()
        await self.release.wait()
        self.running -= 1
        return document

    async def patch(
        self, _resource: object, name: str, _namespace: str, patch: Patch, _options: WriteOptions
    ) -> Document:
        status = cast("Document", patch.body)["status"]
        conditions = [item["message"] for item in status.get("conditions", ())]
        await self.create(None, {"message": f"{name}: {conditions} {status.get('nominatedNodeName')}"}, "")
        return {}


def make_pod(name: str) -> Pod:
    spec = PodSpec(scheduler_name="default-scheduler")
    return Pod(metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"), spec=spec)


@pytest.mark.behaviour("SC-12")
async def test_statuses_are_written_beside_the_scheduler_and_newer_ones_replace_what_was_not_sent() -> None:
    client = BlockedClient()
    clock = VirtualClock(asyncio.get_running_loop().create_future)
    reporter = Reporter(cast(Client, client), clock, ["default-scheduler"])
    a = make_pod("a")
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        running = group.create_task(reporter.run())
        reporter.set_status(a, "Unschedulable", "first")
        await client.first_begun.wait()
        for message in ("second", "third"):
            reporter.set_status(a, "Unschedulable", message)
        reporter.clear_nomination(a)
        # So many other Pods that some have to wait for a slot.
        others = [make_pod(f"other-{number}") for number in range(WRITES_MAX)]
        for other in others:
            reporter.set_status(other, "Unschedulable", "full")
        for _ in range(100):
            await asyncio.sleep(0)
        assert client.running_max == WRITES_MAX
        client.release.set()
        for pod in (a, *others):
            await reporter.wait_for_status(pod.metadata.uid or "")
        running.cancel()
    assert [text for text in client.begun if text.startswith("a:")] == ["a: ['first'] None", "a: ['third'] None"]
    assert len(client.begun) == 2 + len(others)


@pytest.mark.behaviour("SC-12")
async def test_a_status_that_says_nothing_new_is_not_written() -> None:
    client = BlockedClient()
    clock = VirtualClock(asyncio.get_running_loop().create_future)
    reporter = Reporter(cast(Client, client), clock, ["default-scheduler"])
    pod = from_document(
        Pod,
        {
            "metadata": {"name": "a", "namespace": "default", "uid": "u"},
            "spec": {"schedulerName": "default-scheduler"},
            "status": {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no nodes"}
                ]
            },
        },
    )
    reporter.set_status(pod, "Unschedulable", "no nodes")
    await reporter.wait_for_status("u")
    assert client.begun == []


async def test_events_of_one_pod_are_written_one_after_the_other_in_order() -> None:
    client = BlockedClient()
    clock = VirtualClock(asyncio.get_running_loop().create_future)
    reporter = Reporter(cast(Client, client), clock, ["default-scheduler"])
    pod = make_pod("a")
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        running = group.create_task(reporter.run())
        for message in MESSAGES:
            reporter.event(pod, WARNING, "FailedScheduling", message)
        await client.first_begun.wait()
        # A second writer of the same queue would begin its write within these steps.
        for _ in range(100):
            await asyncio.sleep(0)
        client.release.set()
        await client.all_begun.wait()
        running.cancel()
    assert client.begun == MESSAGES
    assert client.running_max == 1
