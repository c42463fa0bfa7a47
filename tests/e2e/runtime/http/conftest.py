"""Both event loops, certificates, and a check for unclosed sockets."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
import uvloop

from dray.apiserver.authentication import certificates
from dray.runtime.system import SystemClock
from tests.e2e.runtime.http.harness import Certificates, until


# Processes run on uvloop; tests, drivers and scripts of users may run on asyncio's own.
def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    now = SystemClock().now()
    authority = certificates.new_authority(certificates.new_private_key(), now)
    other = certificates.new_authority(certificates.new_private_key(), now)
    return Certificates(
        tmp_path_factory.mktemp("pki"),
        authority.certificate,
        other.certificate,
        certificates.new_server(authority, ("127.0.0.1", "::1", "localhost", "named.example"), now),
        certificates.new_client(authority, certificates.ADMIN, now),
    )


def sockets() -> int:
    """How many this process has open."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found += os.readlink(entry).startswith("socket:")
        except OSError:
            continue
    return found


@pytest_asyncio.fixture(autouse=True)
async def no_leaked_sockets() -> AsyncIterator[None]:
    before = sockets()
    yield
    await until(lambda: sockets() <= before)
