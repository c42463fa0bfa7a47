"""A node agent as a real process, and Pods in a few words."""

from __future__ import annotations

import asyncio
import functools
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dray.api.document import Document, GroupVersion
from dray.api.errors import NotFoundError
from dray.client.credentials import load_access
from dray.client.http import http_client
from dray.client.interface import Client, DeleteOptions, ListOptions, unstructured
from dray.runtime.system import SystemClock
from tests.fork_server import ForkedPopen
from tests.servers import Server

PODS = unstructured(GroupVersion("", "v1"), "pods", "Pod")
EVENTS = unstructured(GroupVersion("", "v1"), "events", "Event")
NODES = unstructured(GroupVersion("", "v1"), "nodes", "Node", namespaced=False)
READY_SECONDS_MAX = 120.0
POD_SECONDS_MAX = 120.0
LOOK_SECONDS = 0.03
PROGRAMS = (
    *("sh", "echo", "sleep", "cat", "ls", "env", "id", "hostname", "true", "false", "touch", "mkdir", "head", "httpd"),
    *("kill", "test", "dd", "printenv", "grep", "stat", "tr", "mount", "umount", "tar", "stty", "tee", "nc", "wc"),
    *("unshare", "tail", "nslookup"),
)


@dataclass(slots=True)
class Agent:
    """`dray node` on this machine; its containers outlive it unless `clean` is called."""

    server: Server
    root: Path
    name: str
    flags: tuple[str, ...] = ()
    process: subprocess.Popen[str] | None = None
    # What runs it; another program may run it in a way of its own.
    program: tuple[str, ...] = ("-m", "dray", "node")

    @property
    def log(self) -> Path:
        return self.root / "agent.log"

    def start(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        arguments = (
            sys.executable,
            *self.program,
            f"--data-dir={self.server.data_dir}",
            f"--root-dir={self.root}",
            f"--hostname-override={self.name}",
            f"--cdi-spec-dirs={self.root}/cdi",
            "--port=0",
            "--healthz-port=0",
            "--container-restart-backoff=300ms",
            *self.flags,
        )
        with self.log.open("a") as errors:
            self.process = ForkedPopen(arguments, stdout=subprocess.PIPE, stderr=errors)
        self._wait_ready()

    def _wait_ready(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline and self.process.poll() is None:
            readable, _, _ = select.select([self.process.stdout], [], [], 0.1)
            if readable and self.process.stdout.readline().startswith("ready"):
                return
        self.kill()
        raise AssertionError(f"the agent did not become ready:\n{self.log.read_text()}")

    def kill(self) -> None:
        """As a power cut of the agent alone would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def shims(self) -> list[int]:
        """The processes that stay with containers of this agent."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    text = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if b"shim/program.py" in text and str(self.root).encode() in text:
                    found.append(int(entry.name))
        return found


@functools.cache
def busybox_root(folder: Path) -> Path:
    """A root file system with nothing but busybox."""
    root = folder / "busybox"
    for name in ("bin", "etc", "tmp", "proc", "sys", "dev", "var"):
        (root / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(shutil.which("busybox") or "busybox", root / "bin" / "busybox")
    for name in PROGRAMS:
        (root / "bin" / name).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")
    return root


def client_of(server: Server) -> Client:
    return http_client(load_access({}, path=str(server.kubeconfig)), SystemClock())


def shell(name: str, script: str, **fields: Any) -> Document:
    # The image is there, and no registry has it.
    own = {"image": "busybox", "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", script]}
    return {"name": name, **own, **fields}


class Cluster:
    """Pods of one test on one node."""

    def __init__(self, client: Client, node: str, namespace: str) -> None:
        self.client = client
        self.node = node
        self.namespace = namespace

    async def run(self, name: str, *containers: Document, **spec: Any) -> Document:
        """Create a Pod on the node."""
        body: Document = {
            "metadata": {"name": name, **spec.pop("metadata", {})},
            "spec": {
                "nodeName": self.node,
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": False,
                "containers": list(containers),
                **spec,
            },
        }
        return await self.client.create(PODS, body, self.namespace)

    async def wait(self, name: str, condition: Callable[[Document], object]) -> Document:
        """The Pod as soon as the condition holds."""
        pod: Document = {}
        deadline = time.monotonic() + POD_SECONDS_MAX
        while time.monotonic() < deadline:
            pod = await self.client.get(PODS, name, self.namespace)
            if condition(pod):
                return pod
            await asyncio.sleep(LOOK_SECONDS)
        raise AssertionError(f"pod {name} did not come that far: {pod.get('status')}")

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for something on this machine."""
        deadline = time.monotonic() + POD_SECONDS_MAX
        while not condition():
            assert time.monotonic() < deadline
            await asyncio.sleep(LOOK_SECONDS)

    async def phase(self, name: str, *phases: str) -> Document:
        return await self.wait(name, lambda pod: pod.get("status", {}).get("phase") in phases)

    async def delete(self, name: str, grace_seconds: int | None = None) -> None:
        await self.client.delete(PODS, name, self.namespace, DeleteOptions(grace_period_seconds=grace_seconds))

    async def gone(self, name: str) -> None:
        """Wait until the API server no longer has the Pod."""
        deadline = time.monotonic() + POD_SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                await self.client.get(PODS, name, self.namespace)
            except NotFoundError:
                return
            await asyncio.sleep(LOOK_SECONDS)
        raise AssertionError(f"pod {name} is still there")

    async def event(self, name: str, reason: str) -> Document:
        """Wait for an event about a Pod."""
        return await self.wait_event(name, lambda event: event["reason"] == reason)

    async def wait_event(self, name: str, condition: Callable[[Document], object]) -> Document:
        """Wait for an event about a Pod that meets a condition."""
        options = ListOptions(field_selector=f"involvedObject.name={name}")
        deadline = time.monotonic() + POD_SECONDS_MAX
        items: list[Document] = []
        while time.monotonic() < deadline:
            items = list((await self.client.list(EVENTS, self.namespace, options)).items)
            found = next(filter(condition, items), None)
            if found is not None:
                return found
            await asyncio.sleep(LOOK_SECONDS)
        raise AssertionError(f"no such event of pod {name}: {[(item['reason'], item['message']) for item in items]}")


def container_status(pod: Document, name: str = "a") -> Document:
    status = pod.get("status", {})
    every = [*status.get("containerStatuses", []), *status.get("initContainerStatuses", [])]
    return next((item for item in every if item["name"] == name), {})


def terminated(pod: Document, name: str = "a") -> Document:
    found: Document = container_status(pod, name).get("state", {}).get("terminated", {})
    return found


def is_running(name: str = "a") -> Callable[[Document], bool]:
    return lambda pod: "running" in container_status(pod, name).get("state", {})


def is_waiting(reason: str, name: str = "a") -> Callable[[Document], bool]:
    return lambda pod: container_status(pod, name).get("state", {}).get("waiting", {}).get("reason") == reason


def is_ready(pod: Document) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
