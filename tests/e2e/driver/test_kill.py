"""Power cuts: a driver process and a node process are killed at every step, and nothing is lost or left behind."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from dray.api.document import UID
from dray.node.dra.checkpoint import decode
from dray.node.dra.dra_manager import Prepared
from tests.e2e.driver.cluster import (
    NODE,
    Cluster,
    Node,
    driver_running,
    identity_of,
    is_registered,
    pod,
    result,
    until,
)
from tests.e2e.driver.test_sdk import TestDriver
from tests.fork_server import ForkedPopen

HERE = Path(__file__).parent
TOP = HERE.parents[2]


def spawn(script: str, *arguments: str, pipes: int | None = None) -> ForkedPopen:
    environment = os.environ | {"PYTHONPATH": str(TOP), "GRPC_VERBOSITY": "NONE"}
    return ForkedPopen([sys.executable, HERE / script, *arguments], env=environment, stdin=pipes, stdout=pipes)


def end(process: ForkedPopen | None) -> None:
    assert process is not None
    with process:
        process.kill()


class DriverProcess:
    """The driver in a process of its own; started again whenever it has died."""

    def __init__(self, cluster: Cluster, node: Node) -> None:
        self.folder = cluster.folder / "driver"
        self.folder.mkdir()
        self.node = node
        self.arguments = [
            str(self.folder),
            "--node-name",
            NODE,
            "--kubeconfig",
            str(cluster.local.running.kubeconfig),
            "--root-dir",
            str(node.root),
            "--cdi-dir",
            str(node.root / "cdi"),
        ]
        self.process: ForkedPopen | None = None

    async def start(self) -> None:
        """Start it and wait until this very process is registered and connected."""
        # Made after the service's.
        socket = self.node.root / "plugins_registry/test.example.com-reg.sock"
        before = identity_of(socket)
        self.process = spawn("crashing_driver.py", *self.arguments)
        await until(lambda: is_registered(self.node.plugins, socket, before))
        await until(lambda: self.node.claims._drivers.usable("test.example.com"))

    async def died(self) -> None:
        assert self.process is not None
        with self.process as process:
            assert await asyncio.to_thread(process.wait, 30) == -9
        await self.start()

    def crash_at(self, place: str) -> None:
        (self.folder / "crash").write_text(place)

    def crash_pending(self) -> bool:
        return (self.folder / "crash").exists()

    def hardware(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "hardware").iterdir())

    def record(self) -> dict[str, str]:
        path = self.node.root / "plugins/test.example.com/prepared.json"
        return {item["uid"]: item["phase"] for item in orjson.loads(path.read_bytes())["claims"]}

    def cdi_files(self) -> int:
        return len(list((self.node.root / "cdi").glob("*.json")))


@pytest.mark.behaviour("SP-117")
async def test_a_driver_killed_at_every_step_of_prepare_and_unprepare(cluster: Cluster, node: Node) -> None:
    made = await cluster.claim("a", result("x"), pods=["p"])
    uid = made["metadata"]["uid"]
    driver = DriverProcess(cluster, node)
    await driver.start()
    # The record is written (3 steps), the driver works, the CDI file is written (3), and the record again (3).
    prepares = [*(f"call {number}" for number in range(1, 10)), "begin prepare", "end prepare", "answer prepare"]
    # The record is written (3), the driver works, the CDI file is removed (2), and the record written again (3).
    unprepares = [*(f"call {number}" for number in range(1, 9)), "begin unprepare", "end unprepare", "answer unprepare"]
    user = pod("p", "a")
    try:
        for place, undo in zip(prepares, [*unprepares, "call 9"], strict=True):
            driver.crash_at(place)
            assert not isinstance(await node.claims.prepare_claims(user), Prepared), place
            await driver.died()
            assert isinstance(await node.claims.prepare_claims(user), Prepared), place
            assert (driver.hardware(), driver.cdi_files(), driver.record()) == ([uid], 1, {uid: "prepared"}), place
            driver.crash_at(undo)
            failure = await node.claims.unprepare_claims(UID("uid-p"))
            if undo == "call 9":
                # There is no ninth step: the list above is complete.
                assert failure is None
                assert driver.crash_pending()
                break
            assert failure is not None, undo
            await driver.died()
            assert await node.claims.unprepare_claims(UID("uid-p")) is None, undo
            assert (driver.hardware(), driver.cdi_files(), driver.record()) == ([], 0, {}), undo
        (driver.folder / "crash").unlink()
        for place in ("begin prepare", "end prepare", "call 6", "answer prepare"):
            # The Pod is deleted before the driver is back: what it may have done is undone.
            driver.crash_at(place)
            assert not isinstance(await node.claims.prepare_claims(user), Prepared), place
            await driver.died()
            assert await node.claims.unprepare_claims(UID("uid-p")) is None, place
            assert (driver.hardware(), driver.cdi_files(), driver.record()) == ([], 0, {}), place
    finally:
        end(driver.process)


class NodeProcess:
    """The node agent's claims in a process of their own."""

    def __init__(self, cluster: Cluster) -> None:
        self.folder = cluster.folder / "node"
        self.folder.mkdir()
        self.root = cluster.folder / "kubelet"
        self.kubeconfig = str(cluster.local.running.kubeconfig)
        self.process: ForkedPopen | None = None

    async def start(self) -> None:
        arguments = (str(self.folder), str(self.root), self.kubeconfig)
        self.process = spawn("crashing_node.py", *arguments, pipes=subprocess.PIPE)

    async def ask(self, line: str) -> str:
        """The answer, or nothing when the process died of the question."""
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return (await asyncio.to_thread(self.process.stdout.readline)).strip()

    async def crash(self, place: str, line: str) -> None:
        """Ask something it dies of, and start it again."""
        (self.folder / "crash").write_text(place)
        answer = await self.ask(line)
        assert answer == "", f"{place}: {answer}"
        assert self.process is not None
        with self.process as process:
            assert await asyncio.to_thread(process.wait, 30) == -9
        await self.start()

    def claims(self) -> list[str]:
        path = self.root / "dra_manager_state"
        return [info.key.name for info in decode(path.read_bytes())] if path.exists() else []


