"""Preemption by a PodGroup: evicts Pods of lower priority, anywhere in the cluster, for a group that does not fit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from dray.api.document import NamespacedName
from dray.api.pod_groups import priority_of
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.client.objects import key_of
from dray.client.resources import PODS
from dray.framework.plugins import PlacedMember
from dray.framework.pod_info import PodInfo
from dray.framework.status import Code, Status, unschedulable
from dray.scheduler.cluster_events import UNFINISHED
from dray.scheduler.handle import Handle
from dray.scheduler.preemption.budget_cache import BudgetCache
from dray.scheduler.preemption.candidates import ABSOLUTE_DEFAULT
from dray.scheduler.preemption.executor import Executor, group_preemptor, is_preempted
from dray.scheduler.preemption.group_victims import GroupCandidate, group_dry_runs
from dray.scheduler.preemption.metrics import POD_GROUP, PreemptionMetrics
from dray.scheduler.preemption.units import group_units

NEVER: Final = "not eligible due to preemptionPolicy=Never."
CHANGED: Final = "the pod group has changed meanwhile"
ONGOING: Final = "ongoing preemption on nominated nodes"

# The nominated nodes of members by uid.
Nominated = Mapping[str, str]


class GroupPreemption:
    """The part of DefaultPreemption that knows groups."""

    def __init__(
        self,
        handle: Handle,
        metrics: PreemptionMetrics,
        executor: Executor,
        budgets: BudgetCache,
        least_nodes: int = ABSOLUTE_DEFAULT,
    ) -> None:
        self._handle = handle
        # On how many nodes victims are looked for at first.
        self._least_nodes = least_nodes
        self._metrics = metrics
        self._executor = executor
        self._budgets = budgets
        self._pods = handle.informers.informer(PODS, UNFINISHED).lister

    async def preempt(self, group: PodGroup, members: Sequence[PlacedMember]) -> tuple[Nominated | None, Status]:
        """Nominate nodes for all members that fit without Pods of lower priority, and start evicting those.

        The search may let others run, but nothing does between the dry run that has found the victims and their
        eviction.
        """
        pods = [member.state.pod_info for member in members if self._is_pending(member.state.pod_info)]
        if not pods:
            return None, unschedulable()
        if any(info.pod.spec.preemption_policy == "Never" for info in pods):
            return self._with_prefix(None, unschedulable(NEVER))
        waiting = self._ongoing(group, pods)
        if waiting is not None:
            return self._with_prefix(*waiting)
        started = self._handle.clock.monotonic()
        found = await self._search(group, pods)
        seconds = self._handle.clock.monotonic() - started
        if isinstance(found, Status):
            self._metrics.evaluated(POD_GROUP, "error", seconds)
            self._metrics.group_attempted("unschedulable" if found.is_rejected else "error")
            return self._with_prefix(None, found)
        self._metrics.evaluated(POD_GROUP, "success", seconds, found.violations)
        self._metrics.group_attempted("success")
        self._metrics.disrupted(POD_GROUP, group_units(found.victims, self._handle.pod_groups))
        scheduler_name = pods[0].pod.spec.scheduler_name or ""
        self._executor.start(group_preemptor(group, scheduler_name, found.nodes), found.victims)
        text = f"found a placement for podgroup, preempting {len(found.victims)} victims"
        return self._with_prefix(found.nodes, Status(Code.SUCCESS, (text,)))

    def _with_prefix(self, nominated: Nominated | None, status: Status) -> tuple[Nominated | None, Status]:
        return nominated, Status(status.code, (f"pod group preemption: {status.message}",))

    def _is_pending(self, info: PodInfo) -> bool:
        pod = self._pods.get_key(key_of(info.pod))
        return pod is not None and pod.metadata.uid == info.uid and not pod.spec.node_name

    def _ongoing(self, group: PodGroup, pods: Sequence[PodInfo]) -> tuple[Nominated, Status] | None:
        """Return the nominations that are kept, and why: Pods are still being evicted for the group."""
        nominations, snapshot = self._handle.nominations, self._handle.snapshot
        nominated = {info.uid: name for info in pods if (name := nominations.node_of(info.uid))}
        nodes = [node for name in dict.fromkeys(nominated.values()) if (node := snapshot.get(name)) is not None]
        priority = priority_of(group)
        if any(pod.priority < priority and is_preempted(pod.pod) for node in nodes for pod in node.pods.values()):
            return nominated, Status(Code.SUCCESS, (ONGOING,))
        profile = self._handle.profiles[pods[0].pod.spec.scheduler_name or ""]
        for info in pods if nodes else ():
            node = snapshot.get(nominated.get(info.uid, ""))
            for plugin in profile.nomination_extensions if node is not None else ():
                assert node is not None
                status = plugin.check_preemption(info.pod, node)
                if not status.is_success:
                    return nominated, status
        return None

    async def _search(self, group: PodGroup, pods: Sequence[PodInfo]) -> GroupCandidate | Status:
        """Return the victims; others run between dry runs."""
        dry_runs = group_dry_runs(self._handle, group, pods, self._budgets.all, self._least_nodes)
        found = next(dry_runs)
        while isinstance(found, Status):
            await asyncio.sleep(0)
            if not self._is_unchanged(group, pods):
                return unschedulable(CHANGED)
            following = next(dry_runs, None)
            if following is None:
                break
            found = following
        return found

    def _is_unchanged(self, group: PodGroup, pods: Sequence[PodInfo]) -> bool:
        """Return whether the group is still there as it was, and waits with the same Pods."""
        key = NamespacedName(group.metadata.namespace or "", group.metadata.name or "")
        current = self._handle.pod_groups.get(key)
        if current is None or (current.metadata.uid, current.spec) != (group.metadata.uid, group.spec):
            return False
        return all(self._is_pending(info) for info in pods)
