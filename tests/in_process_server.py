"""An API server without a port, on the memory store: its clock and its randomness are the test's."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dray.api.document import Document
from dray.api.features import FeatureGates
from dray.apiserver import in_process
from dray.apiserver.local_transport import LocalTransport
from dray.lib.clock import Clock
from tests.shared_documents import assert_unchanged


@asynccontextmanager
async def in_process_server(
    clock: Clock, rng: random.Random, *namespaces: str, gates: FeatureGates | None = None
) -> AsyncIterator[LocalTransport]:
    """A server for the time of a `with` block, with nothing in it but the namespaces and their service accounts."""
    contents = [document for name in namespaces for document in _furnished(name)]
    async with in_process.in_process_server(clock, rng, gates=gates, contents=contents) as local:
        yield local
        assert_unchanged(local.documents)


def _furnished(namespace: str) -> list[Document]:
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": namespace, "labels": {"kubernetes.io/metadata.name": namespace}},
            "spec": {"finalizers": ["kubernetes"]},
            "status": {"phase": "Active"},
        },
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": namespace}},
    ]