@pytest.mark.behaviour("SP-111", "SP-118", "SP-120")
async def test_a_node_agent_killed_at_every_step_of_prepare_and_unprepare(cluster: Cluster) -> None:
    made = await cluster.claim("a", result("x"), pods=["p"])
    uid = made["metadata"]["uid"]
    process = NodeProcess(cluster)
    await process.start()
    driver = TestDriver()
    held = cluster.folder / "kubelet/plugins/test.example.com/prepared.json"

    def driver_holds() -> list[str]:
        return [item["uid"] for item in orjson.loads(held.read_bytes())["claims"]] if held.exists() else []

    # The checkpoint is written (5 steps), the driver is called, the checkpoint is written again (5).
    prepares = [*(f"call {number}" for number in range(1, 11)), "before prepare", "after prepare"]
    # The claim is in the checkpoint: the driver is called, and the checkpoint is written (5).
    unprepares = ["before unprepare", "after unprepare", *(f"call {number}" for number in range(1, 6))]
    try:
        async with _driver_for(process, driver, cluster):
            for prepare, unprepare in zip(prepares, itertools.cycle(unprepares), strict=False):
                await process.crash(prepare, "prepare")
                # Whatever the driver holds is in the checkpoint, so it cannot be lost.
                assert set(driver_holds()) <= {uid}
                assert not driver_holds() or process.claims() == ["a"], prepare
                # The Pod is still there: it is prepared.
                assert await process.ask("prepare") == "ok", prepare
                assert (driver_holds(), process.claims()) == ([uid], ["a"])
                # It goes away, and the agent dies while it is cleaning up; the next one finishes that.
                await process.crash(unprepare, "unprepare")
                assert not driver_holds() or process.claims() == ["a"], unprepare
                assert await process.ask("reconcile") == "ok", unprepare
                assert (driver_holds(), process.claims()) == ([], []), unprepare
            for prepare in ("call 5", "before prepare", "after prepare"):
                # The Pod vanishes while the agent is down.
                await process.crash(prepare, "prepare")
                assert await process.ask("reconcile") == "ok"
                assert (driver_holds(), process.claims()) == ([], []), prepare
            (process.folder / "crash").write_text("call 11")
            assert await process.ask("prepare") == "ok"
            assert (process.folder / "crash").exists()
    finally:
        end(process.process)
    # However often the agent asked, a claim that was prepared was not prepared again.
    assert driver.notes.count("prepare a") == driver.notes.count("unprepare a x") + 1


@asynccontextmanager
async def _driver_for(process: NodeProcess, driver: TestDriver, cluster: Cluster) -> AsyncIterator[None]:
    registry = process.root / "plugins_registry"
    await until(registry.exists)

    class Elsewhere:
        """The node is in the other process: nothing here to wake."""

        root, client = process.root, cluster.client

        class plugins:  # noqa: N801 - stands for the attribute
            @staticmethod
            def rescan() -> None:
                pass

    async with driver_running(driver, Elsewhere()):  # type: ignore[arg-type]
        yield
