"""Health and metrics of a component that is not an API server: plain HTTP, meant for loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from dray.runtime.tasks import TaskGroup


async def serve_health(group: TaskGroup, host: str, port: int, metrics: Callable[[], bytes]) -> int:
    """Serve /healthz, /livez, /readyz and /metrics for as long as the group runs; returns the port."""

    async def healthy(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def exposed(_request: web.Request) -> web.Response:
        return web.Response(body=metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application()
    for path in ("/healthz", "/livez", "/readyz"):
        app.router.add_get(path, healthy)
    app.router.add_get("/metrics", exposed)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    await site.start()
    group.spawn(_until_cancelled(runner), "health")
    assert runner.addresses
    return int(runner.addresses[0][1])


async def _until_cancelled(runner: web.AppRunner) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
