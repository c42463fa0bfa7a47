"""One server and one agent for each test module; a module may override `runtime` and `flags`."""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dray.api.document import GroupVersion
from dray.api.errors import AlreadyExistsError
from dray.client.interface import unstructured
from tests.containerd import Containerd, needs_containerd, running_containerd
from tests.e2e.kubectl.tool import Kubectl
from tests.e2e.node.harness import Agent, Cluster, busybox_root, client_of
from tests.mounts import unmount_below
from tests.servers import Server

NAMESPACES = unstructured(GroupVersion("", "v1"), "namespaces", "Namespace", namespaced=False)
ACCOUNTS = unstructured(GroupVersion("", "v1"), "serviceaccounts", "ServiceAccount")
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A busybox root file system."""
    return busybox_root(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def containerd(images: Path) -> Iterator[Containerd]:
    """A containerd with busybox, which the agents of this process share."""
    with running_containerd(images) as running:
        yield running


@pytest.fixture(scope="module")
def runtime() -> str:
    """What the agent runs containers with, unless the module has `RUNTIMES`."""
    return "process"


# For `RUNTIMES` of a module whose tests run with each.
BOTH = ("process", pytest.param("cri", marks=needs_containerd))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    runtimes = getattr(metafunc.module, "RUNTIMES", ())
    if "runtime" in metafunc.fixturenames and runtimes:
        metafunc.parametrize("runtime", runtimes, scope="module")


@pytest.fixture(scope="module")
def flags() -> tuple[str, ...]:
    """Further flags of the agent."""
    return ()


@pytest.fixture(scope="module")
def agent(
    runtime: str,
    flags: tuple[str, ...],
    server: Server,
    images: Path,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Agent]:
    """A running agent; the containers it leaves behind are ended with it."""
    own = (f"--runtime={runtime}", *flags)
    if runtime == "cri":
        containerd: Containerd = request.getfixturevalue("containerd")
        own = (f"--container-runtime-endpoint={containerd.endpoint}", "--pod-network=host", *own)
    running = Agent(server, tmp_path_factory.mktemp("n"), f"node-{next(_NUMBERS)}", own)
    running.start()
    yield running
    running.stop()
    end_shims(running)
    # Pods that are still there have parts of volumes mounted.
    unmount_below(running.root)


def end_shims(agent: Agent) -> None:
    """End the containers that an agent left running."""
    for pid in agent.shims():
        # It may have ended by itself meanwhile.
        with contextlib.suppress(OSError, IndexError):
            _end(agent, pid)


def _end(agent: Agent, pid: int) -> None:
    folder = Path(re.sub(r"/job\.json\0?$", "", Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[-2]))
    if folder.is_relative_to(agent.root):
        (folder / "control").write_text("SIGKILL\n")


@pytest.fixture
async def cluster(server: Server, agent: Agent, request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """A namespace of the test's own."""
    client = client_of(server)
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[-50:].strip("-") + f"-{next(_NUMBERS)}"
    await client.create(NAMESPACES, {"metadata": {"name": name}})
    # Pods need it; the controller that makes it may be a moment behind.
    with contextlib.suppress(AlreadyExistsError):
        await client.create(ACCOUNTS, {"metadata": {"name": "default"}}, name)
    yield Cluster(client, agent.name, name)
    await client.close()


@pytest.fixture
def kubectl(server: Server, cluster: Cluster) -> Kubectl:
    """kubectl in the test's namespace."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    return Kubectl(server.environment, cluster.namespace)
