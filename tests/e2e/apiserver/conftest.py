"""Callers of the module's server: the administrator, a user without permissions, and an anonymous client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.apiserver.calls import Caller, calling
from tests.servers import Server


@pytest.fixture
def admin(server: Server) -> Iterator[Caller]:
    with calling(server) as found:
        yield found


@pytest.fixture
def alice(server: Server) -> Iterator[Caller]:
    with calling(server, "alice-token") as found:
        yield found


@pytest.fixture
def anonymous(server: Server) -> Iterator[Caller]:
    with calling(server, "anonymous") as found:
        yield found
