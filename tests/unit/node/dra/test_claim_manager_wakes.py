"""When claims of deleted Pods are looked at again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dray.lib.clock import VirtualClock
from dray.node.dra.claim_manager import ClaimManager
from dray.node.dra.metrics import DriverMetrics
from dray.node.plugins.handler import Plugin
from dray.runtime.metrics import Metrics


class Client:
    """A driver that is connected."""

    driver, endpoint, connected = "gpu.example.com", "/dra.sock", True

    async def watch_state(self) -> None:
        """Nothing changes."""

    async def close(self) -> None:
        """Nothing is held."""


class Manager(ClaimManager[Client]):  # type: ignore[type-var]
    name, driver_kind, annotation = "dra", "DRA driver", "example.com/claims"

    def _connect(self, plugin: Plugin) -> Client:
        return Client()


async def test_a_driver_that_registers_gets_the_claims_that_waited_for_it(tmp_path: Path) -> None:
    """Claims of Pods that went while the driver was away need not wait for the next round."""
    clock = VirtualClock(lambda: asyncio.get_running_loop().create_future())
    manager = Manager(str(tmp_path / "state"), clock, DriverMetrics(Metrics()))
    rounds: asyncio.Queue[None] = asyncio.Queue()

    def known_pods() -> frozenset[str]:
        rounds.put_nowait(None)
        return frozenset()

    async with asyncio.TaskGroup() as group:
        running = group.create_task(manager.run(known_pods))  # type: ignore[arg-type]
        await asyncio.wait_for(rounds.get(), 120)
        await manager.register(Plugin("DRAPlugin", Client.driver, Client.endpoint, ("v1.DRAPlugin",), "/reg.sock"))
        await asyncio.wait_for(rounds.get(), 120)
        running.cancel()
