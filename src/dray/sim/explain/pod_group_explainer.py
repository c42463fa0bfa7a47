"""Explains a PodGroup: how many of its Pods fit, why the next one does not, and whom a higher priority would evict.

The group cycle of the scheduler itself runs, as a dry run, on a replica of the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

import msgspec

from dray.api.document import Document, NamespacedName
from dray.api.features import FeatureGates
from dray.api.pod_groups import priority_of
from dray.api.types.core_v1 import Pod
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.client.resources import PODS
from dray.framework.pod_info import PodInfo
from dray.scheduler.config import SchedulerConfig
from dray.scheduler.group_cycle import GroupOutcome, check_members
from dray.scheduler.preemption.budget_cache import BudgetCache
from dray.scheduler.preemption.candidates import ABSOLUTE_DEFAULT
from dray.scheduler.preemption.group_victims import GroupCandidate, group_dry_runs
from dray.scheduler.scheduler import Scheduler
from dray.sim.explain.answers import Answer, Stage, Standing, Verdict, Victims
from dray.sim.explain.pod_group import Group, group_of, too_few_pods
from dray.sim.explain.victims import PRIORITIES_MAX, USER_PRIORITY_MAX, class_for
from dray.sim.notes import notes_on
from dray.sim.replica.virtual_time import run_virtually
from dray.sim.scheduler_profiles import evaluated_profiles, profiles_of
from dray.sim.snapshot import Snapshot

KIND: Final = "podgroup"
_MISMATCH_ADVICE: Final = "create the Pods and the PodGroup with the same schedulerName and priorityClassName"
_struct_replace = msgspec.structs.replace


def explain_pod_group(snapshot: Snapshot, group: Group, now: datetime, *, gates: FeatureGates) -> Answer:
    """Explain a PodGroup."""
    key = group.key
    bare = Answer(KIND, key.namespace, key.name, Standing.PENDING, notes=snapshot.hidden)
    placed, needed = len(group.placed), group.needed
    if placed >= needed and not group.waiting:
        text = f"has all of its {placed} Pods on nodes" if placed > 1 else "has its Pod on a node"
        return replace(bare, standing=Standing.PLACED, verdict=Verdict(Stage.RUNNING, text))
    missing = too_few_pods(group)
    if missing is not None:
        return replace(bare, verdict=replace(missing, text=f"waits: {missing.text}"))
    if not group.waiting:
        return replace(bare, verdict=Verdict(Stage.DONE, "has no Pods that wait"))
    mismatch = check_members(group.group, [PodInfo(pod) for pod in group.pods])
    if mismatch:
        return replace(bare, verdict=Verdict(Stage.GATE, f"waits: {mismatch}", _MISMATCH_ADVICE))
    answer = run_virtually(_explain(snapshot, group, now, gates))
    return replace(answer, notes=(*snapshot.hidden, *notes_on(snapshot, group.waiting, evaluated_profiles(snapshot))))


async def _explain(snapshot: Snapshot, group: Group, now: datetime, gates: FeatureGates) -> Answer:
    # Imported lazily: many answers need no replica, and the API server in it is slow to import.
    from dray.sim.replica.cluster import CLAIM_SECONDS, Options, pass_time, running

    options = Options(gates, SchedulerConfig(profiles=profiles_of(snapshot)), schedules=False)
    async with running(snapshot, now, options) as replica:
        await pass_time(CLAIM_SECONDS)
        pods = [
            await replica.client.get(PODS, pod.metadata.name or "", pod.metadata.namespace or "")
            for pod in group.waiting
        ]
        return _answer(replica.scheduler, snapshot, group, pods)


def _answer(scheduler: Scheduler, snapshot: Snapshot, group: Group, pods: Sequence[Pod]) -> Answer:
    key, needed, before = group.key, group.needed, len(group.placed)
    answer = Answer(KIND, key.namespace, key.name, Standing.PENDING)
    members = [PodInfo(pod) for pod in pods]
    with scheduler.handle.dry_run_group(group.group, members) as dry_run:
        outcome, nodes = dry_run.place()
    if outcome.status.is_success and len(nodes) == len(members):
        text = f"fits: all of its {len(members)} waiting Pods have a place, and the next attempt binds them"
        return replace(answer, verdict=Verdict(Stage.SCHEDULER, text))
    # As many as fit, whether or not they are enough.
    with scheduler.handle.dry_run_group(_basic(group.group), members) as dry_run:
        outcome, nodes = dry_run.place()
    count = before + len(nodes)
    text = f"waits: {count} of the {needed} Pods that minCount asks for fit at the same time"
    if count >= needed:
        text = f"runs with {count} Pods, and {len(members) - len(nodes)} more do not fit"
    reason = _reason(outcome)
    verdict = Verdict(Stage.FILTER, f"{text}{reason}")
    victims = _victims(scheduler, snapshot, group, members)
    if victims is not None:
        verdict = replace(verdict, action=_advice(victims))
    elif count < needed:
        verdict = replace(verdict, action=_lack(before + _fitting_alone(scheduler, group.group, members), needed))
    return replace(answer, verdict=verdict, victims=victims)


def _basic(group: PodGroup) -> PodGroup:
    """Return the group with a policy that places as many Pods as fit."""
    policy = _struct_replace(group.spec.scheduling_policy, gang=None)
    return _struct_replace(group, spec=_struct_replace(group.spec, scheduling_policy=policy))


def _reason(outcome: GroupOutcome) -> str:
    for member in outcome.members:
        if member.diagnosis is not None:
            return f"; pod {member.queued.info.key.name}: {member.diagnosis.message().rstrip('.')}"
    return f"; {outcome.status.message}" if outcome.status.message else ""


def _fitting_alone(scheduler: Scheduler, group: PodGroup, members: Sequence[PodInfo]) -> int:
    """Return how many of the Pods fit in the cluster without all Pods that a user's Pods may evict."""
    with scheduler.handle.dry_run_group(_basic(group), members) as dry_run:
        pods = [pod for node in scheduler.handle.snapshot for pod in node.pods.values()]
        dry_run.hide([pod for pod in pods if pod.priority < USER_PRIORITY_MAX])
        return len(dry_run.place()[1])


