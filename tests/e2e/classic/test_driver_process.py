"""A classic driver as a process of its own: real HTTP, a Lease, kill -9."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dray.api.document import Document, GroupVersion
from dray.client.credentials import load_access
from dray.client.http import http_client
from dray.client.interface import Client, DeleteOptions, unstructured
from dray.runtime.system import SystemClock
from tests.fork_server import ForkedPopen
from tests.servers import Server, running_server

CORE, CDI = GroupVersion("", "v1"), GroupVersion("cdi.k8s.io", "v1alpha1")
PODS = unstructured(CORE, "pods", "Pod")
NODES = unstructured(CORE, "nodes", "Node", namespaced=False)
CLAIMS = unstructured(CDI, "resourceclaims", "ResourceClaim")
CLASSES = unstructured(CDI, "resourceclasses", "ResourceClass", namespaced=False)
SECONDS_MAX = 120.0
NOW = DeleteOptions(grace_period_seconds=0)
# The killed driver's Lease is waited for.
ELECTION = (
    "--leader-elect-lease-duration=6s",
    "--leader-elect-renew-deadline=5s",
    "--leader-elect-retry-period=500ms",
)


@contextmanager
def driver(server: Server, hardware: Path) -> Iterator[subprocess.Popen[str]]:
    program = Path(__file__).parent / "board_driver.py"
    command = [sys.executable, str(program), str(hardware), f"--kubeconfig={server.kubeconfig}", *ELECTION]
    with (server.data_dir / "driver.log").open("ab") as log:
        process = ForkedPopen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def pod(name: str) -> Document:
    entry = {"name": "board", "template": {"spec": {"resourceClassName": "board", "parameters": {"memory": "2Gi"}}}}
    container = {"name": "c", "image": "i", "resources": {"claims": ["board"]}}
    # The nodes are objects only, without heartbeats.
    spec = {"containers": [container], "resourceClaims": [entry], "tolerations": [{"operator": "Exists"}]}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


async def until(read: Any, good: Any) -> Any:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SECONDS_MAX
    while True:
        found = await read()
        if good(found):
            return found
        assert loop.time() < deadline, f"still {found}"
        await asyncio.sleep(0.1)


def _held(hardware: Path) -> Document:
    found: Document = json.loads(hardware.read_text())
    return found


async def _claims(client: Client) -> list[Document]:
    return list((await client.list(CLAIMS, "default")).items)


async def _story(client: Client, server: Server, hardware: Path) -> None:
    await client.create(CLASSES, {"metadata": {"name": "board"}, "driverName": "board.example.com"})
    amounts = {"cpu": "8", "memory": "8Gi", "pods": "110"}
    for name in ("node-1", "node-2"):
        await client.create(
            NODES, {"metadata": {"name": name}, "status": {"allocatable": amounts, "capacity": amounts}}
        )

    async def bound(name: str) -> str:
        found = await until(lambda: client.get(PODS, name, "default"), lambda item: item["spec"].get("nodeName"))
        return str(found["spec"]["nodeName"])

    with driver(server, hardware) as first:
        await client.create(PODS, pod("one"))
        await bound("one")
        first.kill()
        first.wait(10)
    await client.create(PODS, pod("two"))
    await client.delete(PODS, "one", "default", NOW)
    # Its Lease has to run out, since it could not be given back.
    with driver(server, hardware):
        await bound("two")
        [claim] = await until(lambda: _claims(client), lambda items: len(items) == 1)
        assert claim["metadata"]["name"] == "two-board"
        assert claim["status"]["attributes"]["memory"] == "2Gi"
        assert _held(hardware) == {claim["metadata"]["uid"]: claim["status"]["attributes"]["node"]}
        await client.delete(PODS, "two", "default", NOW)
        await until(lambda: _claims(client), lambda items: not items)
    assert _held(hardware) == {}
    assert "started with ['default/one-board']" in (server.data_dir / "driver.log").read_text()


@pytest.mark.behaviour("CL-19", "CL-24", "CL-30", "CL-32")
def test_a_driver_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        client = http_client(load_access({}, path=str(server.kubeconfig)), SystemClock())
        try:
            await _story(client, server, tmp_path / "hardware.json")
        finally:
            await client.close()

    with running_server(tmp_path / "state") as server:
        asyncio.run(main(server))
