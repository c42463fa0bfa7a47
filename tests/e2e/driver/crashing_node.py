"""A node process that can be made to die at any step; obeys lines on its input and answers each with a line."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from dray.api.document import UID
from dray.client.credentials import load_access
from dray.client.http import http_client
from dray.node.dra.dra_manager import Prepared
from dray.node.dra.driver_client import DriverClient
from tests.e2e.driver.cluster import CLOCK, Node, node_running, pod, until
from tests.e2e.driver.crashes import Crashes


async def obey(node: Node, line: str) -> str:
    words = line.split()
    await until(node.drivers)
    if words[0] == "prepare":
        outcome = await node.claims.prepare_claims(pod("p", "a"))
        return "ok" if isinstance(outcome, Prepared) else outcome.message
    if words[0] == "unprepare":
        failure = await node.claims.unprepare_claims(UID("uid-p"))
        return "ok" if failure is None else failure.message
    await node.claims.reconcile(())
    return "ok"


def crash_after_the_call(name: str, crashes: Crashes) -> None:
    call = getattr(DriverClient, name)

    async def wrapped(self: DriverClient, claims: object) -> object:
        crashes.reached(f"before {name}")
        answer = await call(self, claims)
        crashes.reached(f"after {name}")
        return answer

    setattr(DriverClient, name, wrapped)


async def main(folder: Path, root: Path, kubeconfig: str) -> None:
    crashes = Crashes(folder / "crash")
    crashes.install()
    for name in ("prepare", "unprepare"):
        crash_after_the_call(name, crashes)
    client = http_client(load_access({}, path=kubeconfig), CLOCK)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with node_running(root, client) as node:
        node.plugins.rescan()
        while line := (await reader.readline()).decode().strip():
            print(await obey(node, line), flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
