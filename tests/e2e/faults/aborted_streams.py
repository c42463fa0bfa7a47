"""`python -m tests.e2e.faults.aborted_streams`: a user aborts streams at random moments; counts what they leave behind.

The short form is `test_aborted_streams.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import math
import os
import random
import ssl
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from dray.api.document import GroupVersion
from dray.client.interface import unstructured
from dray.cmd.containers import end_containers
from dray.runtime.http.spdy import SpdyConnection
from dray.runtime.http.urls import parse_url
from dray.runtime.http.websocket import Opcode, encode
from tests.e2e.node.harness import Cluster, client_of, is_running, shell
from tests.servers import Server, running_server

POD = "victim"
TOKEN = "alice-token"
# A number of seconds that no other command on this machine sleeps for.
MARK = f"{100_000_000 + os.getpid()}"
COMMANDS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("sleep", MARK), ("stdout",)),
    (("sh", "-c", f"sleep {MARK} | cat"), ("stdout", "stderr")),
    (("sh", "-c", f"cat; : {MARK}"), ("stdin", "stdout")),
    (("sh", "-c", f"yes; : {MARK}"), ("stdout",)),
    (("sh", "-c", f"trap '' HUP TERM; while sleep 1; do :; done; : {MARK}"), ("stdin", "stdout", "tty")),
    (("sh", "-c", f"sleep {MARK}"), ("stderr", "stdin", "stdout")),
)
# From before the request has arrived to long after the command has started.
ABORT_SECONDS = 0.001, 2.0
AT_ONCE = 8
SPDY = "Connection: Upgrade", "Upgrade: SPDY/3.1", "Content-Length: 0"
VERSION = "X-Stream-Protocol-Version"
LOOK_SECONDS = 0.1
SETTLE_SECONDS_MAX = 120.0
ROLE_BINDINGS = unstructured(GroupVersion("rbac.authorization.k8s.io", "v1"), "rolebindings", "RoleBinding")


@dataclass(frozen=True, slots=True)
class Left:
    """What a process holds."""

    descriptors: int
    commands: int


def left_by(pid: int) -> Left:
    """Count the open descriptors of a process, and the commands of aborted streams on this machine."""
    return Left(len(os.listdir(f"/proc/{pid}/fd")), sum(MARK in text for text in command_lines()))


def command_lines() -> list[str]:
    """Return the command lines of all processes, without those of this program and zombies."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):
                found.append(Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


class Aborter:
    """A user with the role `edit` who starts streams and never ends them."""

    def __init__(self, server: Server, rng: random.Random) -> None:
        origin = parse_url(server.url).origin
        self._place = origin.host, origin.port
        self._tls = ssl.create_default_context(cafile=str(server.data_dir / "pki" / "ca.crt"))
        self._rng = rng
        # What the server said last before each abort.
        self.answers: Counter[str] = Counter()

    async def abort(self, count: int) -> None:
        """Abort so many streams, some at the same time."""
        queue = iter(range(count))

        async def work() -> None:
            for _ in queue:
                await self.abort_one()

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))

    async def abort_one(self) -> None:
        """Start one stream, and abort it at a random moment: by a reset, or without waiting for an answer."""
        reader, writer = await asyncio.open_connection(*self._place, ssl=self._tls)
        head = b""
        try:
            async with asyncio.timeout(math.exp(self._rng.uniform(*map(math.log, ABORT_SECONDS)))):
                writer.write(self.request())
                head = await reader.readline()
                # Output that is not read stops the server's writing.
                await asyncio.Event().wait()
        except (TimeoutError, ConnectionError):
            pass
        finally:
            self.answers[head.decode().split(" ", 2)[1] if head else "nothing yet"] += 1
            if self._rng.random() < 0.5:
                writer.transport.abort()
            else:
                writer.close()

    def request(self) -> bytes:
        """Return a request for a stream, most often for exec, with the first frames of one of the protocols."""
        own = [f"Host: {self._place[0]}", f"Authorization: Bearer {TOKEN}"]
        command, streams = self._rng.choice(COMMANDS)
        target = f"/api/v1/namespaces/default/pods/{POD}"
        match self._rng.choices(("exec", "attach", "portforward", "log"), (7, 1, 1, 1))[0]:
            case "log":
                return head_of(self._rng.choice(("GET", "HEAD")), f"{target}/log?follow=true", own)
            case "portforward":
                return head_of("POST", f"{target}/portforward", [*own, *SPDY, f"{VERSION}: portforward.k8s.io"])
            case subresource:
                words = command if subresource == "exec" else ()
                query = urlencode([*(("command", word) for word in words), *((name, "1") for name in streams)])
                return self._command(f"{target}/{subresource}?{query}", streams, own)

    def _command(self, target: str, streams: tuple[str, ...], own: list[str]) -> bytes:
        if self._rng.random() < 0.5:
            own += ["Connection: Upgrade"]
            key = base64.b64encode(self._rng.randbytes(16)).decode()
            own += ["Upgrade: websocket", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}"]
            own.append("Sec-WebSocket-Protocol: v5.channel.k8s.io")
            return head_of("GET", target, own) + encode(Opcode.BINARY, b"\0input\n", b"mask")
        spdy = SpdyConnection(is_client=True)
        names = ["error", *(name for name in streams if name != "tty"), *(["resize"] if "tty" in streams else [])]
        # Sometimes not all of them.
        frames = b"".join(spdy.open_stream({"streamtype": name})[1] for name in names[: self._rng.randint(0, 9)])
        return head_of("POST", target, [*own, *SPDY, f"{VERSION}: v4.channel.k8s.io"]) + frames


