"""Asks a container: by a command in it, by HTTP, by opening a connection, or by gRPC's health service."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Final, Protocol

import aiohttp
import grpc
import grpc.aio

from dray.api.types.core_v1 import Container, ExecAction, GRPCAction, HTTPGetAction, TCPSocketAction
from dray.node.agent.probes.plan import http_url, resolve_port
from dray.node.runtimes.interface import Runtime, RuntimeFailure

USER_AGENT: Final = "kube-probe/1.36"
BODY_BYTES_MAX: Final = 10 * 1024
_HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
_SERVING: Final = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether all was well, and what was said."""

    healthy: bool
    text: str = ""


class Asked(Protocol):
    """What a probe and a hook have in common."""

    @property
    def exec(self) -> ExecAction | None:
        """A command."""

    @property
    def http_get(self) -> HTTPGetAction | None:
        """A request."""

    @property
    def tcp_socket(self) -> TCPSocketAction | None:
        """A connection."""


class Asker:
    """Asks containers of one node."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Release connections."""
        if self._session is not None:
            await self._session.close()

    async def ask(
        self, asked: Asked, container: Container, container_id: str, address: str, timeout_seconds: float
    ) -> Answer:
        """One answer; never raises."""
        if asked.exec is not None:
            return await self._execute(asked.exec, container_id, timeout_seconds)
        if asked.http_get is not None:
            return await self._http(asked.http_get, container, address, timeout_seconds)
        if asked.tcp_socket is not None:
            host = asked.tcp_socket.host or address
            return await _connect(host, resolve_port(container, asked.tcp_socket.port), timeout_seconds)
        action: GRPCAction | None = getattr(asked, "grpc", None)
        if action is not None:
            return await _grpc(action, address, timeout_seconds)
        return Answer(healthy=True)

    async def _execute(self, action: ExecAction, container_id: str, timeout_seconds: float) -> Answer:
        try:
            result = await self._runtime.execute(container_id, action.command, timeout_seconds)
        except RuntimeFailure as error:
            return Answer(healthy=False, text=str(error))
        if result.code is None:
            return Answer(
                healthy=False, text=f"command timed out: {action.command} timed out after {timeout_seconds:g}s"
            )
        return Answer(healthy=result.code == 0, text=result.output)

    async def _http(self, action: HTTPGetAction, container: Container, address: str, timeout_seconds: float) -> Answer:
        if self._session is None:
            # Probes do not check certificates, as kubelet's do not: they ask whether someone answers.
            connector = aiohttp.TCPConnector(ssl=False, force_close=True, limit=0)
            self._session = aiohttp.ClientSession(connector=connector)
        headers = {"User-Agent": USER_AGENT, "Accept": "*/*"}
        headers |= {header.name: header.value for header in action.http_headers}
        url = http_url(container, action, address)
        try:
            async with self._session.get(
                url, headers=headers, timeout=aiohttp.ClientTimeout(total=timeout_seconds), allow_redirects=True
            ) as response:
                body = (await response.content.read(BODY_BYTES_MAX)).decode(errors="replace")
                if 200 <= response.status < 400:  # noqa: PLR2004 - HTTP's own ranges
                    return Answer(healthy=True, text=body)
                return Answer(healthy=False, text=f"HTTP probe failed with statuscode: {response.status}")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Answer(healthy=False, text=f'Get "{url}": {str(error) or type(error).__name__}')


async def _connect(host: str, port: int, timeout_seconds: float) -> Answer:
    try:
        async with asyncio.timeout(timeout_seconds):
            _, writer = await asyncio.open_connection(host, port)
    except OSError as error:
        return Answer(healthy=False, text=f"dial tcp {host}:{port}: {error.strerror or 'i/o timeout'}".lower())
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return Answer(healthy=True)


async def _grpc(action: GRPCAction, address: str, timeout_seconds: float) -> Answer:
    service = (action.service or "").encode()
    # HealthCheckRequest{1 service string}, HealthCheckResponse{1 status enum}: too small for generated code.
    request = b"\x0a" + bytes([len(service)]) + service if service else b""
    async with grpc.aio.insecure_channel(f"{address}:{action.port}") as channel:
        call = channel.unary_unary(_HEALTH_CHECK, bytes, bytes)
        try:
            response: bytes = await call(request, timeout=timeout_seconds)
        except grpc.aio.AioRpcError as error:
            return Answer(healthy=False, text=f"error: this server does not serve: {error.details()}")
    status = response[1] if len(response) > 1 else 0
    return Answer(healthy=status == _SERVING, text=f"service unhealthy (responded with {status})")
