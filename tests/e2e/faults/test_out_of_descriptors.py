"""A process that may open no more files refuses requests, and goes on; nothing has to be restarted afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import resource
import time
from pathlib import Path

import pytest

from dray.api.errors import APIError
from tests.e2e.faults.aborted_streams import Aborter, settled, victim
from tests.e2e.node.harness import PODS, Cluster, client_of, is_running, shell

CONNECT_SECONDS_MAX = 5.0
# Longer than the interval of what a node does regularly.
SECONDS = 3.0
PODS_MAX = 10


@pytest.mark.parametrize("left", [0, 5])
async def test_dray_up_goes_on_when_its_descriptors_run_out(tmp_path: Path, left: int) -> None:
    async with victim(tmp_path, "--store=sqlite") as server:
        pid = server.process.pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        client = client_of(server)
        cluster = Cluster(client, "", "default")
        await cluster.run("before", shell("a", "sleep 1000"), nodeName=None)
        numbers = sorted(map(int, os.listdir(f"/proc/{pid}/fd")))
        free = next(number for number in range(len(numbers) + 1) if number not in numbers)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (free + left, hard))
        try:
            aborter = Aborter(server, random.Random(left))
            ends = time.monotonic() + SECONDS
            pods = itertools.count()
            while time.monotonic() < ends:
                with contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(CONNECT_SECONDS_MAX):
                        await aborter.abort_one()
                with contextlib.suppress(APIError):
                    await cluster.run(f"during-{next(pods) % PODS_MAX}", shell("a", "sleep 1"), nodeName=None)
            assert server.process.poll() is None, server.log.read_text()[-3000:]
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
        await cluster.run("after", shell("a", "sleep 1000"), nodeName=None)
        for name in ("before", "after"):
            await cluster.wait(name, is_running())
        assert (await client.get(PODS, "after", "default"))["spec"]["nodeName"]
        aborter.answers.clear()
        await aborter.abort(8)
        await settled(lambda: aborter.answers["101"] > 0)
        assert aborter.answers["101"] > 0, aborter.answers
        await client.close()
