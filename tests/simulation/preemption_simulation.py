"""Pods of several priorities that compete for few devices, with every fault, in virtual time from one seed.

Whatever happens to requests, events and processes: no device is used twice, only a Pod of higher priority takes the
place of another, and once faults have stopped nobody waits for a device that a Pod of lower priority has.
"""

from __future__ import annotations

from dray.api.document import Document, GroupVersion
from dray.client.interface import LocalRequest, unstructured
from tests.simulation.cluster_simulation import ClusterSimulation
from tests.simulation.network import FaultRates
from tests.simulation.scheduling_simulation import ACTIONS, POD_NAMES, PODS

PRIORITY_CLASSES = unstructured(
    GroupVersion("scheduling.k8s.io", "v1"), "priorityclasses", "PriorityClass", namespaced=False
)
MORE_NAMES = tuple(f"more-{number}" for number in range(9))
CREATE_SHARE = 0.5
PRIORITIES = {"low": 1, "middle": 10, "high": 100}


class PreemptionSimulation(ClusterSimulation):
    """One run."""

    def __init__(self, seed: int, *, rates: FaultRates | None = None, actions: int = ACTIONS) -> None:
        super().__init__(seed, schedulers=1, rates=rates, actions=actions)
        # Uid of a Pod -> its priority, and how many Pods were preempted.
        self.priorities: dict[str, int] = {}
        self.preempted: set[str] = set()
        # Preempted Pods for which nobody of higher priority was waiting then.
        self.in_vain: list[str] = []

    async def create_objects(self, pods_per_node: int = 110) -> None:
        for name, value in PRIORITIES.items():
            await self.user.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value})
        await super().create_objects(pods_per_node)

    def _pod(self, name: str, *entries: Document) -> Document:
        pod = super()._pod(name, *entries)
        pod["spec"]["priorityClassName"] = self._rng.choice(tuple(PRIORITIES))
        return pod

    def note(self, request: LocalRequest, answer: Document) -> None:
        super().note(request, answer)
        if request.resource == "pods" and request.verb == "delete" and request.user_agent in self.scheduler_names:
            self.rates.paths["preemption"] += 1

    async def _step(self) -> None:
        """Mostly more Pods than there are devices."""
        if self._rng.random() < CREATE_SHARE:
            entry = {"name": "gpu", "resourceClaimTemplateName": "template"}
            name = self._rng.choice(POD_NAMES + MORE_NAMES)
            await self.user.create(PODS, self._pod(name, entry))
            return
        await super()._step()

    async def check(self) -> None:
        await super().check()
        _, pods = await self.state()
        for pod in pods:
            uid = pod["metadata"]["uid"]
            self.priorities[uid] = pod["spec"].get("priority") or 0
            if uid not in self.preempted and is_preempted(pod):
                self.preempted.add(uid)
                waiting = [item for item in pods if not item["spec"].get("nodeName")]
                if not any(priority_of(item) > priority_of(pod) for item in waiting):
                    self.in_vain.append(pod["metadata"]["name"])
            assert not is_preempted(pod) or self._has_better(pod), f"{pod['metadata']['name']} was preempted for nobody"

    def _has_better(self, victim: Document) -> bool:
        """Whether a Pod of higher priority has ever been there."""
        return any(priority > priority_of(victim) for priority in self.priorities.values())

    async def check_settled(self) -> None:
        await super().check_settled()
        claims, pods = await self.state()
        alone = {
            consumer["uid"]
            for claim in claims
            if len(consumers := claim.get("status", {}).get("reservedFor") or ()) == 1
            for consumer in consumers
        }
        holders = [pod for pod in pods if pod["spec"].get("nodeName") and pod["metadata"]["uid"] in alone]
        for pod in pods:
            if pod["spec"].get("nodeName") or "shared" in str(pod["spec"]["resourceClaims"]):
                continue
            better = [item for item in holders if is_running(item) and priority_of(item) < priority_of(pod)]
            names = [item["metadata"]["name"] for item in better]
            assert not better, f"{pod['metadata']['name']} waits although {names} have devices: {pod['status']}"


def priority_of(pod: Document) -> int:
    return int(pod["spec"].get("priority") or 0)


def is_running(pod: Document) -> bool:
    return pod["status"].get("phase") not in ("Succeeded", "Failed") and not pod["metadata"].get("deletionTimestamp")


def is_preempted(pod: Document) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(item["type"] == "DisruptionTarget" and item["reason"] == "PreemptionByScheduler" for item in conditions)
