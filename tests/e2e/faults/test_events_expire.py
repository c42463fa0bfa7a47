"""Events expire on every store: watchers see them deleted, and what is written meanwhile stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from dray.api.document import Document
from dray.api.errors import NotFoundError
from dray.cmd import apiserver
from dray.cmd.settings import APIServerSettings
from tests.conformance.store.conftest import EtcdProcess
from tests.local_server import Local

TTL_SECONDS = 0.5
WAIT_SECONDS = 120.0
EVENTS = "core/v1/events@default"


@pytest.fixture(params=["memory", "sqlite", "etcd"])
async def servers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[Local]]:
    """One server, and with etcd two that share it."""
    flags: dict[str, object] = {"store": request.param, "port": 0, "event_ttl": TTL_SECONDS}
    async with AsyncExitStack() as stack:
        count = 1
        if request.param == "etcd":
            etcd, count = EtcdProcess(tmp_path / "etcd"), 2
            stack.callback(etcd.stop)
            await asyncio.to_thread(etcd.start)
            flags["etcd_servers"] = (etcd.endpoint,)
        running = []
        for number in range(count):
            settings = APIServerSettings(data_dir=str(tmp_path / f"server-{number}"), **flags)  # type: ignore[arg-type]
            running.append(Local(await stack.enter_async_context(apiserver.running(settings))))
        yield running


def event(name: str) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"},
        "reason": "Tested",
        "type": "Normal",
    }


async def test_events_expire_and_watchers_see_them_deleted(servers: list[Local]) -> None:
    first, last = servers[0], servers[-1]
    revision = (await first.request("list", EVENTS))["metadata"]["resourceVersion"]
    changes = await last.watch("core/v1/events", resourceVersion=revision)
    names = [f"event-{number}" for number in range(10)]
    for name in names:
        await first.request("create", EVENTS, event(name))
    deleted: list[str] = []
    async with asyncio.timeout(WAIT_SECONDS):
        async for kind, changed in changes:
            if kind == "DELETED":
                assert changed["reason"] == "Tested"
                deleted.append(changed["metadata"]["name"])
            if len(deleted) == len(names):
                break
    assert sorted(deleted) == names
    for server in servers:
        with pytest.raises(NotFoundError):
            await server.request("get", "core/v1/events/event-0@default")
        # Nothing else expires.
        assert await server.request("get", "core/v1/namespaces/default")
