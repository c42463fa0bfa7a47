"""Real processes on loopback: one server for each test module, unless a test starts its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import Server, running_server

_NUMBERS = itertools.count(1)
_HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Real processes share the machine with others: a second try, which the results name, and never a third.

    `-p no:rerunfailures` leaves it out, to look for tests that need it.
    """
    if not config.pluginmanager.hasplugin("rerunfailures"):
        return
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`dray up` on a free port with a fresh data directory, and two static tokens (see `tests.servers.TOKENS`)."""
    with running_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def namespace_name() -> str:
    """A name that no other test of the process uses."""
    return f"test-{next(_NUMBERS)}"
