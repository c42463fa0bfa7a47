"""`dray ui`: the dashboard of any cluster, on this machine alone, with the rights of your kubeconfig."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import webbrowser
from http.cookies import CookieError, SimpleCookie
from typing import Final

from dray.api.errors import APIError
from dray.client.files import load_access
from dray.client.http import http_client
from dray.client.interface import Client
from dray.client.kubeconfig import Overrides
from dray.cmd.settings import UISettings
from dray.dashboard import interface
from dray.dashboard.servicer import DATA, Dashboard, failure
from dray.runtime.clock import SystemClock
from dray.runtime.http.requests import Request
from dray.runtime.http.router import Handler, Reply, text
from dray.runtime.http.server import HttpServer

COOKIE: Final = "dray-ui"
_KEY: Final = "key"
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


async def run(settings: UISettings, stop: asyncio.Event) -> None:
    """Serve until told to stop."""
    overrides = Overrides(context=settings.context) if settings.context else None
    access = load_access(os.environ, overrides, path=settings.kubeconfig)
    client = http_client(access, SystemClock(), user_agent="dray-ui")
    # The first answer shows that the server can be reached before anyone is told that we are ready.
    await client.get_path("/version")
    door = Door(secrets.token_urlsafe(32))
    server = HttpServer(pages(Dashboard(SystemClock()), client, door))
    try:
        port = await server.start(settings.host, settings.port)
        url = f"http://{settings.host}:{port}/ui/?{_KEY}={door.key}"
        sys.stdout.write(f"ready {url}\n")
        sys.stdout.flush()
        if settings.open:
            webbrowser.open(url)
        await stop.wait()
    finally:
        await server.stop()
        await client.close()


class Door:
    """Lets in who has the key: once by the address that was printed, then by a cookie.

    Every program and every page in a browser on this machine can reach the port; none of them knows the key.
    """

    def __init__(self, key: str) -> None:
        self.key = key

    def admits(self, request: Request) -> bool:
        """Whether the request comes from the page that was opened with the printed address."""
        named = request.headers.get("host", "")
        host = named.rpartition(":")[0].strip("[]") or named
        given = _cookie(request) or request.query.get(_KEY, "")
        # A foreign name that was made to point here must not pass for ours.
        return host in _LOOPBACK and secrets.compare_digest(given.encode(), self.key.encode())


def _cookie(request: Request) -> str:
    """The key that a page was given when it was opened."""
    try:
        found = SimpleCookie(request.headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def pages(dashboard: Dashboard, client: Client, door: Door) -> Handler:
    """The pages and their data for one reader."""

    async def serve(request: Request) -> Reply:
        if request.method not in ("GET", "HEAD"):
            return text("405: Method Not Allowed", 405, (("Allow", "GET,HEAD"),))
        page = dashboard.page(request.path, request.headers.get("if-none-match", ""))
        if not door.admits(request):
            return text("open the address that `dray ui` printed\n", 403)
        if page is not None:
            cookie = f"{COOKIE}={door.key}; HttpOnly; Path=/ui; SameSite=Strict"
            return _reply(page, ("Set-Cookie", cookie))
        if not request.path.startswith(DATA):
            return text("404: Not Found", 404)
        try:
            reply = await dashboard.data(request.path, request.query, client)
        except APIError as error:
            reply = failure(error)
        return _reply(reply) if reply.stream is None else _reply(reply, ("Cache-Control", "no-store"))

    return serve


def _reply(reply: interface.Reply, *more: tuple[str, str]) -> Reply:
    return Reply(reply.body, reply.status, reply.content_type, (*more, *reply.headers), reply.stream)
