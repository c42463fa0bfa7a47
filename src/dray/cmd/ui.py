"""`dray ui`: serves the dashboard of any cluster on this machine only, with the permissions of your kubeconfig."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import webbrowser
from http.cookies import CookieError, SimpleCookie
from typing import Final

from dray.api.errors import APIError
from dray.client.credentials import load_access
from dray.client.http import http_client
from dray.client.interface import Client
from dray.client.kubeconfig import Overrides
from dray.cmd.settings import UISettings
from dray.dashboard import assets, responses
from dray.dashboard.assets import DATA
from dray.dashboard.handler import ACTION, Dashboard, DataRequest
from dray.runtime.http.requests import Request
from dray.runtime.http.router import Handler, Reply, text
from dray.runtime.http.server import page_server
from dray.runtime.system import SystemClock
from dray.runtime.tasks import ChildTasks, first_completed

COOKIE: Final = "dray-ui"
_KEY: Final = "key"
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


async def run(settings: UISettings, stop: asyncio.Event) -> None:
    """Serve until stopped."""
    overrides = Overrides(context=settings.context) if settings.context else None
    access = load_access(os.environ, overrides, path=settings.kubeconfig)
    client = http_client(access, SystemClock(), user_agent="dray-ui")
    # Fails early if the API server cannot be reached, before reporting ready.
    await client.get_path("/version")
    access_key = AccessKey(secrets.token_urlsafe(32))
    tasks = ChildTasks("dashboard")
    dashboard = Dashboard(SystemClock())
    server = page_server(dashboard_handler(dashboard, client, access_key, tasks))
    try:
        port = await server.start(settings.host, settings.port)
        url = f"http://{settings.host}:{port}/ui/?{_KEY}={access_key.value}"
        sys.stdout.write(f"ready {url}\n")
        sys.stdout.flush()
        tasks.spawn(dashboard.prepare(client, tasks), "prepare")
        if settings.open:
            webbrowser.open(url)
        await first_completed(stop.wait(), server.supervise())
    finally:
        await server.stop()
        await tasks.aclose()
        await client.close()


class AccessKey:
    """Admits requests that carry the key: first in the printed URL, then in a cookie.

    Cookies do not depend on the port, so each port has its own: several `dray ui` do not take each other's access away.
    The key in the URL counts whatever the cookie of an earlier process says.

    Every program on this machine, and every page in its browsers, can reach the port; none of them has the key.
    """

    def __init__(self, value: str) -> None:
        self.value = value

    def admits(self, request: Request) -> bool:
        """Return whether the request comes from the page that was opened with the printed URL."""
        host, _ = _host_and_port(request)
        keys = (request.query.get(_KEY, ""), _cookie(request))
        # Checking the host prevents DNS rebinding: a foreign name that resolves to this address.
        return host in _LOOPBACK and any(secrets.compare_digest(key.encode(), self.value.encode()) for key in keys)

    def cookie(self, request: Request) -> str:
        """Return the Set-Cookie header for the page."""
        return f"{_cookie_name(request)}={self.value}; HttpOnly; Path=/ui; SameSite=Strict"


def _host_and_port(request: Request) -> tuple[str, str]:
    """Return host and port as the browser sees them; the port is empty if it is the default."""
    named = request.headers.get("host", "")
    host, colon, port = named.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()):
        return named.strip("[]"), ""
    return host.strip("[]"), port


def _cookie_name(request: Request) -> str:
    _, port = _host_and_port(request)
    return f"{COOKIE}-{port}" if port else COOKIE


def _cookie(request: Request) -> str:
    """Return the key that was set as a cookie when the page was opened."""
    try:
        found = SimpleCookie(request.headers.get("cookie", "")).get(_cookie_name(request))
    except CookieError:
        return ""
    return found.value if found is not None else ""


def dashboard_handler(dashboard: Dashboard, client: Client, access_key: AccessKey, tasks: ChildTasks) -> Handler:
    """Return a handler for the page and its data."""

    async def serve(request: Request) -> Reply:
        if request.method not in ("GET", "HEAD") and request.path != DATA + ACTION:
            return text("405: Method Not Allowed", 405, (("Allow", "GET,HEAD"),))
        page = assets.page(request.path, request.headers.get("if-none-match", ""))
        if not access_key.admits(request):
            return text("forbidden: open the URL that `dray ui` printed\n", 403)
        if page is not None:
            return _reply(page, ("Set-Cookie", access_key.cookie(request)))
        if not request.path.startswith(DATA):
            return text("404: Not Found", 404)
        try:
            content_type = request.headers.get("content-type", "")
            asked = DataRequest(request.path, request.query, request.method, content_type, request.body)
            reply = await dashboard.data(asked, client, client, tasks)
        except APIError as error:
            reply = responses.error_reply(error)
        return _reply(reply) if reply.stream is None else _reply(reply, ("Cache-Control", "no-store"))

    return serve


def _reply(reply: responses.Reply, *more: tuple[str, str]) -> Reply:
    return Reply(reply.body, reply.status, reply.content_type, (*more, *reply.headers), reply.stream)
