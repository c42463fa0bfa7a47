"""What the tests of charts have in common; each module starts a server of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.apiserver.calls import Caller, calling
from tests.servers import Server


@pytest.fixture
def caller(server: Server) -> Iterator[Caller]:
    with calling(server) as caller:
        yield caller
