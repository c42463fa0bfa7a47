"""The node's side as a process: `node_process.py FOLDER`, controlled by lines of JSON, which it answers.

Like an agent it keeps the Pods it admitted in a file and admits them again when it starts; all containers run on.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from dray.node.devices.device_manager import DeviceManager, NodePods
from dray.node.resource_manager import ResourceError
from dray.node.topology.topology_manager import TopologyManager
from dray.runtime.files import replace_file
from dray.runtime.metrics import Metrics
from dray.runtime.system import SystemClock
from tests.unit.node.devices.builders import Pods, asking


class Agent:
    def __init__(self, folder: str) -> None:
        self.path = Path(folder).with_suffix(".pods")
        amounts: dict[str, int] = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.amounts = amounts
        self.pods = Pods(*(asking(uid, amount) for uid, amount in amounts.items()))
        running = [(uid, "main") for uid in amounts]
        pods = NodePods(self.pods, settled=running)
        self.devices = DeviceManager(folder, pods, SystemClock(), Metrics())
        self.manager = TopologyManager(self.devices)

    async def run(self) -> None:
        serving = asyncio.create_task(self.devices.run())
        await self.devices.wait_started()
        again = {uid: await self.manager.admit(item) for uid, item in self.pods.items.items()}
        print(json.dumps({"rejected": [uid for uid, rejection in again.items() if rejection]}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            command = json.loads(line)
            answer = await getattr(self, command.pop("do"))(**command)
            print(json.dumps(answer), flush=True)
        serving.cancel()

    async def admit(self, uid: str, amount: int) -> Any:
        item = self.pods.add(asking(uid, amount))
        rejection = await self.manager.admit(item)
        if rejection is not None:
            self.pods.remove(uid)
            return rejection.message
        self.save(uid, amount)
        return None

    async def start(self, uid: str) -> Any:
        item = self.pods.items[uid]
        try:
            options = self.manager.container_options(item, "main")
            await self.manager.pre_start(item, "main")
        except ResourceError as error:
            return error.message
        return dict(options.envs)

    async def remove(self, uid: str) -> None:
        item = self.pods.items[uid]
        self.amounts.pop(uid)
        self.pods.remove(uid)
        replace_file(str(self.path), json.dumps(self.amounts).encode())
        await self.manager.release(item)

    async def state(self) -> Any:
        found = self.manager.node_resources()
        held = {uid: [item.id for item in self.devices.container_devices(uid, "main")] for uid in self.pods.items}
        return {"held": held, "allocatable": found.allocatable, "capacity": found.capacity}

    def save(self, uid: str, amount: int) -> None:
        self.amounts[uid] = amount
        replace_file(str(self.path), json.dumps(self.amounts).encode())


if __name__ == "__main__":
    asyncio.run(Agent(sys.argv[1]).run())
