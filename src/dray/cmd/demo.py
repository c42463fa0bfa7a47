"""`dray demo`: starts a server, applies the quickstart story step by step, and shows what each step did.

The server runs as a process of its own; `--keep` leaves it running so that kubectl can be tried on it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import yaml

from dray.api.document import Document, GroupVersion
from dray.api.errors import AlreadyExistsError, InvalidError
from dray.client.files import load_access
from dray.client.http import http_client
from dray.client.interface import Client, Resource, WatchEvent, WatchOptions, unstructured
from dray.cmd.settings import DemoSettings
from dray.runtime.clock import SystemClock
from dray.runtime.logs import wants_colour

_READY_SECONDS_MAX: Final = 30.0
_ALLOCATION_SECONDS_MAX: Final = 20
_EXAMPLES: Final = Path(__file__).resolve().parents[3] / "examples" / "quickstart"
_RESOURCES: Final[dict[str, Resource[Document]]] = {
    "DeviceClass": unstructured(
        GroupVersion("resource.k8s.io", "v1"), "deviceclasses", "DeviceClass", namespaced=False
    ),
    "ResourceSlice": unstructured(
        GroupVersion("resource.k8s.io", "v1"), "resourceslices", "ResourceSlice", namespaced=False
    ),
    "ResourceClaim": unstructured(GroupVersion("resource.k8s.io", "v1"), "resourceclaims", "ResourceClaim"),
    "Node": unstructured(GroupVersion("", "v1"), "nodes", "Node", namespaced=False),
    "Pod": unstructured(GroupVersion("", "v1"), "pods", "Pod"),
}


@dataclass(slots=True)
class Screen:
    """Writes for people: headings, rows, and colours where they are wanted."""

    colour: bool

    def heading(self, text: str) -> None:
        """A step of the story."""
        self.line(f"\n{self._paint('1;36', '==>')} {self._paint('1', text)}")

    def done(self, text: str) -> None:
        """Something that worked."""
        self.line(f"    {self._paint('32', 'ok')}  {text}")

    def rows(self, rows: Sequence[Sequence[str]]) -> None:
        """A table; the first row is its header."""
        widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
        for number, row in enumerate(rows):
            text = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            self.line("    " + (self._paint("2", text) if number == 0 else text))

    def line(self, text: str) -> None:
        """One line."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def _paint(self, code: str, text: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.colour else text


async def run(settings: DemoSettings, _stop: asyncio.Event) -> None:
    """Tell the story; ends when it is told."""
    screen = Screen(wants_colour(sys.stdout, os.environ))
    data_dir = _resolved(settings.data_dir)
    started = time.monotonic()
    pid, url = _ensure_server(data_dir, settings.port)
    screen.heading("An API server that kubectl can talk to")
    screen.done(f"{url} is ready after {time.monotonic() - started:.1f} s (pid {pid}, state in {data_dir})")
    access = load_access(os.environ, path=str(data_dir / "kubeconfig"))
    client = http_client(access, SystemClock(), user_agent="dray-demo")
    try:
        await _story(client, screen)
    finally:
        await client.close()
        if not settings.keep:
            _stop_server(data_dir, pid)
    _farewell(screen, data_dir, pid, keep=settings.keep)


async def _story(client: Client, screen: Screen) -> None:
    screen.heading("Devices: a class, and what the drivers of two nodes publish")
    await _apply(client, screen, "nodes.yaml")
    await _apply(client, screen, "devices.yaml")
    screen.rows(await _device_rows(client))
    screen.heading("A claim with alternatives, and a Pod that uses it")
    await _apply(client, screen, "claim.yaml")
    await _show_allocation(client, screen)
    screen.heading("The same claim, written in v1 and read in v1beta1")
    old = unstructured(GroupVersion("resource.k8s.io", "v1beta1"), "resourceclaims", "ResourceClaim")
    claim = await client.get(old, "training", "default")
    names = [item["name"] for item in claim["spec"]["devices"]["requests"][0]["firstAvailable"]]
    screen.done(f"{claim['apiVersion']}: request gpu, alternatives {', '.join(names)}")
    screen.heading("A mistake is refused, with the place and the reason")
    await _show_refusal(client, screen)


