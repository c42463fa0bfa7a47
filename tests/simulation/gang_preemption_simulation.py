"""Gangs of several priorities that preempt each other for few devices, with every fault, in virtual time from one seed.

Whatever happens to requests, events and processes: no device is used twice, no Pod is preempted unless one of higher
priority waits, no gang ends with too few of its Pods placed unless others were preempted, and once faults have stopped
no gang waits for devices that Pods of lower priority have.
"""

from __future__ import annotations

from collections.abc import Mapping

from dray.api.document import Document
from tests.simulation import checks
from tests.simulation.cluster_simulation import DEVICES_PER_NODE, NODE_COUNT
from tests.simulation.gang_simulation import GANGS, GangSimulation
from tests.simulation.gang_simulation import min_count as min_count_of
from tests.simulation.preemption_simulation import (
    PRIORITIES,
    PRIORITY_CLASSES,
    is_preempted,
    is_running,
    priority_of,
)

DISRUPTION_MODES: tuple[Document, ...] = ({"single": {}}, {"all": {}})


class GangPreemptionSimulation(GangSimulation):
    """One run; there are more Pods than devices most of the time."""

    names = (*GANGS, *(f"more-{number}" for number in range(5)))
    weights = (10, 3, 8, 1, 1, 0)
    # Victims are looked for on one node first, then on all: others run between the two dry runs.
    plugin_args: Mapping[str, Mapping[str, int]] = {
        "DefaultPreemption": {"minCandidateNodesAbsolute": 1, "minCandidateNodesPercentage": 100}
    }

    async def create_objects(self, pods_per_node: int = 110) -> None:
        for name, value in PRIORITIES.items():
            await self.user.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value})
        await super().create_objects(pods_per_node)
        # Uids of preempted Pods; and names of those for which nobody of higher priority was waiting then.
        self.preempted: set[str] = set()
        self.in_vain: list[str] = []

    def _group_spec(self) -> Document:
        mode = self._rng.choice(DISRUPTION_MODES)
        return {"priorityClassName": self._rng.choice(tuple(PRIORITIES)), "disruptionMode": mode}

    def _pod(self, name: str, *entries: Document) -> Document:
        pod = super()._pod(name, *entries)
        pod["spec"]["priorityClassName"] = self._rng.choice(tuple(PRIORITIES))
        return pod

    async def check(self) -> None:
        await super().check()
        _, pods = await self.state()
        for pod in pods:
            if pod["metadata"]["uid"] in self.preempted or not is_preempted(pod):
                continue
            self.preempted.add(pod["metadata"]["uid"])
            self.rates.paths["group member preempted" if checks.group_of(pod) else "pod preempted"] += 1
            waiting = [item for item in pods if not item["spec"].get("nodeName")]
            better = [item for item in waiting if priority_of(item) > priority_of(pod)]
            if any(checks.group_of(item) for item in better):
                self.rates.paths["gang preempts"] += 1
            elif not better:
                self.in_vain.append(pod["metadata"]["name"])

    async def check_settled(self) -> None:
        await super().check_settled()
        claims, pods = await self.state()
        used = {device for claim in claims for device in checks.devices_of(claim)}
        free = NODE_COUNT * DEVICES_PER_NODE - len(used)
        holders = [pod for pod in pods if pod["spec"].get("nodeName") and is_running(pod)]
        for group, members in await self._gangs():
            needed = min_count_of(group)
            waits = [pod for pod in members if not pod["spec"].get("nodeName")]
            if len(members) < needed or len(waits) < len(members):
                continue
            lower = [pod for pod in holders if priority_of(pod) < int(group["spec"].get("priority") or 0)]
            names = [pod["metadata"]["name"] for pod in lower]
            text = f"{group['metadata']['name']} waits although {names} have devices: {group.get('status')}"
            assert free + len(lower) < needed, text
