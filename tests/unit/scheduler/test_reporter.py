"""The scheduler's background writes: Events of one Pod keep their order."""

from __future__ import annotations

import asyncio
from typing import cast

from dray.api.document import Document
from dray.api.types.core_v1 import Pod, PodSpec
from dray.api.types.meta_v1 import ObjectMeta
from dray.client.event_recorder import WARNING
from dray.client.interface import Client
from dray.lib.clock import VirtualClock
from dray.scheduler.reporter import Reporter

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


async def test_events_of_one_pod_are_written_one_after_the_other_in_order() -> None:
    client = BlockedClient()
    clock = VirtualClock(asyncio.get_running_loop().create_future)
    reporter = Reporter(cast(Client, client), clock, ["default-scheduler"])
    pod = Pod(
        metadata=ObjectMeta(name="a", namespace="default", uid="u"),
        spec=PodSpec(scheduler_name="default-scheduler"),
    )
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
