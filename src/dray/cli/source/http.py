"""The connection to an API server that a command reads from."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dray.client.files import load_access
from dray.client.http import http_client
from dray.client.interface import Client
from dray.client.kubeconfig import Overrides
from dray.runtime.clock import SystemClock


@asynccontextmanager
async def connected(kubeconfig: str, context: str = "") -> AsyncIterator[Client]:
    """A client with the user's own access."""
    access = load_access(os.environ, Overrides(context=context) if context else None, path=kubeconfig)
    client = http_client(access, SystemClock(), user_agent="dray-cli")
    try:
        yield client
    finally:
        await client.close()
