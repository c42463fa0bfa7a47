"""A real Chromium, a real server and `dray ui` in front of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.e2e.kubectl.tool import Kubectl
from tests.fork_server import ForkedPopen
from tests.servers import READY_SECONDS_MAX, Server, running_server
from tests.unit.sim.cluster import (
    GPU,
    device,
    device_class,
    exactly,
    resource_slice,
    taint_rule,
    template,
    waiting_pod,
)

MILLISECONDS_MAX = 30_000
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]

Open = Callable[..., Page]


# Not for the whole session: its event loop would be in the way of other tests'.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    with sync_playwright() as tool:
        running = tool.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with two simulated nodes."""
    data_dir = tmp_path_factory.mktemp("server")
    flags = ("--nodes=2", f"--token-auth-file={data_dir / 'tokens.csv'}")
    with running_server(data_dir, *flags) as running:
        yield running


@pytest.fixture(scope="module")
def kubectl(server: Server) -> Kubectl:
    tool = Kubectl(server.environment, "team")
    tool("create", "namespace", "team")
    objects = [
        device_class("gpu", f'device.driver == "{GPU}"'),
        device_class("a100", f"device.attributes['{GPU}'].model == 'a100'"),
        resource_slice("sim-0", GPU, device("gpu-0"), device("gpu-1"), device("gpu-2"), nodeName="sim-0"),
        resource_slice("sim-1", GPU, device("t4-0", attributes={"model": {"string": "t4"}}), nodeName="sim-1"),
        taint_rule("rule", driver=GPU, pool="sim-0", device="gpu-2"),
        template("one", exactly(1, f"device.attributes['{GPU}'].model == 'a100'")),
        template("many", exactly(5)),
        quota("gpus", "team", {"gpu.deviceclass.resource.k8s.io/devices": "100"}),
        waiting_pod("worker", "one"),
        waiting_pod("hungry", "many"),
    ]
    apply(tool, *objects)
    tool("wait", "--for=condition=PodScheduled", "pod/worker", "--timeout=30s")
    tool("wait", "--for=condition=PodScheduled=False", "pod/hungry", "--timeout=30s")
    return tool


def quota(name: str, namespace: str, hard: dict[str, str]) -> dict[str, object]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}


def apply(kubectl: Kubectl, *objects: dict[str, object]) -> None:
    for item in objects:
        metadata = item["metadata"]
        assert isinstance(metadata, dict)
        metadata.pop("uid", None)
    kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))


@pytest.fixture(scope="module")
def address(server: Server, kubectl: Kubectl) -> Iterator[str]:
    """The URL of `dray ui`."""
    command = [sys.executable, "-m", "dray", "ui", "--port=0", f"--kubeconfig={server.kubeconfig}"]
    with ForkedPopen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            word, url = process.stdout.readline().split()
            assert word == "ready"
            yield url
        finally:
            process.terminate()
            process.wait(READY_SECONDS_MAX)


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Open a URL in a new profile; errors of the page fail the test."""
    contexts = []
    complaints: list[str] = []

    def opened(url: str, *, width: int = 1280, height: int = 900, **options: object) -> Page:
        context = browser.new_context(
            ignore_https_errors=True,
            viewport={"width": width, "height": height},
            **options,  # type: ignore[arg-type]
        )
        context.set_default_timeout(MILLISECONDS_MAX)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    return tmp_path
