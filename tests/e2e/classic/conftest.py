"""A server that judges nodes within seconds, and machines for each module."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.classic.machines import Machine, Program, controller
from tests.e2e.kubectl.tool import Kubectl
from tests.e2e.node.harness import busybox_root
from tests.servers import Server, running_server

# A node renews its lease every second: only one that is dead is silent for six. Should a busy machine keep one from it
# for so long, its Pods have five minutes until that matters.
FLAGS = (
    "--node-monitor-period=300ms",
    "--node-monitor-grace-period=6s",
    "--node-eviction-rate=10",
    "--pod-gc-quarantine=1s",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them need kubectl."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skipif(not shutil.which("kubectl"), reason="needs kubectl"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server in a hurry."""
    with running_server(tmp_path_factory.mktemp("server"), *FLAGS) as running:
        yield running


@pytest.fixture
def kubectl(server: Server, namespace_name: str) -> Kubectl:
    """kubectl in a namespace of the test's own."""
    found = Kubectl(server.environment, namespace_name)
    found("create", "namespace", namespace_name)
    return found


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A busybox root file system."""
    return busybox_root(tmp_path_factory.getbasetemp())


@pytest.fixture
def machine(
    server: Server, kubectl: Kubectl, image: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Machine]]:
    """Makes machines; they end with the test, and so do their Nodes."""
    made: list[Machine] = []

    def make(*flags: str) -> Machine:
        made.append(Machine(server, tmp_path_factory.mktemp("m"), *flags))
        return made[-1]

    yield make
    for item in made:
        item.power_cut()
        kubectl("delete", "node", item.name, "--ignore-not-found")


@pytest.fixture
def run_controller(server: Server) -> Iterator[Callable[[str], Program]]:
    """Starts examples' controllers; they end with the test."""
    made: list[Program] = []

    def make(name: str) -> Program:
        made.append(controller(server, name))
        return made[-1]

    yield make
    for item in made:
        item.kill()
