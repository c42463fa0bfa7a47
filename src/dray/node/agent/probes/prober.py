"""Executes probes and hooks: exec, HTTP, TCP and gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import grpc
import grpc.aio

from dray.api.types.core_v1 import Container, ExecAction, GRPCAction, HTTPGetAction, TCPSocketAction
from dray.node.agent.probes.thresholds import http_url, resolve_port
from dray.node.runtimes.runtime import Runtime, RuntimeFailure
from dray.runtime.http.client import HttpClient
from dray.runtime.http.dialing import Route
from dray.runtime.http.errors import ConnectError, HttpError, NoResponseError, ResponseTimeoutError
from dray.runtime.http.urls import parse_url, redirected

USER_AGENT: Final = "kube-probe/1.37"
BODY_BYTES_MAX: Final = 10 * 1024
# As Go's client.
REDIRECTS_MAX: Final = 10
_HEALTHY: Final = range(200, 400)
_HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
_SERVING: Final = 1


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a probe or hook."""

    healthy: bool
    text: str = ""


class ProbeHandler(Protocol):
    """The common part of a probe and a lifecycle hook."""

    @property
    def exec(self) -> ExecAction | None:
        """The command to execute."""

    @property
    def http_get(self) -> HTTPGetAction | None:
        """The HTTP request to send."""

    @property
    def tcp_socket(self) -> TCPSocketAction | None:
        """The TCP socket to open."""


class Prober:
    """Probes the containers of one node."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._tls: ssl.SSLContext | None = None

    async def probe(
        self, handler: ProbeHandler, container: Container, container_id: str, address: str, timeout_seconds: float
    ) -> ProbeResult:
        """Execute the probe or hook once; never raises."""
        if handler.exec is not None:
            return await self._execute(handler.exec, container_id, timeout_seconds)
        if handler.http_get is not None:
            return await self._http(handler.http_get, container, address, timeout_seconds)
        if handler.tcp_socket is not None:
            host = handler.tcp_socket.host or address
            return await _connect(host, resolve_port(container, handler.tcp_socket.port), timeout_seconds)
        action: GRPCAction | None = getattr(handler, "grpc", None)
        if action is not None:
            return await _grpc(action, address, timeout_seconds)
        return ProbeResult(healthy=True)

    async def _execute(self, action: ExecAction, container_id: str, timeout_seconds: float) -> ProbeResult:
        try:
            result = await self._runtime.execute(container_id, action.command, timeout_seconds)
        except RuntimeFailure as error:
            return ProbeResult(healthy=False, text=str(error))
        if result.code is None:
            return ProbeResult(
                healthy=False, text=f"command timed out: {action.command} timed out after {timeout_seconds:g}s"
            )
        return ProbeResult(healthy=result.code == 0, text=result.output)

    async def _http(
        self, action: HTTPGetAction, container: Container, address: str, timeout_seconds: float
    ) -> ProbeResult:
        url = http_url(container, action, address)
        headers = probe_headers(action)
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._follow(url, headers)
        except (HttpError, ValueError, TimeoutError) as error:
            return ProbeResult(healthy=False, text=f'Get "{url}": {_go_words(error)}')

    async def _follow(self, url: str, headers: Sequence[tuple[str, str]]) -> ProbeResult:
        """Send the request and follow redirects to the same host; a redirect to another host is a success."""
        host = parse_url(url).origin.host
        for _ in range(REDIRECTS_MAX):
            status, location, body = await self._get(url, headers)
            to = redirected(url, status, location)
            if not to or parse_url(to).origin.host != host:
                if status in _HEALTHY:
                    return ProbeResult(healthy=True, text=body)
                return ProbeResult(healthy=False, text=f"HTTP probe failed with statuscode: {status}")
            url = to
        raise HttpError(f"stopped after {REDIRECTS_MAX} redirects")

    async def _get(self, url: str, headers: Sequence[tuple[str, str]]) -> tuple[int, str, str]:
        """Send a request on a new connection; return status, location and the beginning of the body."""
        address = parse_url(url)
        host = next((value for name, value in headers if name.lower() == "host"), "")
        headers = [(name, value) for name, value in headers if name.lower() != "host"]
        tls = self._unchecked() if address.origin.is_secure else None
        client = HttpClient(Route(address.origin, tls), keep=False, host=host)
        with await client.send("GET", address.target, headers) as answer:
            body = await answer.read(BODY_BYTES_MAX)
        return answer.status, answer.header("Location"), body.decode(errors="replace")

    def _unchecked(self) -> ssl.SSLContext:
        """Return a TLS context that does not verify certificates, as in kubelet."""
        if self._tls is None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._tls.check_hostname = False
            self._tls.verify_mode = ssl.CERT_NONE
        return self._tls


def probe_headers(action: HTTPGetAction) -> Sequence[tuple[str, str]]:
    """Return the headers; the probe's replace kubelet's, and an empty one removes it."""
    own = [(header.name, header.value) for header in action.http_headers]
    names = {name.lower() for name, _ in own}
    usual = (("User-Agent", USER_AGENT), ("Accept", "*/*"))
    kept = [(name, value) for name, value in own if value or name.lower() not in ("user-agent", "accept")]
    return [(name, value) for name, value in usual if name.lower() not in names] + kept


def _go_words(error: Exception) -> str:
    """Return the error text of kubelet's events."""
    if isinstance(error, (ResponseTimeoutError, TimeoutError)):
        return "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
    if isinstance(error, ConnectError) and isinstance(error.__cause__, socket.gaierror):
        return f"dial tcp: lookup {error.address.rpartition(':')[0]}: no such host"
    if isinstance(error, ConnectError) and not isinstance(error.__cause__, ssl.SSLError):
        return f"dial tcp {error.address}: connect: {error.reason}"
    if isinstance(error, NoResponseError):
        return "EOF"
    return str(error)


async def _connect(host: str, port: int, timeout_seconds: float) -> ProbeResult:
    try:
        async with asyncio.timeout(timeout_seconds):
            _, writer = await asyncio.open_connection(host, port)
    except OSError as error:
        return ProbeResult(healthy=False, text=f"dial tcp {host}:{port}: {error.strerror or 'i/o timeout'}".lower())
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ProbeResult(healthy=True)


async def _grpc(action: GRPCAction, address: str, timeout_seconds: float) -> ProbeResult:
    service = (action.service or "").encode()
    # HealthCheckRequest{1 service string}, HealthCheckResponse{1 status enum}: too small for generated code.
    request = b"\x0a" + bytes([len(service)]) + service if service else b""
    async with grpc.aio.insecure_channel(f"{address}:{action.port}") as channel:
        call = channel.unary_unary(_HEALTH_CHECK, bytes, bytes)
        try:
            response: bytes = await call(request, timeout=timeout_seconds)
        except grpc.aio.AioRpcError as error:
            return ProbeResult(healthy=False, text=f"error: this server does not serve: {error.details()}")
    status = response[1] if len(response) > 1 else 0
    return ProbeResult(healthy=status == _SERVING, text=f"service unhealthy (responded with {status})")
