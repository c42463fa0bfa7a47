"""The fixtures of `pytest --dray`; imported only if the flag is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from dray.cmd.testing.cluster import Cluster, KubectlMissingError, running_cluster
from dray.cmd.testing.stack import ClusterOptions
from dray.cmd.testing.threads import EventLoopThread

ClusterFactory = Callable[..., AbstractContextManager[Cluster]]


@pytest.fixture(scope="session")
def _dray_thread() -> Iterator[EventLoopThread]:
    thread = EventLoopThread()
    yield thread
    thread.close()


@pytest.fixture(scope="session")
def dray_clusters(_dray_thread: EventLoopThread) -> ClusterFactory:
    """Return a factory for clusters of another scope; it takes the marker's options and returns a context manager."""

    def make(**options: Any) -> AbstractContextManager[Cluster]:
        return running_cluster(ClusterOptions(**options), _dray_thread)

    return make


@pytest.fixture
def cluster(request: pytest.FixtureRequest, dray_clusters: ClusterFactory) -> Iterator[Cluster]:
    """A cluster for one test: API server, controllers, scheduler and a node agent, with real sockets."""
    marker = request.node.get_closest_marker("dray")
    with dray_clusters(**(marker.kwargs if marker is not None else {})) as running:
        yield running


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skip a test that needs kubectl if it is not installed."""
    outcome: Any = yield
    if outcome.excinfo is not None and issubclass(outcome.excinfo[0], KubectlMissingError):
        outcome.force_exception(pytest.skip.Exception("needs kubectl"))