async def _apply(client: Client, screen: Screen, file: str) -> None:
    text = await asyncio.to_thread((_EXAMPLES / file).read_text, "utf-8")
    for document in yaml.safe_load_all(text):
        resource = _RESOURCES[document["kind"]]
        place = "default" if resource.namespaced else ""
        name = f"{resource.kind.lower()}/{document['metadata']['name']}"
        try:
            await client.create(resource, document, place)
            screen.done(f"{name} created")
        except AlreadyExistsError:
            screen.done(f"{name} is there already")


async def _device_rows(client: Client) -> list[list[str]]:
    rows = [["NODE", "DEVICE", "MODEL", "MEMORY"]]
    page = await client.list(_RESOURCES["ResourceSlice"])
    for item in page.items:
        for device in item["spec"].get("devices", ()):
            model = device["attributes"]["model"]["string"]
            rows.append([item["spec"]["nodeName"], device["name"], model, device["capacity"]["memory"]["value"]])
    return rows


async def _show_allocation(client: Client, screen: Screen) -> None:
    """Wait for the scheduler's choice and show it."""
    selected = WatchOptions(field_selector="metadata.name=training", timeout_seconds=_ALLOCATION_SECONDS_MAX)
    async with aclosing(cast("Any", client.watch(_RESOURCES["ResourceClaim"], "default", selected))) as events:
        async for event in events:
            if not isinstance(event, WatchEvent):
                continue
            allocation = (event.object.get("status") or {}).get("allocation")
            if allocation:
                for item in allocation["devices"]["results"]:
                    screen.done(f"request {item['request']} got {item['device']} of {item['pool']}")
                return
    screen.line(
        f"    the claim was not allocated within {_ALLOCATION_SECONDS_MAX} s; kubectl describe pod trainer says why"
    )


async def _show_refusal(client: Client, screen: Screen) -> None:
    wrong = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "mistaken"},
        "spec": {"devices": {"requests": [{"name": "GPU", "exactly": {"deviceClassName": "gpu.example.com"}}]}},
    }
    try:
        await client.create(_RESOURCES["ResourceClaim"], wrong, "default")
    except InvalidError as error:
        for cause in (error.details or {}).get("causes", ()):
            screen.line(f"    {cause['field']}: {cause['message']}")


def _farewell(screen: Screen, data_dir: Path, pid: int, *, keep: bool) -> None:
    if not keep:
        screen.heading("Done; the server is stopped again. To keep one: dray up")
        return
    screen.heading("The server goes on running. Try:")
    screen.line(f"    export KUBECONFIG={data_dir / 'kubeconfig'}")
    screen.line("    kubectl get pods,resourceclaims,resourceslices -o wide")
    screen.line("    kubectl explain resourceclaim.spec.devices.requests")
    screen.line(f"\n    stop it with: kill {pid}")


def _resolved(directory: str) -> Path:
    return Path(directory).resolve()


def _ensure_server(data_dir: Path, port: int) -> tuple[int, str]:
    """The demo's server: the one that is running, or a new one."""
    found = _running(data_dir)
    if found is not None:
        return found
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = data_dir / "log.txt"
    command = (sys.executable, "-m", "dray", "up", f"--data-dir={data_dir}", f"--port={port}")
    with log.open("a") as output:
        # A session of its own, so that it outlives this command and its terminal.
        process = subprocess.Popen(  # noqa: S603 - our own command
            command, stdout=subprocess.PIPE, stderr=output, text=True, start_new_session=True
        )
    url = _wait_ready(process, log)
    (data_dir / "server.pid").write_text(f"{process.pid} {url}\n")
    return process.pid, url


def _wait_ready(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    deadline = time.monotonic() + _READY_SECONDS_MAX
    for line in process.stdout:
        if line.startswith("ready "):
            return line.split()[1]
        if time.monotonic() > deadline:
            break
    process.kill()
    raise RuntimeError(f"the server did not become ready; its log is {log}:\n{log.read_text()[-2000:]}")


def _running(data_dir: Path) -> tuple[int, str] | None:
    try:
        number, url = (data_dir / "server.pid").read_text().split()
        command = Path(f"/proc/{number}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return (int(number), url) if str(data_dir).encode() in command else None


def _stop_server(data_dir: Path, pid: int) -> None:
    (data_dir / "server.pid").unlink(missing_ok=True)
    os.kill(pid, signal.SIGTERM)
