"""Devices that are tainted and untainted while Pods are bound to them, and Pods that are evicted while being bound.

Whatever happens to requests, events and processes: only Pods with devices that were tainted are evicted by the
controller, and when the faults have ended no Pod is left on a device whose taint it does not tolerate.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

from dray.api.document import Document
from dray.client.interface import LocalRequest, Patch, PatchType
from dray.client.rest import RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.device_taint_eviction.reconciler import DeviceTaintEvictionController
from dray.controllers.reconciler import ControllerContext
from dray.controllers.resource_claim.reconciler import ResourceClaimController
from dray.lib.clock import Clock
from tests.simulation import checks
from tests.simulation.cluster_simulation import DEVICES_PER_NODE, DRIVER, NODE_COUNT, SLICES, ClusterSimulation
from tests.simulation.network import FaultRates
from tests.simulation.processes import GATES
from tests.simulation.scheduling_simulation import POD_NAMES, PODS

NO_EXECUTE, NO_SCHEDULE = "NoExecute", "NoSchedule"
# Templates, and the tolerations of their claims.
TOLERATIONS: dict[str, list[Document]] = {
    "template": [],
    "tolerant": [{"operator": "Exists"}],
    "patient": [{"operator": "Exists", "tolerationSeconds": 5}],
}


def _controllers(client: RestClient, rng: random.Random, clock: Clock) -> list[Coroutine[Any, Any, Any]]:
    informers = SharedInformerFactory(client, clock, rng)
    return [
        informers.run(),
        ResourceClaimController(ControllerContext(client, informers, clock)).run(),
        DeviceTaintEvictionController(ControllerContext(client, informers, clock, gates=GATES)).run(),
    ]


class DeviceTaintSimulation(ClusterSimulation):
    """One scheduler and the controllers of claims and of device taints."""

    def __init__(self, seed: int, *, rates: FaultRates | None = None, **options: Any) -> None:
        super().__init__(seed, schedulers=1, rates=rates or FaultRates(evicted_binding=0.1), **options)
        self.controller_program = _controllers
        # Device -> effect of its taint; and the devices that ever had a NoExecute taint.
        self._effects: dict[str, str] = {}
        self._ever_tainted: set[str] = set()
        # Uid of a Pod -> devices that were ever reserved for it.
        self._devices: dict[str, set[str]] = {}

    async def create_objects(self, pods_per_node: int = 110) -> None:
        await super().create_objects(pods_per_node)
        for name in ("tolerant", "patient"):
            request = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "tolerations": TOLERATIONS[name]}}
            await self.create_template(name, request)

    async def _step(self) -> None:
        match self._rng.choice(("taint", "untaint", "create", "create", "other", "other")):
            case "taint":
                await self._set_taint(self._rng.choice((NO_EXECUTE, NO_EXECUTE, NO_SCHEDULE)))
            case "untaint":
                await self._set_taint("")
            case "create":
                template = self._rng.choice(sorted(TOLERATIONS))
                entry = {"name": "gpu", "resourceClaimTemplateName": template}
                await self.user.create(PODS, self._pod(self._rng.choice(POD_NAMES), entry))
            case _:
                await super()._step()

    async def _set_taint(self, effect: str) -> None:
        node, number = self._rng.randrange(NODE_COUNT), self._rng.randrange(DEVICES_PER_NODE)
        device = _device(node, number)
        if self._effects.get(device, "") == effect:
            return
        self._effects[device] = effect
        if effect == NO_EXECUTE:
            self._ever_tainted.add(device)
        await self._write_slice(node)

    async def _write_slice(self, node: int) -> None:
        devices: list[Document] = []
        for number in range(DEVICES_PER_NODE):
            effect = self._effects.get(_device(node, number))
            taints = [{"key": "example.com/broken", "effect": effect}] if effect else None
            devices.append({"name": f"gpu-{number}", "taints": taints})
        self.story.append(f"          taints of node-{node}: {[item['taints'] for item in devices]}")
        await self.user.patch(SLICES, f"node-{node}", "", Patch(PatchType.MERGE, {"spec": {"devices": devices}}))

    # --- What must hold. ---

    def note(self, request: LocalRequest, answer: Document) -> None:
        super().note(request, answer)
        by_controller = request.user_agent.startswith("controller")
        if (request.verb, request.resource) == ("delete", "pods") and by_controller and isinstance(request.body, dict):
            self.rates.paths["eviction"] += 1
            devices = self._devices.get(request.body["preconditions"]["uid"], set())
            if not devices & self._ever_tainted:
                text = f"{request.name} was evicted from {sorted(devices)}, which were never tainted"
                self.violation = self.violation or AssertionError(text)

    async def check(self) -> None:
        await super().check()
        for claim in (await self.state())[0]:
            for uid in checks.users_of(claim):
                self._devices.setdefault(uid, set()).update(checks.devices_of(claim))

    async def check_settled(self) -> None:
        """Every eviction has taken place; and when the taints go, so do the waits for devices without them."""
        claims, pods = await self.state()
        templates = {
            pod["metadata"]["uid"]: pod["spec"]["resourceClaims"][0].get("resourceClaimTemplateName", "template")
            for pod in pods
            if checks.is_bound(pod)
        }
        for claim in claims:
            bad = [device for device in checks.devices_of(claim) if self._effects.get(device) == NO_EXECUTE]
            left = [uid for uid in checks.users_of(claim) if templates.get(uid, "tolerant") != "tolerant"]
            assert not bad or not left, f"{claim['metadata']['name']} is used although {bad} are tainted"
        self._effects.clear()
        for node in range(NODE_COUNT):
            await self._write_slice(node)
        await asyncio.sleep(100)
        self._raise_violation()
        await super().check_settled()


def _device(node: int, number: int) -> str:
    return f"{DRIVER}/node-{node}/gpu-{number}"
