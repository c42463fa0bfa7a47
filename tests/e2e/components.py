"""`dray scheduler` and `dray controller-manager` as processes beside a server."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fork_server import ForkedPopen
from tests.servers import READY_SECONDS_MAX, STOP_SECONDS_MAX, Server


@contextmanager
def component(server: Server, command: str, log: Path, *flags: str) -> Iterator[str]:
    """The component with the identity that the server made for it; gives the address of its health page."""
    arguments = [
        *(sys.executable, "-m", "dray", command, "--port=0"),
        f"--kubeconfig={server.data_dir / command}.kubeconfig",
        *flags,
    ]
    with log.open("a") as errors:
        process = ForkedPopen(arguments, stdout=subprocess.PIPE, stderr=errors)
    assert process.stdout is not None
    try:
        readable, _, _ = select.select([process.stdout], [], [], READY_SECONDS_MAX)
        line = process.stdout.readline() if readable else ""
        assert line.startswith("ready"), log.read_text()
        yield line.split()[-1]
    finally:
        process.terminate()
        process.wait(STOP_SECONDS_MAX)
        process.stdout.close()