def _lack(most: int, needed: int) -> str:
    if most >= needed:
        return "free devices or resources: it fits when other Pods are gone, but no higher priority is possible"
    return f"add nodes, or lower minCount: even without all other Pods only {most} of the {needed} fit"


def _advice(victims: Victims) -> str:
    name = f"priority class {victims.priority_class}" if victims.priority_class else f"priority {victims.priority}"
    listed = ", ".join(victims.pods)
    return f"with {name} it would take the place of {listed}" if listed else f"with {name} it would fit"


def _victims(scheduler: Scheduler, snapshot: Snapshot, group: Group, members: Sequence[PodInfo]) -> Victims | None:
    """Return the victims at the lowest priority that helps, starting with the group's own."""
    own = priority_of(group.group)
    nodes = scheduler.handle.snapshot
    others = {pod.priority for node in nodes for pod in node.pods.values()}
    levels = [own, *(level + 1 for level in sorted(others) if own <= level < USER_PRIORITY_MAX)]
    classes: Sequence[Document] = snapshot.documents.get("PriorityClass", ())
    for priority in levels[:PRIORITIES_MAX]:
        candidate = _candidate(scheduler, group.group, members, priority)
        if candidate is not None:
            pods = tuple(str(victim.key) for victim in candidate.victims)
            return Victims(priority, "", pods, class_for(priority, classes), candidate.violations)
    return None


def _candidate(
    scheduler: Scheduler, group: PodGroup, members: Sequence[PodInfo], priority: int
) -> GroupCandidate | None:
    handle = scheduler.handle
    raised = [PodInfo(_raised(member.pod, priority)) for member in members]
    group = _struct_replace(group, spec=_struct_replace(group.spec, priority=priority))
    budgets = BudgetCache(handle.informers)
    dry_runs = group_dry_runs(handle, group, raised, budgets.all, ABSOLUTE_DEFAULT)
    return next((found for found in dry_runs if isinstance(found, GroupCandidate)), None)


def _raised(pod: Pod, priority: int) -> Pod:
    return _struct_replace(pod, spec=_struct_replace(pod.spec, priority=priority))


def explain_workload_groups(
    snapshot: Snapshot, key: NamespacedName, groups: Sequence[Group], now: datetime, *, gates: FeatureGates
) -> Answer:
    """Explain a Workload: the first of its groups that waits."""
    bare = Answer("workload", key.namespace, key.name, Standing.PENDING, notes=snapshot.hidden)
    if not groups:
        text = "has no PodGroups: its controller has created none yet"
        return replace(bare, verdict=Verdict(Stage.WORKLOAD, text))
    answers = [explain_pod_group(snapshot, group, now, gates=gates) for group in groups]
    found = next((answer for answer in answers if answer.standing is Standing.PENDING), answers[0])
    assert found.verdict is not None, "every group has a verdict"
    verdict = replace(found.verdict, text=f"has PodGroup {found.name}, which {found.verdict.text}")
    return replace(found, kind="workload", name=key.name, verdict=verdict)


def explain_member(snapshot: Snapshot, answer: Answer, now: datetime, *, gates: FeatureGates) -> Answer:
    """Return the answer about a Pod that waits for the other Pods of its group, without what would help it alone."""
    pod = next((item for item in snapshot.pods if (item.metadata.namespace, item.metadata.name) == _key(answer)), None)
    group = None if pod is None else group_of(snapshot, pod)
    if group is None or answer.standing is not Standing.PENDING or not answer.nodes:
        return answer
    if len(group.waiting) == 1 and not answer.fitting:
        return answer
    found = explain_pod_group(snapshot, group, now, gates=gates)
    assert found.verdict is not None, "every group has a verdict"
    verdict = replace(found.verdict, text=f"waits for its PodGroup {group.key.name}, which {found.verdict.text}")
    return replace(answer, verdict=verdict, victims=found.victims, changes=())


def _key(answer: Answer) -> tuple[str, str]:
    return answer.namespace, answer.name
