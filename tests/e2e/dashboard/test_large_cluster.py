"""The dashboard with a thousand nodes and eight thousand devices."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import expect

from dray.api.document import Document, GroupVersion
from dray.client.credentials import load_access
from dray.client.http import http_client
from dray.client.interface import unstructured
from dray.runtime.system import SystemClock
from tests.e2e.dashboard.conftest import MILLISECONDS_MAX, Open
from tests.e2e.kubectl.tool import Kubectl
from tests.servers import Server, running_server
from tests.unit.sim.cluster import GPU, device, node, resource_slice, taint_rule

expect.set_options(timeout=MILLISECONDS_MAX)
NODES = 1000
DEVICES = 8
WRITERS = 32
NODE_OBJECTS = unstructured(GroupVersion("", "v1"), "nodes", "Node", namespaced=False)
SLICES = unstructured(GroupVersion("resource.k8s.io", "v1"), "resourceslices", "ResourceSlice", namespaced=False)
RULES = unstructured(GroupVersion("resource.k8s.io", "v1"), "devicetaintrules", "DeviceTaintRule", namespaced=False)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Only the API server: the test needs no other component."""
    data_dir = tmp_path_factory.mktemp("large")
    # The nodes are ready as they are created, and nobody removes a taint.
    admission = "--disable-admission-plugins=TaintNodesByCondition"
    flags = ("--store=memory", f"--token-auth-file={data_dir / 'tokens.csv'}", admission)
    with running_server(data_dir, *flags, command="apiserver") as running:
        # In a thread of its own: this one may have the browser's event loop already.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, populate(running)).result()
        yield running


def sliced(name: str) -> Document:
    return resource_slice(name, GPU, *(device(f"gpu-{number}") for number in range(DEVICES)), nodeName=name)


async def populate(server: Server) -> None:
    client = http_client(load_access(os.environ, path=str(server.kubeconfig)), SystemClock())
    waiting = [(NODE_OBJECTS, node(f"node-{number}")) for number in range(NODES)]
    waiting += [(SLICES, sliced(f"node-{number}")) for number in range(NODES)]

    async def write() -> None:
        while waiting:
            await client.create(*waiting.pop())

    try:
        await asyncio.gather(*(write() for _ in range(WRITERS)))
    finally:
        await client.close()


def test_a_large_cluster_is_shown_and_updated_quickly(
    large: Server, open_page: Open, record_property: Callable[[str, object], None]
) -> None:
    started = time.monotonic()
    page = open_page(f"{large.url}/ui/#token=admin-token")
    expect(page.locator(".stats")).to_contain_text(f"of {NODES * DEVICES:,} physical devices")
    expect(page.get_by_role("img", name=f"{NODES:,} nodes, {NODES * DEVICES:,} devices")).to_be_visible()
    shown = time.monotonic() - started
    started = time.monotonic()
    rule = taint_rule("hot", driver=GPU, pool="node-500", device="gpu-0")
    Kubectl(large.environment, "default")("apply", "-f", "-", stdin=json.dumps(rule))
    expect(page.locator(".stats .warn b")).to_have_text("1")
    followed = time.monotonic() - started
    # All nodes are in the list, of which the document has only those in sight.
    page.goto(f"{large.url}/ui/#/nodes")
    expect(page.get_by_text(f"{NODES:,} nodes", exact=True)).to_be_visible()
    assert page.locator("table.rows tbody tr").count() < 100
    page.get_by_role("link", name="node-0", exact=True).focus()
    page.keyboard.press("End")
    expect(page.get_by_role("link", name=f"node-{NODES - 1}", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text(f"node-{NODES - 1}")
    cluster = f"{NODES} nodes and {NODES * DEVICES} devices"
    record_property("summary", f"dashboard of {cluster}: shown in {shown:.1f} s, a change in {followed:.1f} s")
