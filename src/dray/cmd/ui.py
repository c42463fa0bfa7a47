"""`dray ui`: the dashboard of any cluster, on this machine alone, with the rights of your kubeconfig."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import webbrowser
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from dray.api.errors import APIError
from dray.client.files import load_access
from dray.client.http import http_client
from dray.client.interface import Client
from dray.client.kubeconfig import Overrides
from dray.cmd.settings import UISettings
from dray.dashboard.interface import Reply
from dray.dashboard.servicer import DATA, Dashboard, failure
from dray.runtime.clock import SystemClock

COOKIE: Final = "dray-ui"
_KEY: Final = "key"
_SHUTDOWN_SECONDS: Final = 0.5
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


async def run(settings: UISettings, stop: asyncio.Event) -> None:
    """Serve until told to stop."""
    overrides = Overrides(context=settings.context) if settings.context else None
    access = load_access(os.environ, overrides, path=settings.kubeconfig)
    client = http_client(access, SystemClock(), user_agent="dray-ui")
    # The first answer shows that the server can be reached before anyone is told that we are ready.
    await client.get_path("/version")
    door = Door(secrets.token_urlsafe(32))
    runner = web.AppRunner(application(Dashboard(SystemClock()), client, door), shutdown_timeout=_SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        site = web.TCPSite(runner, settings.host, settings.port)
        await site.start()
        port = runner.addresses[0][1]
        url = f"http://{settings.host}:{port}/ui/?{_KEY}={door.key}"
        sys.stdout.write(f"ready {url}\n")
        sys.stdout.flush()
        if settings.open:
            webbrowser.open(url)
        await stop.wait()
    finally:
        await runner.cleanup()
        await client.close()


class Door:
    """Lets in who has the key: once by the address that was printed, then by a cookie.

    Every program and every page in a browser on this machine can reach the port; none of them knows the key.
    """

    def __init__(self, key: str) -> None:
        self.key = key

    def admits(self, request: web.Request) -> bool:
        """Whether the request comes from the page that was opened with the printed address."""
        host = request.host.rpartition(":")[0].strip("[]") or request.host
        given = request.cookies.get(COOKIE, "") or request.query.get(_KEY, "")
        # A foreign name that was made to point here must not pass for ours.
        return host in _LOOPBACK and secrets.compare_digest(given.encode(), self.key.encode())


def application(dashboard: Dashboard, client: Client, door: Door) -> web.Application:
    """The pages and their data for one reader."""

    async def serve(request: web.Request) -> web.StreamResponse:
        page = dashboard.page(request.path, request.headers.get("If-None-Match", ""))
        if not door.admits(request):
            return web.Response(status=403, text="open the address that `dray ui` printed\n")
        if page is not None:
            answer = _response(page)
            answer.set_cookie(COOKIE, door.key, httponly=True, samesite="Strict", path="/ui")
            return answer
        if not request.path.startswith(DATA):
            raise web.HTTPNotFound
        try:
            reply = await dashboard.data(request.path, dict(request.query), client)
        except APIError as error:
            reply = failure(error)
        return await _streamed(request, reply) if reply.stream is not None else _response(reply)

    handler: Callable[[web.Request], Awaitable[web.StreamResponse]] = serve
    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    return app


def _response(reply: Reply) -> web.Response:
    return web.Response(
        body=reply.body, status=reply.status, headers={"Content-Type": reply.content_type, **dict(reply.headers)}
    )


async def _streamed(request: web.Request, reply: Reply) -> web.StreamResponse:
    assert reply.stream is not None
    headers = {"Content-Type": reply.content_type, "Cache-Control": "no-store", **dict(reply.headers)}
    response = web.StreamResponse(status=reply.status, headers=headers)
    await response.prepare(request)
    try:
        async for piece in reply.stream:
            await response.write(piece)
    except ConnectionError:
        # The reader has left.
        return response
    finally:
        await reply.stream.aclose()
    return response
