"""An API server without a port, on the memory store: for simulations and tests, whose clock and randomness it uses."""

from __future__ import annotations

import functools
import itertools
import random
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dray.api.document import Document, GroupVersion
from dray.api.features import FeatureGates
from dray.api.timestamps import format_time
from dray.apiserver.admission import TAINT_NODES
from dray.apiserver.authentication.authenticator import Authenticator
from dray.apiserver.authentication.service_accounts import ServiceAccountTokens
from dray.apiserver.authorization.authorizer import Authorizer
from dray.apiserver.authorization.node import NodeAuthorizer
from dray.apiserver.catalog import Catalog
from dray.apiserver.custom.build import schema_source
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.handlers.nonresource import Health, Paths
from dray.apiserver.local_transport import LocalTransport
from dray.apiserver.object_cache import ObjectCache, TokenLookup
from dray.apiserver.openapi.documents import OpenAPI
from dray.apiserver.reflector import StoreReflector
from dray.apiserver.registry import builtin
from dray.apiserver.server import APIServer
from dray.lib.clock import Clock
from dray.runtime.tasks import TaskGroup
from dray.store.interface import Store
from dray.store.memory import MemoryStore


@functools.cache
def _token_key() -> bytes:
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@functools.cache
def _endpoints() -> tuple[Endpoint, ...]:
    return tuple(builtin.endpoints())


@asynccontextmanager
async def in_process_server(
    clock: Clock, rng: random.Random, *, gates: FeatureGates | None = None, contents: Iterable[Document] = ()
) -> AsyncIterator[LocalTransport]:
    """A server for the time of a `with` block; `contents` is in it from the start, taken as it is."""
    cache, store, numbers = ObjectCache(), MemoryStore(), itertools.count()
    catalog = Catalog(_endpoints())
    lookup = TokenLookup(cache)
    tokens = ServiceAccountTokens(
        key=_token_key(), lookup=lookup, new_id=lambda: str(next(numbers)), issuer="https://portless"
    )
    server = APIServer(
        store=store,
        catalog=catalog,
        cache=cache,
        clock=clock,
        gates=gates or FeatureGates(),
        authenticator=Authenticator(tokens, {}, allow_anonymous=False),
        authorizer=Authorizer(cache.rbac, NodeAuthorizer(cache.nodes)),
        paths=Paths(catalog, Health(), tokens, OpenAPI(catalog, schema_source(catalog)), lambda: b""),
        lookup=lookup,
        random_source=rng,
        # Whoever runs no node lifecycle controller would wait for ever for new nodes to become usable.
        disabled_plugins=(TAINT_NODES,),
    )
    await _fill(store, catalog, contents, format_time(clock.now()), rng)
    reflector = StoreReflector(store, cache, server.documents)
    await reflector.sync()
    async with TaskGroup("in-process server") as group:
        group.spawn(reflector.run(), "store reflector")
        try:
            yield LocalTransport(server)
        finally:
            await group.cancel()
            await store.close()


async def _fill(store: Store, catalog: Catalog, contents: Iterable[Document], now: str, rng: random.Random) -> None:
    """Store documents of stored versions without asking whether they are allowed; kinds not served are left out."""
    places = {(item.api_version, item.definition.kind): item for item in catalog.storage_endpoints()}
    for document in contents:
        group_version = GroupVersion.parse(document["apiVersion"])
        endpoint = places.get((group_version.api_version, document["kind"]))
        if endpoint is None:
            continue
        metadata = {
            "uid": str(uuid.UUID(int=rng.getrandbits(128), version=4)),
            "creationTimestamp": now,
            **document["metadata"],
        }
        content = endpoint.content({**document, "metadata": metadata})
        await store.create(endpoint.key(metadata.get("namespace", ""), metadata["name"]), endpoint.dump(content))
