"""A driver next to `dray up --node`: all that its author needs to see it work."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.driver.cluster import short_folder
from tests.e2e.kubectl.tool import Kubectl, needs_kubectl
from tests.fork_server import ForkedPopen
from tests.servers import Server, running_server

# `kubectl wait` learnt to wait for creation in 1.31.
pytestmark = needs_kubectl(31)
EXAMPLE = Path(__file__).parents[3] / "examples" / "env-driver"


def test_a_claim_is_prepared_by_a_driver_on_the_one_command_cluster() -> None:
    # A short path: sockets have names of at most 108 bytes.
    with short_folder() as folder:
        flags = (f"--node-root-dir={folder}", "--node-runtime=process", f"--node-cdi-spec-dirs={folder / 'cdi'}")
        with running_server(folder / "state", "--node", *flags) as server, driver_of(server, folder):
            kubectl = Kubectl(server.environment, "default")
            kubectl("wait", "--for=create", "serviceaccount/default", "--timeout=60s")
            kubectl("apply", "-f", str(EXAMPLE / "claim.yaml"))
            kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/env-user", "--timeout=60s")
            assert kubectl("logs", "env-user") == "hello world\n"


@contextmanager
def driver_of(server: Server, folder: Path) -> Iterator[None]:
    """The example driver as a process of its own, for the time of a `with` block."""
    flags = (f"--root-dir={folder}", f"--cdi-dir={folder / 'cdi'}", f"--node-name={socket.gethostname().lower()}")
    with ForkedPopen(
        [sys.executable, str(EXAMPLE / "driver.py"), *flags],
        env=server.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield
        finally:
            process.terminate()
