"""An API server without a port, on the memory store. For simulations and tests: clock and randomness are arguments."""

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
from dray.api.gate_table import CURRENT, Release
from dray.api.timestamps import format_time
from dray.apiserver.admission.chain import enabled_plugins
from dray.apiserver.catalog import Catalog
from dray.apiserver.composition import ServerConfig, running_server
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.local_transport import LocalTransport
from dray.apiserver.registry import builtin
from dray.lib.clock import Clock
from dray.store.interface import Store
from dray.store.memory import MemoryStore


@functools.cache
def _token_key() -> bytes:
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@functools.cache
def _endpoints(release: Release = CURRENT) -> tuple[Endpoint, ...]:
    return tuple(builtin.endpoints(release))


def in_process_config(
    store: Store, clock: Clock, rng: random.Random, *, gates: FeatureGates | None = None
) -> ServerConfig:
    """Return the configuration of a server without a port; nothing compacts its store."""
    token_ids = itertools.count()
    gates = gates or FeatureGates()
    return ServerConfig(
        store=store,
        endpoints=_endpoints(gates.release),
        clock=clock,
        random_source=rng,
        gates=gates,
        token_key=_token_key(),
        new_token_id=lambda: str(next(token_ids)),
        service_account_issuer="https://in-process",
        address="in-process",
        # Without a node lifecycle controller, new nodes would stay tainted.
        admission_plugins=enabled_plugins(disable=("TaintNodesByCondition",)),
        compaction=False,
    )


@asynccontextmanager
async def in_process_server(
    clock: Clock, rng: random.Random, *, gates: FeatureGates | None = None, contents: Iterable[Document] = ()
) -> AsyncIterator[LocalTransport]:
    """Run a server whose store has the contents from the start, without validation."""
    store = MemoryStore()
    config = in_process_config(store, clock, rng, gates=gates)
    try:
        await fill_store(store, Catalog(_endpoints()), contents, format_time(clock.now()), rng)
        async with running_server(config) as server:
            yield LocalTransport(server)
    finally:
        await store.close()


async def fill_store(
    store: Store, catalog: Catalog, contents: Iterable[Document], now: str, rng: random.Random
) -> None:
    """Store documents that are in their storage version; skip kinds that are not served."""
    endpoints = {(item.api_version, item.definition.kind): item for item in catalog.storage_endpoints()}
    for document in contents:
        group_version = GroupVersion.parse(document["apiVersion"])
        endpoint = endpoints.get((group_version.api_version, document["kind"]))
        if endpoint is None:
            continue
        metadata = {
            "uid": str(uuid.UUID(int=rng.getrandbits(128), version=4)),
            "creationTimestamp": now,
            **document["metadata"],
        }
        content = endpoint.content({**document, "metadata": metadata})
        await store.create(endpoint.key(metadata.get("namespace", ""), metadata["name"]), endpoint.dump(content))
