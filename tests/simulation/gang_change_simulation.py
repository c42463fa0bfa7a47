"""Gangs whose devices need time before Pods are bound, and that change meanwhile, in virtual time from one seed.

Drivers report that devices are ready after a while, or that they are broken. Users delete and create Pods of gangs,
some with finalizers, and change how many Pods a gang needs. The promises are those of the other gangs.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from dray.api.document import Document
from dray.api.errors import APIError
from dray.client.interface import Patch, PatchType, WriteOptions
from tests.simulation import checks
from tests.simulation.cluster_simulation import CLAIMS, NODE_COUNT, SLICES
from tests.simulation.gang_simulation import ENTRY, GANGS, POD_GROUPS, GangLossSimulation, min_count
from tests.simulation.scheduling_simulation import PODS, TEAM

READY, BROKEN = "ready", "broken"
CONDITIONS: Document = {"bindsToNode": True, "bindingConditions": [READY], "bindingFailureConditions": [BROKEN]}
FINALIZER = "example.com/backup"
# How often the driver looks at claims, and how likely a device is ready or broken then, and a finalizer is removed.
DRIVER_SECONDS = 0.25
READY_RATE, BROKEN_RATE, FINALIZED_RATE = 0.1, 0.005, 0.2
_STATUS = WriteOptions(subresource="status")


class GangChangeSimulation(GangLossSimulation):
    """One run with one scheduler."""

    # Few and small enough for most of them to be placed.
    names = GANGS[:3]
    sizes = (2, 3)
    weights = (5, 1, 1, 1, 1, 9)
    # How often a step adds a Pod to a gang, or changes its minCount, instead of what other simulations do.
    changes: Mapping[str, float] = {"add member": 0.45, "minCount": 0.08}

    async def create_objects(self, pods_per_node: int = 110) -> None:
        await super().create_objects(pods_per_node)
        self._driver_rng = self._fork()
        for number in range(NODE_COUNT):
            resource_slice = await self.user.get(SLICES, f"node-{number}")
            for device in resource_slice["spec"]["devices"]:
                device.update(CONDITIONS)
            await self.user.update(SLICES, resource_slice)

    # --- Users. ---

    async def _step(self) -> None:
        drawn = self._rng.random()
        for change, rate in self.changes.items():
            drawn -= rate
            if drawn < 0:
                await self._change(change, self._rng.choice(self.names))
                return
        await super()._step()

    async def _change(self, change: str, name: str) -> None:
        group = await self.user.get(POD_GROUPS, name, TEAM)
        if change == "minCount":
            needed = self._rng.choice(self.sizes)
            body = {"spec": {"schedulingPolicy": {"gang": {"minCount": needed}}}}
            await self.user.patch(POD_GROUPS, name, TEAM, Patch(PatchType.MERGE, body))
            self.story.append(f"          user: {name} needs {needed} instead of {min_count(group)}")
            return
        pod = self._pod(f"{name}-{self._rng.randrange(max(self.sizes))}", ENTRY)
        pod["spec"]["schedulingGroup"] = {"podGroupName": name}
        if self._rng.random() < FINALIZED_RATE:
            pod["metadata"]["finalizers"] = [FINALIZER]
        await self.user.create(PODS, pod)

    # --- Drivers, and who removes finalizers. ---

    async def _kubelet(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(super()._kubelet())
            group.create_task(self._drivers(self._driver_rng))

    async def _drivers(self, rng: random.Random) -> None:
        while True:
            await asyncio.sleep(DRIVER_SECONDS)
            claims, pods = await self.state()
            for claim in claims:
                drawn = rng.random()
                if drawn < READY_RATE + BROKEN_RATE and checks.devices_of(claim):
                    is_broken = self.rates.on and drawn < BROKEN_RATE
                    await self._report(claim, BROKEN if is_broken else READY)
            for pod in pods:
                is_held = FINALIZER in pod["metadata"].get("finalizers", ())
                if is_held and pod["metadata"].get("deletionTimestamp") and rng.random() < FINALIZED_RATE:
                    await self._try(self.user.patch(PODS, pod["metadata"]["name"], TEAM, _without_finalizers(pod)))

    async def _report(self, claim: Document, condition: str) -> None:
        """Report a condition of the devices, unless there is one or the allocation has changed."""
        if claim["status"].get("devices"):
            return
        entry = {
            "type": condition,
            "status": "True",
            "reason": "Driver",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        devices = [
            {key: result[key] for key in ("driver", "pool", "device")} | {"conditions": [entry]}
            for result in claim["status"]["allocation"]["devices"]["results"]
        ]
        body = {
            "metadata": {key: claim["metadata"][key] for key in ("uid", "resourceVersion")},
            "status": {"devices": devices},
        }
        patch = Patch(PatchType.MERGE, body)
        await self._try(self.user.patch(CLAIMS, claim["metadata"]["name"], TEAM, patch, _STATUS))
        self.rates.paths[condition] += 1

    async def _try(self, write: Any) -> None:
        try:
            await write
        except APIError as refusal:
            self.story.append(f"          driver: {refusal}")


def _without_finalizers(pod: Document) -> Patch:
    return Patch(PatchType.MERGE, {"metadata": {"uid": pod["metadata"]["uid"], "finalizers": []}})
