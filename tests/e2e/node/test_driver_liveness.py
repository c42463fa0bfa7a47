"""A DRA driver whose process is stopped is noticed while a call is pending; one that is only slow is not cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from dray.api.document import UID, NamespacedName
from dray.node.dra import driver_client
from dray.node.dra.claim_info_cache import ClaimRef
from dray.node.dra.driver_client import ClientOptions, DriverClient, ResponseError
from dray.node.dra.metrics import DriverMetrics
from dray.node.plugins.handler import Plugin
from dray.runtime.metrics import Metrics
from dray.runtime.system import SystemClock

SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
CLAIMS = (ClaimRef(UID("u"), NamespacedName("ns", "c")),)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_client, "PROBE_SECONDS", 0.05)
    monkeypatch.setattr(driver_client, "LATE_SECONDS", 0.2)


@asynccontextmanager
async def driver(path: Path, *, greetings: int) -> AsyncIterator[DriverClient]:
    """A socket that accepts connections, answers nothing, and greets some; a stopped process greets no more."""
    left = [greetings]
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        left[0] -= 1
        if left[0] >= 0:
            writer.write(SETTINGS)
        while await reader.read(1024):
            pass

    server = await asyncio.start_unix_server(accept, path)
    plugin = Plugin("DRAPlugin", "gpu.example.com", str(path), ("v1.DRAPlugin",), "")
    client = DriverClient(plugin, ClientOptions(DriverMetrics(Metrics()), SystemClock()), lambda: None)
    try:
        yield client
    finally:
        await client.close()
        server.close()
        for writer in writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def test_a_call_to_a_stopped_driver_fails_before_its_deadline(tmp_path: Path) -> None:
    async with driver(tmp_path / "d.sock", greetings=1) as client, asyncio.timeout(20):
        with pytest.raises(ResponseError, match=r"driver gpu\.example\.com does not respond: its process is stopped"):
            await client.prepare(CLAIMS)


async def test_a_call_to_a_slow_driver_goes_on(tmp_path: Path) -> None:
    async with driver(tmp_path / "d.sock", greetings=1000) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await client.prepare(CLAIMS)
