"""ConfigMap `extension-apiserver-authentication`: what other servers authenticate the clients of the cluster by."""

from __future__ import annotations

import random

import pytest

from dray.api.errors import ForbiddenError
from dray.apiserver.bootstrap import HOOKS, Bootstrap
from dray.apiserver.healthz import PostStartHooks
from dray.apiserver.local_transport import LocalTransport
from dray.runtime.system import SystemClock
from tests.in_process_server import in_process_server
from tests.local_server import Local, local_request

CONFIG_MAP = "core/v1/configmaps/extension-apiserver-authentication@kube-system"
FIRST, SECOND = "-----BEGIN CERTIFICATE-----\nfirst\n", "-----BEGIN CERTIFICATE-----\nsecond\n"


async def test_it_has_the_authority_of_client_certificates(api: Local) -> None:
    found = await api.request("get", CONFIG_MAP)
    assert found["data"] == {"client-ca-file": api.running.pki.authority.certificate.decode()}


async def test_schedulers_and_controller_managers_may_read_it_and_others_not(api: Local) -> None:
    everyone = ("system:authenticated",)
    for user in ("system:kube-scheduler", "system:kube-controller-manager"):
        assert (await Local(api.running, everyone, user).request("get", CONFIG_MAP))["data"]
    with pytest.raises(ForbiddenError):
        await Local(api.running, everyone, "mallory").request("get", CONFIG_MAP)


async def start(server: LocalTransport, authority: str) -> PostStartHooks:
    hooks = PostStartHooks(HOOKS)
    await Bootstrap(server, hooks, authority).run()
    return hooks


async def request(server: LocalTransport, verb: str, body: object = None) -> dict[str, object]:
    return await server.handle(local_request("admin", ("system:masters",), verb, CONFIG_MAP, body))


async def test_servers_with_one_store_publish_all_their_authorities_once() -> None:
    async with in_process_server(SystemClock(), random.Random(1)) as server:
        for authority in (FIRST, SECOND, FIRST, SECOND):
            await start(server, authority)
        assert (await request(server, "get"))["data"] == {"client-ca-file": FIRST + SECOND}


async def test_a_server_starts_although_the_config_map_is_immutable() -> None:
    async with in_process_server(SystemClock(), random.Random(1)) as server:
        await start(server, FIRST)
        found = await request(server, "get")
        await request(server, "update", {**found, "immutable": True})
        hooks = await start(server, SECOND)
        assert [await check() for check in hooks.checks().values()] == [None] * len(HOOKS)
        assert (await request(server, "get"))["data"] == {"client-ca-file": FIRST}
