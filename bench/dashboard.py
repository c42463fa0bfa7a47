"""Benchmark of the dashboard in Chromium: the first picture, a change, and the browser's memory."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.processes import resident_megabytes, serving
from bench.rows import Row, Target, progress
from bench.sample_cluster import CARDS, GPU, SLICES, fill
from dray.api.document import Document
from dray.client.credentials import load_access
from dray.client.http import http_client
from dray.runtime.system import SystemClock
from tests.servers import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
REPETITIONS = 5
MILLISECONDS_MAX = 60_000
# Runs in the page: the texts of the numbers above the picture, each with the time when it came, in milliseconds. Asking
# for them from outside would find a text up to a second late.
OBSERVE = """
window.texts = [];
new MutationObserver(() => {
  const text = document.querySelector(".stats")?.textContent;
  if (text && text !== window.texts.at(-1)?.[1]) window.texts.push([performance.timeOrigin + performance.now(), text]);
}).observe(document, { childList: true, subtree: true, characterData: true });
"""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the benchmark."""

    nodes: int = 2_000


FULL = Size()
QUICK = Size(nodes=200)


def rows(size: Size) -> Iterator[Row]:
    """Measure the page of a large cluster."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        progress("no Chromium here")
        return
    with serving("--store=memory", command="apiserver") as server:
        progress(f"creating {size.nodes} nodes")
        fill(server, size.nodes)
        with sync_playwright() as tool:
            browser = tool.chromium.launch(executable_path=chromium, args=FLAGS)
            yield from _measured(server, browser, size)
            browser.close()
    with serving("--store=memory", command="apiserver") as server:
        progress(f"creating {size.nodes} nodes whose devices have UUIDs")
        fill(server, size.nodes, uuids=True)
        with sync_playwright() as tool:
            browser = tool.chromium.launch(executable_path=chromium, args=FLAGS)
            _, cold = _first_picture(server, browser, size)
            yield Row("dashboard: first picture, cold, with states and UUIDs", cold.states, "s", _parameters(size))
            browser.close()


def _measured(server: Server, browser: Browser, size: Size) -> Iterator[Row]:
    parameters = _parameters(size)
    # Nothing has been read for the first reader; the others share what was.
    page, cold = _first_picture(server, browser, size)
    yield Row("dashboard: first picture, cold", cold.devices, "s", parameters, Target(1.5))
    yield Row("dashboard: first picture, cold, with states", cold.states, "s", parameters, Target(1.5))
    shown = []
    for _ in range(REPETITIONS):
        page.context.close()
        page, warm = _first_picture(server, browser, size)
        shown.append(warm.states)
    yield Row("dashboard: first picture", sorted(shown)[len(shown) // 2], "s", parameters, Target(1.5))
    yield Row("dashboard: first picture, slowest", max(shown), "s", parameters)
    changes = [_change(server, page, size, number) for number in range(REPETITIONS)]
    yield Row("dashboard: a change", sorted(changes)[len(changes) // 2], "s", parameters, Target(0.3))
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    heap = session.send("Runtime.getHeapUsage")["usedSize"]
    yield Row("dashboard: JavaScript heap", heap / 2**20, "MB", parameters, Target(150))
    yield Row("dashboard: renderer process", max(_renderers()), "MB", parameters)
    yield Row("dashboard: server", resident_megabytes(server.process.pid), "MB", parameters)


def _parameters(size: Size) -> dict[str, int]:
    return {"nodes": size.nodes, "devices": size.nodes * CARDS}


@dataclass(frozen=True, slots=True)
class Shown:
    """Seconds until the page showed all devices, and what is in use."""

    devices: float
    states: float


def _first_picture(server: Server, browser: Browser, size: Size) -> tuple[Page, Shown]:
    """Open the page in a new profile and wait until it shows all devices with their states."""
    context = browser.new_context(ignore_https_errors=True, viewport={"width": 1360, "height": 900})
    context.set_default_timeout(MILLISECONDS_MAX)
    context.add_init_script(OBSERVE)
    page = context.new_page()
    started = time.time()
    page.goto(f"{server.url}/ui/#token=admin-token", wait_until="commit")
    count = f"of {size.nodes * CARDS:,} physical devices"
    devices = _seconds_until(page, started, re.compile(count))
    return page, Shown(devices, _seconds_until(page, started, re.compile(rf"^\d.*{count}")))


def _seconds_until(page: Page, started: float, text: re.Pattern[str]) -> float:
    """Wait until the numbers above the picture have a text, and return the seconds until they had."""
    from playwright.sync_api import expect

    expect(page.locator(".stats")).to_contain_text(text, timeout=MILLISECONDS_MAX)
    found: float = next(at for at, shown in page.evaluate("window.texts") if text.search(shown))
    return found / 1000 - started


def _change(server: Server, page: Page, size: Size, number: int) -> float:
    """Publish one more device and wait until the page counts it; from the moment that the API has answered."""
    name = f"more-{number}"
    spec = {
        "driver": GPU,
        "nodeName": "node-0000",
        "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0"}],
    }
    created = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}
    # In a thread of its own: this one has the event loop of the browser.
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(asyncio.run, _create(server, created)).result()
    return _seconds_until(page, started, re.compile(f"of {size.nodes * CARDS + number + 1:,} physical devices"))


async def _create(server: Server, resource_slice: Document) -> float:
    """Create a slice, and return when the API answered."""
    client = http_client(load_access(os.environ, path=str(server.kubeconfig)), SystemClock())
    try:
        await client.create(SLICES, resource_slice)
        return time.time()
    finally:
        await client.close()


def _renderers() -> Iterator[float]:
    """Yield the proportional memory of the renderers that this process has started, in MB."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if "--type=renderer" in (process / "cmdline").read_text() and _is_descendant(int(process.name)):
                text = (process / "smaps_rollup").read_text()
                yield int(re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)[1]) / 1024  # type: ignore[index]
        except OSError:
            continue


def _is_descendant(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False
