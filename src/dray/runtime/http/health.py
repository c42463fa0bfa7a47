"""Health and metrics of a component that is not an API server: plain HTTP, meant for loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dray.runtime.http.requests import Request
from dray.runtime.http.router import Reply, Router, text
from dray.runtime.http.server import HttpServer
from dray.runtime.metrics import CONTENT_TYPE
from dray.runtime.tasks import TaskGroup


async def serve_health(group: TaskGroup, host: str, port: int, metrics: Callable[[], bytes]) -> int:
    """Serve /healthz, /livez, /readyz and /metrics for as long as the group runs; returns the port."""

    async def healthy(_request: Request) -> Reply:
        return text("ok")

    async def exposed(_request: Request) -> Reply:
        return Reply(metrics(), content_type=CONTENT_TYPE)

    server = HttpServer(Router({"/healthz": healthy, "/livez": healthy, "/readyz": healthy, "/metrics": exposed}))
    bound = await server.start(host, port)
    group.spawn(_until_cancelled(server), "health")
    return bound


async def _until_cancelled(server: HttpServer) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await server.stop()
