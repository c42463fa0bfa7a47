"""The load generator: raw HTTP/1.1 over TLS with prepared requests, run as a separate process.

It shares the cores with the server under test, so it does as little work as possible: no HTTP library, no JSON.
Responses are parsed by status line and Content-Length, resource versions by a text search.
`python -m bench.load` reads a plan as JSON from stdin and writes the measurements as JSON to stdout.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import ssl
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import uvloop
import yaml

VERSION = b'"resourceVersion":"'
FILLER = "x" * 200
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of the server, and the TLS context."""

    host: str
    port: int
    tls: ssl.SSLContext


class Connection(asyncio.Protocol):
    """A connection with one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._data = bytearray()
        self._waiter: asyncio.Future[bytes] | None = None
        self._needed = 0
        self.on_stream: Callable[[bytes], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Fail the pending request."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ConnectionError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        """Complete the pending request, or forward a chunk of a stream."""
        if self.on_stream is not None:
            self.on_stream(data)
            return
        self._data += data
        if not self._needed:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return
            if b"Transfer-Encoding" in self._data[:end]:
                self._needed = end + 4
            else:
                start = self._data.index(b"Content-Length: ") + 16
                self._needed = end + 4 + int(self._data[start : self._data.index(b"\r\n", start)])
        if len(self._data) >= self._needed and self._waiter is not None:
            answer = bytes(self._data)
            self._data.clear()
            self._needed = 0
            waiter, self._waiter = self._waiter, None
            waiter.set_result(answer)

    async def call(self, request: bytes) -> bytes:
        """Send a request and return the whole response, head included."""
        assert self._transport is not None
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiter

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()


async def connect(endpoint: Endpoint) -> Connection:
    """Open a connection and complete the TLS handshake."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(
        Connection, endpoint.host, endpoint.port, ssl=endpoint.tls, server_hostname=endpoint.host
    )
    return connection


