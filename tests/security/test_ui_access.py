"""Access to `dray ui`: who has the key gets in, whatever cookies other processes of this machine have left."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dray.cmd.ui import AccessKey, dashboard_handler
from dray.dashboard.handler import Dashboard
from dray.runtime.http.requests import Request
from dray.runtime.http.router import Reply
from dray.runtime.system import SystemClock
from dray.runtime.tasks import ChildTasks

KEY = "right"


async def get(target: str, *, host: str = "127.0.0.1:8001", cookie: str = "") -> Reply:
    """Request a page; the client of the API server is not reached."""
    headers = {"host": host} | ({"cookie": cookie} if cookie else {})
    handler = dashboard_handler(Dashboard(SystemClock()), cast("Any", None), AccessKey(KEY), ChildTasks("test"))
    return await handler(Request(method="GET", target=target, headers=headers))


def cookies(reply: Reply) -> list[str]:
    return [value for name, value in reply.headers if name == "Set-Cookie"]


@pytest.mark.parametrize("stale", ["dray-ui-8001=old", "dray-ui=old; dray-ui-8001=older"])
async def test_the_right_key_in_the_address_wins_over_a_stale_cookie(stale: str) -> None:
    reply = await get(f"/ui/?key={KEY}", cookie=stale)
    assert reply.status == 200
    assert cookies(reply) == [f"dray-ui-8001={KEY}; HttpOnly; Path=/ui; SameSite=Strict"]


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("127.0.0.1:8001", "dray-ui-8001"),
        ("localhost:9000", "dray-ui-9000"),
        ("[::1]:8001", "dray-ui-8001"),
        ("localhost", "dray-ui"),
        ("[::1]", "dray-ui"),
    ],
)
async def test_each_port_has_its_own_cookie(host: str, name: str) -> None:
    assert cookies(await get(f"/ui/?key={KEY}", host=host)) == [f"{name}={KEY}; HttpOnly; Path=/ui; SameSite=Strict"]
    assert (await get("/ui/", host=host, cookie=f"{name}={KEY}; dray-ui-1=other")).status == 200
    assert (await get("/ui/", host=host, cookie=f"dray-ui-1={KEY}")).status == 403


@pytest.mark.parametrize(
    ("target", "host", "cookie"),
    [
        ("/ui/", "127.0.0.1:8001", ""),
        ("/ui/?key=wrong", "127.0.0.1:8001", "dray-ui-8001=old"),
        ("/ui/?key=", "127.0.0.1:8001", "dray-ui-8001="),
        (f"/ui/?key={KEY}", "attacker.example:8001", ""),
        (f"/ui/?key={KEY}", "127.0.0.1.attacker.example", ""),
        (f"/ui/?key={KEY}", "", ""),
        (f"/ui/?key={KEY}", "127.0.0.1:x", ""),
    ],
)
async def test_neither_wrong_keys_nor_foreign_hosts_are_admitted(target: str, host: str, cookie: str) -> None:
    reply = await get(target, host=host, cookie=cookie)
    assert reply.status == 403
    assert cookies(reply) == []
