"""Real processes on loopback: one server for each test module, unless a test starts its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.servers import Server, running_server

_NUMBERS = itertools.count(1)


# Tests that get a second try, by the beginning of their node id, each with the reason. Keep this empty or nearly so:
# every entry is a fault in a test, in Dray or in what it runs with that is still to be fixed.
SECOND_TRY: dict[str, str] = {
    "tests/e2e/store/test_etcd_kill.py": "etcd 3.5.1, the only one that PyPI has, may replay its log with other "
    "revisions when it was killed: its consistent index was not saved together with the data before 3.5.3",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Retry the listed tests once; the summary names those that needed it. `-p no:rerunfailures` turns this off."""
    if not config.pluginmanager.hasplugin("rerunfailures"):
        return
    for item in items:
        if item.nodeid.startswith(tuple(SECOND_TRY)):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`dray up` on a free port with a fresh data directory, and two static tokens (see `tests.servers.TOKENS`)."""
    with running_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def namespace_name() -> str:
    """Return a name that no other test in this process uses."""
    return f"test-{next(_NUMBERS)}"
