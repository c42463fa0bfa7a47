"""A server that judges nodes within seconds, and nodes with heartbeats to match."""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.kubectl.tool import Kubectl
from tests.e2e.node.conftest import end_shims
from tests.e2e.node.harness import Agent
from tests.fork_server import ForkedPopen
from tests.servers import Server, running_server

# A node renews its lease every second: only one that is dead is silent for six. Should a busy machine keep one from it
# for so long, that matters to the Pods alone that do not wait for their node, until it is heard of again.
FLAGS = (
    "--node-monitor-period=300ms",
    "--node-monitor-grace-period=6s",
    "--node-eviction-rate=10",
    "--pod-gc-quarantine=1s",
    "--feature-gates=DRADeviceTaintRules=true",
)
_NUMBERS = itertools.count(1)

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")


class Machine:
    """An agent, and the fabric's driver beside it."""

    def __init__(self, server: Server, root: Path, name: str) -> None:
        self.name = name
        self.agent = Agent(server, root, name, ("--runtime=process", "--node-lease-duration-seconds=4"))
        self.agent.start()
        arguments = (
            sys.executable,
            str(Path(__file__).parent / "fabric_driver.py"),
            f"--node-name={name}",
            f"--kubeconfig={server.kubeconfig}",
            f"--root-dir={root}",
            f"--cdi-dir={root}/cdi",
        )
        with (root / "driver.log").open("a") as log:
            self._driver = ForkedPopen(arguments, stdout=log, stderr=log)

    def kill(self) -> None:
        """As a power cut: nothing of the machine says good-bye."""
        for process in (self.agent.process, self._driver):
            assert process is not None
            if process.poll() is None:
                process.kill()
                process.wait(10)
        end_shims(self.agent)


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


@pytest.fixture
def machine(
    server: Server, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Machine]]:
    """Makes machines; the test's dead must not make the next test's cluster look unwell."""
    made: list[Machine] = []

    def make() -> Machine:
        made.append(Machine(server, tmp_path_factory.mktemp("m"), f"machine-{next(_NUMBERS)}"))
        return made[-1]

    yield make
    for item in made:
        item.kill()
        kubectl("delete", "node", item.name, "--ignore-not-found")
        process = item.agent.process
        if process is not None and process.stdout is not None:
            process.stdout.close()
