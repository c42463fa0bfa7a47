"""The answer for a pending Pod or a claim in one sentence. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from dray.api.types.core_v1 import Pod
from dray.sim.explain.answers import Answer, Change, ReasonGroup, Size, Stage, Standing, Verdict, Victims
from dray.sim.explain.before_scheduling import unhandled
from dray.sim.explain.similar_names import listed
from dray.sim.scheduler_messages import scheduler_message


def pending_verdict(answer: Answer, pod: Pod, now: datetime) -> Verdict:
    """Return why a Pod that the scheduler looks at is pending, and the smallest change that was tested."""
    waiting = next((item for item in answer.classic if not item.summary.startswith("is allocated")), None)
    if waiting is not None and (not answer.fitting or scheduler_message(pod)):
        return Verdict(Stage.CLAIM, f"waits for classic claim {waiting.claim}, which {waiting.summary}")
    if not answer.nodes:
        return _without_nodes(answer)
    if answer.obstacle:
        return _pending(Stage.FILTER, answer.obstacle, _action(answer.changes, answer.victims) or answer.advice)
    if answer.fitting:
        return _fitting(answer, pod, now)
    if answer.hints:
        return _pending(Stage.DEVICES, answer.hints[0], _action(answer.changes, None) or answer.advice)
    # The nodes that are nearest to fit, and those that would fit if they took Pods.
    first, *others = answer.groups
    shown = [first, *[group for group in others if group.is_admission][: 0 if first.is_admission else 1]]
    rest = len(answer.nodes) - sum(group.count for group in shown)
    texts = [*map(_group_text, shown), *([f"{rest} more for other reasons"] if rest else [])]
    why = f"0 of {len(answer.nodes)} nodes fit: {'; '.join(texts)}"
    has_devices = any("DynamicResources" in item.rejections for item in answer.nodes)
    stage = Stage.DEVICES if has_devices else Stage.FILTER
    return Verdict(stage, f"is pending, {why}", _action(answer.changes, answer.victims), why=why)


def _pending(stage: Stage, why: str, action: str = "") -> Verdict:
    return Verdict(stage, f"is pending: {why}", action, why=why)


def _fitting(answer: Answer, pod: Pod, now: datetime) -> Verdict:
    message = scheduler_message(pod)
    text = f"fits on {answer.fitting} of {len(answer.nodes)} nodes"
    if answer.notes and message:
        # Something could not be evaluated, and the scheduler knows more.
        return Verdict(Stage.FILTER, f"{text} as far as can be evaluated, but the scheduler reports: {message}")
    return unhandled(pod, now) or Verdict(Stage.SCHEDULER, f"{text} and will be scheduled")


def _group_text(group: ReasonGroup) -> str:
    where = group.examples[0] if group.count == 1 else f"{group.count} nodes"
    return f"{where}: {group.text}"


def _without_nodes(answer: Answer) -> Verdict:
    """Return why no node is looked at: there are none, or something else keeps the Pod from all of them."""
    if answer.obstacle:
        return _pending(Stage.CLAIM, answer.obstacle)
    return _pending(Stage.FILTER, "the cluster has no nodes", "add a node")


def _action(changes: Sequence[Change], victims: Victims | None) -> str:
    """Return the smallest change; a higher priority only if nothing but more nodes or fewer wishes would help."""
    smallest = min(changes, key=lambda change: change.size, default=None)
    if victims is not None and (smallest is None or smallest.size >= Size.ADD_NODE):
        return victims_text(victims)
    if smallest is None:
        return ""
    where = "" if smallest.size in (Size.ADD_NODE, Size.ADMIT_TO_NODE) else f" (fits on {listed(smallest.nodes, 1)})"
    return f"{smallest.text}{where}"


def victims_text(victims: Victims) -> str:
    """Return who would go for a Pod of higher priority."""
    how = f"use priority class {victims.priority_class}" if victims.priority_class else "raise its priority"
    if not victims.pods:
        pods = "no Pods"
    elif len(victims.pods) == 1:
        pods = f"Pod {victims.pods[0]}"
    else:
        pods = f"{len(victims.pods)} Pods: {listed(victims.pods)}"
    where = f" on {victims.node}" if victims.node else ""
    how = f"it evicts nobody (preemptionPolicy Never): {how}" if victims.never else how
    return f"{how} ({victims.priority} or more), which evicts {pods}{where}{_violations(victims)}"


def _violations(victims: Victims) -> str:
    """Return how many of the evictions a disruption budget does not allow."""
    if not victims.violated_budgets:
        return ""
    if len(victims.pods) == 1:
        return ", which its disruption budget does not allow"
    return f", {victims.violated_budgets} of them against a disruption budget"


def claim_verdict(answer: Answer, user: str, of_pod: Verdict | None) -> Verdict:
    """Return the state of a claim; what a pending one waits for is what its Pod waits for."""
    if answer.standing is Standing.PLACED:
        where = f" on {answer.node}" if answer.node else ""
        return Verdict(Stage.RUNNING, f"is allocated{where}" + (f" for Pod {user}" if user else " and no Pod uses it"))
    if of_pod is not None and user:
        return _pending(of_pod.stage, f"Pod {user} {of_pod.text}", of_pod.action)
    fits = f"it fits on {answer.fitting} of {len(answer.nodes)} nodes" if answer.nodes else "there are no nodes"
    if answer.nodes and not answer.fitting and of_pod is not None:
        return _pending(of_pod.stage, f"no Pod uses it, and {of_pod.why or of_pod.text}", of_pod.action)
    return _pending(Stage.CLAIM, f"no Pod uses it yet; {fits}")