def head_of(method: str, target: str, headers: list[str]) -> bytes:
    """Return the head of a request."""
    return "\r\n".join((f"{method} {target} HTTP/1.1", *headers, "", "")).encode()


async def settled(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, or for long enough that it never will."""
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while not condition() and time.monotonic() < deadline:  # noqa: ASYNC110 - other processes set no event
        await asyncio.sleep(LOOK_SECONDS)


@asynccontextmanager
async def victim(folder: Path, *flags: str) -> AsyncIterator[Server]:
    """A `dray up` with a node and a Pod in whose container commands run."""
    root = folder / "r"
    own = ("--node", "--node-runtime=process", f"--node-root-dir={root}", "--store=memory", *flags)
    try:
        with running_server(folder, *own) as server:
            client = client_of(server)
            role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
            subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}
            binding: dict[str, Any] = {"metadata": {"name": "edit"}, "roleRef": role, "subjects": [subject]}
            await client.create(ROLE_BINDINGS, binding, "default")
            cluster = Cluster(client, "", "default")
            await cluster.run(POD, shell("a", "sleep 1000"), nodeName=None)
            await cluster.wait(POD, is_running())
            yield server
            await client.close()
    finally:
        await end_containers(root, grace_seconds=0)


async def measure(count: int, seed: int) -> tuple[Left, Left, Counter[str]]:
    """Return what there was before and after so many aborts, and how far the streams came."""
    with tempfile.TemporaryDirectory(prefix="d") as folder:
        async with victim(Path(folder)) as server:
            aborter = Aborter(server, random.Random(seed))
            # What is opened once, and kept.
            await aborter.abort(AT_ONCE)
            pid = server.process.pid
            await settled(lambda: left_by(pid).commands == 0)
            before = left_by(pid)
            aborter.answers.clear()
            await aborter.abort(count)
            await settled(lambda: left_by(pid).descriptors <= before.descriptors and not left_by(pid).commands)
            assert server.process.poll() is None, server.log.read_text()[-2000:]
            return before, left_by(pid), aborter.answers


def main() -> int:
    """Print the figures, and fail if something is left."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.faults.aborted_streams", description=__doc__)
    parser.add_argument("--aborts", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    started = time.monotonic()
    before, after, answers = asyncio.run(measure(options.aborts, options.seed))
    print(f"{options.aborts} aborts in {time.monotonic() - started:.0f} s, with these answers: {dict(answers)}")
    print(f"before: {before}\nafter:  {after}")
    return 1 if after.commands or after.descriptors > before.descriptors else 0


if __name__ == "__main__":
    sys.exit(main())
