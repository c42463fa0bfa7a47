"""Gangs that compete for few devices, with every fault, in virtual time from one seed.

Whatever happens to requests, events and processes: no device is used twice, no gang ends with some of its Pods placed
and too few of them, unless it has lost others while they were bound, and once faults have stopped no gang waits for
devices that are free.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Container, Coroutine, Mapping, Sequence
from typing import Any

from dray.api.document import Document, GroupVersion, NamespacedName
from dray.api.errors import APIError
from dray.api.features import FeatureGates
from dray.api.pod_groups import min_count as known_min_count
from dray.client.interface import LocalRequest, unstructured
from dray.client.rest import RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.pod_group_protection import PodGroupProtectionController
from dray.controllers.reconciler import ControllerContext
from dray.controllers.resource_claim.reconciler import ResourceClaimController
from dray.lib.clock import Clock
from tests.simulation import checks
from tests.simulation.cluster_simulation import DEVICES_PER_NODE, NODE_COUNT, ClusterSimulation
from tests.simulation.network import FaultRates
from tests.simulation.preemption_simulation import is_preempted
from tests.simulation.processes import SchedulerProgram
from tests.simulation.scheduling_simulation import ACTIONS, PODS, TEAM

POD_GROUPS = unstructured(GroupVersion("scheduling.k8s.io", "v1beta1"), "podgroups", "PodGroup")
GATES = FeatureGates.parse(
    "DRADeviceTaintRules=false,DRAControlPlaneController=false,GenericWorkload=true,DRAWorkloadResourceClaims=true"
)
GANGS = tuple(f"gang-{number}" for number in range(5))
# Two gangs of these sizes rarely fit on the six devices.
SIZES = (2, 3, 4, 5)
ENTRY: Document = {"name": "gpu", "resourceClaimTemplateName": "template"}


def _controllers(client: RestClient, rng: random.Random, clock: Clock) -> list[Coroutine[Any, Any, Any]]:
    informers = SharedInformerFactory(client, clock, rng)
    context = ControllerContext(client, informers, clock, gates=GATES)
    controllers = (ResourceClaimController(context), PodGroupProtectionController(context))
    return [informers.run(), *(controller.run() for controller in controllers)]


class GangSimulation(ClusterSimulation):
    """One run; with two schedulers, each gang has one of them."""

    # Arguments of the scheduler's plugins.
    plugin_args: Mapping[str, Mapping[str, int]] = {}

    def __init__(
        self, seed: int, *, schedulers: int = 1, rates: FaultRates | None = None, actions: int = ACTIONS
    ) -> None:
        # Two schedulers without a server that refuses to allocate a device twice would find that out too late.
        super().__init__(seed, schedulers=schedulers, exclusive=schedulers > 1, rates=rates, actions=actions)
        self.gates = GATES
        self.programs = [SchedulerProgram(name, GATES, self.plugin_args) for name in self.scheduler_names]
        self.controller_program = _controllers
        # By the group's uid.
        self._losses: dict[str, GangLosses] = defaultdict(GangLosses)

    def note(self, request: LocalRequest, answer: Document) -> None:
        super().note(request, answer)
        if request.verb == "create" and request.subresource == "binding":
            self.rates.paths["binding"] += 1

    sizes: Sequence[int] = SIZES
    # The names of gangs, and how often a gang is created or deleted, a Pod is, a process crashes, and a gang loses one.
    names = GANGS
    weights = (9, 6, 2, 2, 1, 0)

    async def _step(self) -> None:
        name = self._rng.choice(self.names)
        actions = ("gang", "delete gang", "alone", "delete", "crash", "delete member")
        match self._rng.choices(actions, self.weights)[0]:
            case "gang":
                await self._create_gang(name)
            case "delete gang":
                await self._delete_gang(name)
            case "alone":
                await self.user.create(PODS, self._pod(f"alone-{name}", ENTRY))
            case "delete":
                await self.user.delete(PODS, f"alone-{name}", TEAM)
            case "delete member":
                await self.user.delete(PODS, f"{name}-{self._rng.randrange(min(self.sizes))}", TEAM)
            case _:
                if self.rates.crash:
                    self._rng.choice(self.processes).crash()

    async def _create_gang(self, name: str) -> None:
        size, scheduler = self._rng.choice(self.sizes), self._rng.choice(self.scheduler_names)
        spec: Document = {"schedulingPolicy": {"gang": {"minCount": size}}} | self._group_spec()
        await self.user.create(POD_GROUPS, {"metadata": {"name": name, "namespace": TEAM}, "spec": spec})
        for number in range(size):
            pod = self._pod(f"{name}-{number}", ENTRY)
            pod["spec"] |= {"schedulerName": scheduler, "schedulingGroup": {"podGroupName": name}}
            if "priorityClassName" in spec:
                pod["spec"]["priorityClassName"] = spec["priorityClassName"]
            await self.user.create(PODS, pod)
            await asyncio.sleep(self._rng.uniform(0.0, 0.2))

    def _group_spec(self) -> Document:
        """Return further fields of a group."""
        return {}

    async def _delete_gang(self, name: str) -> None:
        await self.user.delete(POD_GROUPS, name, TEAM)
        for pod in (await self.user.list(PODS, TEAM)).items:
            if checks.group_of(pod) == name:
                try:
                    await self.user.delete(PODS, pod["metadata"]["name"], TEAM)
                except APIError as refusal:
                    self.story.append(f"          user: {refusal}")

    # --- Checks. ---

    async def _gangs(self) -> list[tuple[Document, list[Document]]]:
        """The groups that are not being deleted, with their unfinished Pods."""
        _, pods = await self.state()
        groups = (await self._eyes.list(POD_GROUPS, TEAM)).items
        return [
            (group, [pod for pod in pods if checks.group_of(pod) == group["metadata"]["name"]])
            for group in groups
            if not group["metadata"].get("deletionTimestamp")
        ]

    async def check(self) -> None:
        await super().check()
        claims, _ = await self.state()
        users = {user for claim in claims if checks.devices_of(claim) for user in checks.users_of(claim)}
        known = self._pods_known_to_schedulers()
        for group, pods in await self._gangs():
            held = {uid_of(pod) for pod in pods if pod["spec"].get("nodeName") or uid_of(pod) in users}
            left = {uid_of(pod) for pod in pods if not is_lost(pod)}
            losses = self._losses[uid_of(group)]
            losses.observe(self._needed_by_schedulers(group), held, left, known)
            alone = [pod for pod in _placed(pods) if not losses.may_be_bound(uid_of(pod))]
            assert not alone, f"{group['metadata']['name']}: {_names(alone)} bound without enough others"

    def _needed_by_schedulers(self, group: Document) -> int:
        """The least minCount that a scheduler believes in, perhaps that of a deleted group with the same name.

        Their watches may be behind, and a Pod does not say which of the groups it belongs to.
        """
        key = NamespacedName(TEAM, group["metadata"]["name"])
        schedulers = [program.current for program in self.programs if program.current is not None]
        known = (scheduler.handle.pod_groups.get(key) for scheduler in schedulers)
        return min([min_count(group), *(known_min_count(item) for item in known if item is not None)])

    def _pods_known_to_schedulers(self) -> set[str]:
        """The uids of Pods that exist as far as the schedulers know; their watches may be behind."""
        schedulers = [program.current for program in self.programs if program.current is not None]
        known = (pod.metadata for scheduler in schedulers for pod in scheduler._pods.lister.list())
        return {metadata.uid or "" for metadata in known if metadata.deletion_timestamp is None}

    async def check_settled(self) -> None:
        claims, pods = await self.state()
        used = {device for claim in claims for device in checks.devices_of(claim)}
        free = NODE_COUNT * DEVICES_PER_NODE - len(used)
        for group, members in await self._gangs():
            name, placed = group["metadata"]["name"], _placed(members)
            if len(placed) < min_count(group):
                excused = self._losses[uid_of(group)].excused
                half = [pod for pod in placed if uid_of(pod) not in excused]
                assert not half, f"{name} is half placed: {_names(half)}"
            if not placed and len(members) >= min_count(group):
                text = f"{name} waits although {free} devices are free: {group.get('status')}"
                assert free < min_count(group), text
                held = [claim for claim in claims if _owner(claim) in _names(members) and checks.devices_of(claim)]
                assert not held, f"{name} waits and holds devices: {group.get('status')}"
            if len(placed) >= min_count(group):
                self.rates.paths["gang"] += 1
                status = group.get("status", {}).get("conditions") or [{}]
                assert status[0].get("status") == "True", f"{name} runs, but says {status}"
        checks.everything_is_settled(claims, pods, NODE_COUNT * DEVICES_PER_NODE)
        checks.running_pods_are_reserved(self.running, claims)
        checks.bound_pods_run(self.running, claims, pods)
        for program in self.programs:
            assert program.current is not None
            checks.scheduler_agrees(program.current, claims)


class GangLossSimulation(GangSimulation):
    """One run in which users also delete single Pods of gangs: waiting ones, and while or after they are bound."""

    weights = (9, 3, 2, 2, 1, 9)


class GangLosses:
    """Decides which Pods of a gang may stay, or may still be bound, although the gang has lost too many others.

    None of the Pods is bound before enough of them have devices. From then on they are being bound, each until it has a
    node or has lost its devices, and this goes on when a member is preempted or deleted meanwhile. A member that is
    lost counts until its scheduler knows. The same holds when the gang needs more Pods than before.
    """

    def __init__(self) -> None:
        self._needed = 0
        # Uids of the members that are neither preempted nor deleted.
        self._left: set[str] = set()
        # Uids of those that are bound or being bound.
        self._binding: set[str] = set()
        # Uids of those that were bound or being bound when a member was lost, or when more were needed, and have not
        # lost their devices since.
        self.excused: set[str] = set()
        # Uids of lost members that the scheduler believes to exist, and perhaps to have devices.
        self._unnoticed: set[str] = set()

    def observe(self, needed: int, held: set[str], left: set[str], known: Container[str] = ()) -> None:
        """Record a change, given the members that have a node or devices, and those that are not lost.

        `known` are the Pods that the scheduler believes to exist.
        """
        lost = self._left - left
        self._unnoticed = {uid for uid in self._unnoticed | lost if uid in known}
        self._left = left
        if lost or needed > self._needed:
            self.excused |= self._binding
        self._needed = needed
        counted = held | self._unnoticed
        self._binding = counted if len(counted) >= needed else self._binding & held
        if self._binding & self._unnoticed:
            self.excused |= self._binding
        self.excused &= held

    def may_be_bound(self, uid: str) -> bool:
        """Whether enough others had devices when this Pod got its own, or later."""
        return uid in self._binding or uid in self.excused


def is_lost(pod: Document) -> bool:
    """Whether the Pod is preempted or being deleted."""
    return is_preempted(pod) or "deletionTimestamp" in pod["metadata"]


def uid_of(document: Document) -> str:
    return str(document["metadata"]["uid"])


def min_count(group: Document) -> int:
    return int(group["spec"]["schedulingPolicy"]["gang"]["minCount"])


def _placed(pods: list[Document]) -> list[Document]:
    return [pod for pod in pods if pod["spec"].get("nodeName")]


def _names(pods: list[Document]) -> list[str]:
    return [pod["metadata"]["name"] for pod in pods]


def _owner(claim: Document) -> str:
    owners = claim["metadata"].get("ownerReferences") or [{}]
    return str(owners[0].get("name", ""))
