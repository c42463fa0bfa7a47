"""Explains a Pod: runs a replica until its claims exist, then runs the scheduler's filters."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

from dray.allocator import Allocator
from dray.api.features import FeatureGates
from dray.api.types.core_v1 import Pod
from dray.client.resources import PODS
from dray.scheduler.config import ProfileConfig, SchedulerConfig
from dray.scheduler.plugins.dynamic_resources.device_state import device_state_of
from dray.sim.explain.answers import Answer, Standing
from dray.sim.explain.filters import Filters, nodes_with_devices
from dray.sim.explain.subject import Subject, before, given
from dray.sim.explain.suggestions import CHANGES_MAX, blocking_claims, helpful_changes, node_changes
from dray.sim.notes import notes_on
from dray.sim.replica.cluster import Options, Replica, pass_time, running
from dray.sim.replica.virtual_time import run_virtually
from dray.sim.snapshot import Snapshot

# Virtual time for the creation of claims from templates.
CLAIM_SECONDS: Final = 30.0


def explain(snapshot: Snapshot, subject: Subject, now: datetime, *, node: str = "", gates: FeatureGates) -> Answer:
    """Explain the subject, with every device of `node`."""
    if subject.kind == "claim" and subject.classic:
        return _classic_answer(subject)
    return run_virtually(_explain(snapshot, subject, now, node, gates))


def _classic_answer(subject: Subject) -> Answer:
    """Return the answer for a classic claim: no filter of the scheduler decides about it alone."""
    return Answer(
        subject.kind, subject.key.namespace, subject.key.name, subject.standing, subject.node, classic=subject.classic
    )


async def _explain(snapshot: Snapshot, subject: Subject, now: datetime, node: str, gates: FeatureGates) -> Answer:
    options = Options(gates, SchedulerConfig(profiles=_profiles(snapshot)), schedules=False)
    async with running(before(snapshot, subject), now, options) as replica:
        await pass_time(CLAIM_SECONDS)
        pod = await replica.client.get(PODS, subject.pod.name, subject.pod.namespace)
        return replace(_answer(replica, subject, pod, node or subject.node), notes=notes_on(snapshot, (pod,)))


def _profiles(snapshot: Snapshot) -> tuple[ProfileConfig, ...]:
    """Return profiles for all schedulers of the snapshot, configured like the default scheduler."""
    default = ProfileConfig().scheduler_name
    names = {pod.spec.scheduler_name or default for pod in snapshot.pods} | {default}
    return tuple(ProfileConfig(scheduler_name=name) for name in sorted(names))


def _answer(replica: Replica, subject: Subject, pod: Pod, detailed: str) -> Answer:
    scheduler = replica.scheduler
    nodes = scheduler.handle.snapshot
    scheduler.cache.update_snapshot(nodes)
    allocator = device_state_of(scheduler.handle).allocator
    filters = Filters(scheduler.profiles[pod.spec.scheduler_name or ""], nodes, allocator, pod, detailed=detailed)
    answers = filters.answers() if filters.evaluates_nodes else ()
    answer = Answer(
        subject.kind,
        subject.key.namespace,
        subject.key.name,
        subject.standing,
        subject.node,
        obstacle=filters.obstacle,
        nodes=answers,
        given=given(subject, answers),
        classic=subject.classic,
    )
    if answer.fitting or answer.obstacle or subject.standing is not Standing.PENDING:
        return answer
    return _advised(answer, filters, allocator)


def _advised(answer: Answer, filters: Filters, allocator: Allocator) -> Answer:
    """Return the answer with tested suggestions."""
    changes = node_changes(answer.nodes)
    claims = filters.pending
    if claims:
        nodes = filters.accepted_by_other_plugins()
        changes = (*helpful_changes(claims, answer.nodes, lambda c: nodes_with_devices(allocator, nodes, c)), *changes)
    return replace(answer, changes=changes[:CHANGES_MAX], holders=blocking_claims(answer.nodes))