def read_endpoint(kubeconfig: str, *, certificate: bool = True) -> Endpoint:
    """Return the server of a kubeconfig, with its user's certificate or without one."""
    with open(kubeconfig) as file:
        document = yaml.safe_load(file)
    cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
    context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    if not certificate:
        return _at(cluster["server"], context)
    with tempfile.NamedTemporaryFile() as pair:
        pair.write(base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"]))
        pair.flush()
        context.load_cert_chain(pair.name)
    return _at(cluster["server"], context)


def _at(server: str, context: ssl.SSLContext) -> Endpoint:
    url = urlsplit(server)
    assert url.hostname is not None
    assert url.port is not None
    if url.hostname not in ("127.0.0.1", "localhost", "::1"):
        raise SystemExit(f"{url.hostname} is not this machine; only local servers are measured")
    return Endpoint(url.hostname, url.port, context)


def request(method: str, path: str, body: bytes = b"", token: str = "", accept: str = "application/json") -> bytes:
    """Return the bytes of a request."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n"
    if token:
        head += f"Authorization: Bearer {token}\r\n"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def config_map(name: str, namespace: str, version: str = "") -> bytes:
    """Return a small object, about half a kilobyte when stored."""
    at = f'"resourceVersion":"{version}",' if version else ""
    return (
        f'{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{{at}"name":"{name}","namespace":"{namespace}"}},'
        f'"data":{{"text":"{FILLER}"}}}}'
    ).encode()


def resource_claim(name: str, namespace: str) -> bytes:
    """Return a claim for one device."""
    return (
        f'{{"kind":"ResourceClaim","apiVersion":"resource.k8s.io/v1",'
        f'"metadata":{{"name":"{name}","namespace":"{namespace}"}},'
        f'"spec":{{"devices":{{"requests":[{{"name":"gpu","exactly":{{"deviceClassName":"gpu.example.com"}}}}]}}}}}}'
    ).encode()


def maps(namespace: str) -> str:
    """Return the path of the collection."""
    return f"/api/v1/namespaces/{namespace}/configmaps"


def check(answer: bytes, status: bytes) -> None:
    """Exit if the response has another status."""
    if answer[9:12] != status:
        raise SystemExit(f"expected status {status!r}, got {answer[:2000]!r}")


def version_of(answer: bytes) -> str:
    """Return the first resourceVersion in a response."""
    start = answer.index(VERSION) + len(VERSION)
    return answer[start : answer.index(b'"', start)].decode()


async def create(endpoint: Endpoint, plan: dict[str, Any]) -> dict[str, Any]:
    """Create objects with concurrent clients."""
    namespace, prefix = plan["namespace"], plan["prefix"]
    numbers = iter(range(plan["total"]))
    times: list[float] = []

    claims = plan.get("kind") == "ResourceClaim"
    path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims" if claims else maps(namespace)
    body = resource_claim if claims else config_map

    async def client(connection: Connection) -> None:
        for number in numbers:
            data = request("POST", path, body(f"{prefix}-{number}", namespace))
            start = time.perf_counter()
            answer = await connection.call(data)
            times.append(time.perf_counter() - start)
            check(answer, b"201")

    return await timed(endpoint, plan, client, times)


async def update(endpoint: Endpoint, plan: dict[str, Any]) -> dict[str, Any]:
    """Update objects with concurrent clients and resource version checks; each client has its own object."""
    namespace = plan["namespace"]
    rounds = plan["total"] // plan["clients"]
    names = iter(range(plan["clients"]))
    times: list[float] = []

    async def client(connection: Connection) -> None:
        name = f"{plan['prefix']}-{next(names)}"
        answer = await connection.call(request("POST", maps(namespace), config_map(name, namespace)))
        check(answer, b"201")
        path = f"{maps(namespace)}/{name}"
        for number in range(rounds):
            body = config_map(name, namespace, version_of(answer)).replace(b'"data":{', b'"data":{"n":"%d",' % number)
            start = time.perf_counter()
            answer = await connection.call(request("PUT", path, body))
            times.append(time.perf_counter() - start)
            check(answer, b"200")

    return await timed(endpoint, plan, client, times)


async def read(endpoint: Endpoint, plan: dict[str, Any]) -> dict[str, Any]:
    """Read one path repeatedly."""
    times: list[float] = []
    size = 0

    async def client(connection: Connection) -> None:
        nonlocal size
        for _ in range(plan["total"] // plan["clients"]):
            start = time.perf_counter()
            answer = await connection.call(request("GET", plan["path"]))
            times.append(time.perf_counter() - start)
            check(answer, b"200")
            size = len(answer)

    return {**await timed(endpoint, plan, client, times), "bytes": size}


async def hold(endpoint: Endpoint, plan: dict[str, Any]) -> dict[str, Any]:
    """Send the requests of one user on all its connections for a time, as fast as each is answered."""
    times: list[float] = []
    numbers = itertools.count()
    namespace, token = plan["namespace"], plan["token"]
    accept = plan.get("accept", "application/json")

    async def client(connection: Connection) -> None:
        until = time.perf_counter() + plan["seconds"]
        while (start := time.perf_counter()) < until:
            if plan.get("path"):
                answer = await connection.call(request("GET", plan["path"], token=token, accept=accept))
                check(answer, b"200")
            else:
                body = config_map(f"{plan['prefix']}-{next(numbers)}", namespace)
                check(await connection.call(request("POST", maps(namespace), body, token)), b"201")
            times.append(time.perf_counter() - start)
            await asyncio.sleep(plan.get("pause", 0.0))

    return await timed(endpoint, plan, client, times)


async def timed(endpoint: Endpoint, plan: dict[str, Any], client: Any, times: list[float]) -> dict[str, Any]:
    """Connect all clients, then run them concurrently; connecting is not measured."""
    connections = [await connect(endpoint) for _ in range(plan["clients"])]
    start, before = time.perf_counter(), cpu_seconds(plan["pid"])
    await asyncio.gather(*(client(connection) for connection in connections))
    seconds, used = time.perf_counter() - start, cpu_seconds(plan["pid"]) - before
    for connection in connections:
        connection.close()
    return {"seconds": seconds, "times": times, "server_cpu": used}


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Watch:
    """A watch that reports each added object; cheap, as there may be a thousand."""

    def __init__(self, marker: bytes, seen: Callable[[int], None]) -> None:
        self._marker = marker
        self._seen = seen
        self._rest = b""

    def __call__(self, data: bytes) -> None:
        """Process a chunk of the stream."""
        data = self._rest + data
        *lines, self._rest = data.split(b"\n")
        for line in lines:
            start = line.find(self._marker)
            if start >= 0 and line.startswith(b'{"type":"ADDED"'):
                start += len(self._marker)
                self._seen(int(line[start : line.index(b'"', start)]))


async def open_watch(endpoint: Endpoint, namespace: str, version: str, handler: Callable[[bytes], None]) -> Connection:
    """Open a watch; return when the response head has arrived."""
    connection = await connect(endpoint)
    path = f"{maps(namespace)}?watch=true&resourceVersion={version}&timeoutSeconds=600"
    check(await connection.call(request("GET", path)), b"200")
    connection.on_stream = handler
    return connection


async def watch(endpoint: Endpoint, plan: dict[str, Any]) -> dict[str, Any]:
    """Measure from sending a write to receiving its event, with other watchers of the same or other namespaces."""
    namespace, prefix, total = plan["namespace"], plan["prefix"], plan["total"]
    writer = await connect(endpoint)
    version = version_of(await writer.call(request("GET", f"{maps(namespace)}?limit=1")))
    sent: list[float] = []
    latencies: list[float] = []
    missing = total * (plan["watchers"] if plan["same"] else 1)
    everything = asyncio.Event()

    def seen(number: int) -> None:
        nonlocal missing
        latencies.append(time.perf_counter() - sent[number])
        missing -= 1
        if not missing:
            everything.set()

    marker = f'"name":"{prefix}-'.encode()
    watches = [await open_watch(endpoint, namespace, version, Watch(marker, seen))]
    for number in range(plan["watchers"] - 1):
        elsewhere = namespace if plan["same"] else f"elsewhere-{number}"
        watches.append(await open_watch(endpoint, elsewhere, version, Watch(marker, seen)))
    interval = 1 / plan["per_second"]
    started, before = time.perf_counter(), cpu_seconds(plan["pid"])
    for number in range(total):
        # Evenly spaced writes, to measure latency and not the client's own queue.
        await asyncio.sleep(max(0.0, started + number * interval - time.perf_counter()))
        body = request("POST", maps(namespace), config_map(f"{prefix}-{number}", namespace))
        sent.append(time.perf_counter())
        check(await writer.call(body), b"201")
    async with asyncio.timeout(60):
        await everything.wait()
    seconds, used = time.perf_counter() - started, cpu_seconds(plan["pid"]) - before
    for connection in (*watches, writer):
        connection.close()
    return {"seconds": seconds, "times": latencies, "server_cpu": used}


MODES = {"create": create, "update": update, "read": read, "hold": hold, "watch": watch}


async def run(plan: dict[str, Any]) -> dict[str, Any]:
    """Run a plan."""
    return await MODES[plan["mode"]](read_endpoint(plan["kubeconfig"], certificate=not plan.get("token")), plan)


def main() -> None:
    """Read the plan, run it and write the measurements."""
    plan = json.load(sys.stdin)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        json.dump(runner.run(run(plan)), sys.stdout)


if __name__ == "__main__":
    main()
