"""An API server without a port, on the memory store: its clock and its randomness are the test's."""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dray.api.document import NamespacedName
from dray.api.features import FeatureGates
from dray.apiserver.authentication.authenticator import Authenticator
from dray.apiserver.authentication.service_accounts import ServiceAccountTokens
from dray.apiserver.authorization.authorizer import Authorizer
from dray.apiserver.authorization.node import NodeAuthorizer
from dray.apiserver.catalog import Catalog
from dray.apiserver.custom.build import schema_source
from dray.apiserver.flow.follower import Follower
from dray.apiserver.flow.paths import Health, Paths
from dray.apiserver.flow.server import APIServer
from dray.apiserver.memory import LocalTransport
from dray.apiserver.openapi.source import OpenAPI
from dray.apiserver.registry import builtin
from dray.apiserver.world import TokenLookup, World
from dray.client.interface import LocalRequest
from dray.lib.clock import Clock
from dray.store.memory import MemoryStore


@functools.cache
def _token_key() -> bytes:
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@functools.cache
def _endpoints() -> Any:
    return tuple(builtin.endpoints())


@asynccontextmanager
async def portless_server(
    clock: Clock, rng: random.Random, *namespaces: str, gates: FeatureGates | None = None
) -> AsyncIterator[LocalTransport]:
    """A server for the time of a `with` block, with nothing in it but the namespaces and their service accounts."""
    world, store, numbers = World(), MemoryStore(), itertools.count()
    catalog = Catalog(_endpoints())
    lookup = TokenLookup(world)
    tokens = ServiceAccountTokens(
        key=_token_key(), lookup=lookup, new_id=lambda: str(next(numbers)), issuer="https://test"
    )
    server = APIServer(
        store=store,
        catalog=catalog,
        world=world,
        clock=clock,
        gates=gates or FeatureGates(),
        authenticator=Authenticator(tokens, {}, allow_anonymous=False),
        authorizer=Authorizer(world.rbac, NodeAuthorizer(world.nodes)),
        paths=Paths(catalog, Health(), tokens, OpenAPI(catalog, schema_source(catalog)), lambda: b""),
        lookup=lookup,
        random_source=rng,
    )
    follower = Follower(store, world)
    await follower.start()
    local = LocalTransport(server)
    for name in namespaces:
        await _furnish(local, name)
        while lookup("serviceaccounts", NamespacedName(name, "default")) is None:  # noqa: ASYNC110 - has no event
            await asyncio.sleep(0)
    try:
        yield local
    finally:
        await follower.stop()
        await store.close()


async def _furnish(local: LocalTransport, namespace: str) -> None:
    for place, plural, kind, name in (
        ("", "namespaces", "Namespace", namespace),
        (namespace, "serviceaccounts", "ServiceAccount", "default"),
    ):
        metadata = {"name": name, "namespace": place} if place else {"name": name}
        body = {"apiVersion": "v1", "kind": kind, "metadata": metadata}
        await local.handle(
            LocalRequest("test", ("system:masters",), "create", "", "v1", plural, namespace=place, body=body)
        )
