"""Explains a Pod, claim or workload: what stops it on its path, and if that is the scheduler, why no node fits.

For the scheduler's part, all filters run on all nodes, in a trial cluster in which the claims of the Pod exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from dray.api.codec import from_document
from dray.api.document import NamespacedName
from dray.api.features import FeatureGates
from dray.api.pod_claims import is_pod_done, pod_claims
from dray.api.types.core_v1 import Pod
from dray.api.types.policy_v1 import PodDisruptionBudget
from dray.api.types.resource_v1 import ResourceClaim
from dray.client.objects import key_of
from dray.client.resources import RESOURCE_CLAIMS
from dray.scheduler.preemption.budget_cache import budget_of
from dray.sim.devices import device_rows
from dray.sim.explain.answers import Answer, Change, Size, Stage, Standing, Verdict, Victims
from dray.sim.explain.before_scheduling import (
    claim_obstacle,
    obstacle_before_scheduling,
    refused_claim,
    unevaluated,
    unread_needs,
)
from dray.sim.explain.claim_changes import claim_changes
from dray.sim.explain.cluster_changes import Surroundings, cluster_changes
from dray.sim.explain.filters import Filters, nodes_that_fit, nodes_with_devices
from dray.sim.explain.holders import holders
from dray.sim.explain.name_hints import dropped_node_labels, name_hints
from dray.sim.explain.on_node import placed_verdict
from dray.sim.explain.pending_pods import with_nodes
from dray.sim.explain.scores import node_scores
from dray.sim.explain.selector_hints import HintFinder
from dray.sim.explain.similar_names import listed
from dray.sim.explain.subject import PROBE_NAME, Subject, before, given, pod_subject
from dray.sim.explain.verdict import claim_verdict, pending_verdict
from dray.sim.explain.victims import PreemptionDryRun
from dray.sim.explain.workload import Workload, pod_to_explain, workload_verdict
from dray.sim.notes import notes_on
from dray.sim.physical_devices import offers_of, plugin_resources, used_resources
from dray.sim.replica.group_gates import GROUP_KINDS, with_groups
from dray.sim.scheduler_profiles import configured_profiles, evaluated_profiles
from dray.sim.snapshot import Snapshot, SnapshotError
from dray.sim.trial_cluster import TrialCluster
from dray.sim.usable_nodes import with_condition_taints

# Longer lists are not useful.
CHANGES_MAX: Final = 8
_DEFAULT_SCORES: Final = (
    "the scores are those of the default profile; the scheduler may have another one (--scheduler-config)"
)
# Obstacles that do not keep the filters from being evaluated: their results are still of interest.
_EVALUATED: Final = (Stage.SCHEDULER, Stage.PREEMPTION, Stage.BINDING)


@dataclass(frozen=True, slots=True)
class Question:
    """What is explained, and of which moment."""

    snapshot: Snapshot
    now: datetime
    gates: FeatureGates
    # The node whose devices are all explained.
    node: str = ""


def explain(snapshot: Snapshot, subject: Subject, now: datetime, *, node: str = "", gates: FeatureGates) -> Answer:
    """Explain a Pod or claim, with every device of `node`."""
    snapshot = with_condition_taints(snapshot)
    question = Question(snapshot, now, gates, node)
    if subject.kind == "claim" and subject.classic:
        return _classic_answer(subject)
    pod = None if subject.pod.name == PROBE_NAME else _find_pod(snapshot, subject.pod)
    obstacle = None
    if pod is not None and subject.standing is Standing.PENDING:
        obstacle = obstacle_before_scheduling(snapshot, pod, now)
        if obstacle is not None and obstacle.stage not in _EVALUATED:
            answer = replace(_bare(subject), obstacle=obstacle.text, classic=subject.classic, notes=snapshot.hidden)
            return replace(answer, verdict=_verdict(answer, question, subject, pod, obstacle))
        if obstacle is None and (unread := unread_needs(snapshot, pod)):
            verdict = unevaluated(snapshot, pod, unread)
            return replace(_bare(subject), verdict=verdict, classic=subject.classic, notes=snapshot.hidden)
    if subject.kind == "claim" and (stopped := claim_obstacle(snapshot, snapshot.claims_by_key[subject.key], now)):
        return replace(_bare(subject), verdict=stopped, notes=snapshot.hidden)
    answer = _evaluated(question, subject)
    if pod is not None and pod.spec.scheduling_group is not None and subject.standing is Standing.PENDING:
        # Imported on use: few Pods are in groups, and the planner takes longer to import than most answers.
        from dray.sim.explain.joint_hint import joint_notes

        answer = replace(answer, notes=(*answer.notes, *joint_notes(snapshot, pod, gates)))
    verdict = _verdict(answer, question, subject, pod, obstacle)
    notes = answer.notes
    if pod is not None and subject.standing is Standing.PENDING:
        notes = (*notes, *_double_offers(snapshot, answer), *_others_first(snapshot, answer, pod))
    return replace(answer, verdict=verdict, notes=notes)


def explain_workload(snapshot: Snapshot, workload: Workload, now: datetime, *, gates: FeatureGates) -> Answer:
    """Explain a workload: why it has too few Pods, or the one of its Pods that tells most."""
    key = workload.key
    verdict = workload_verdict(snapshot, workload)
    pod = pod_to_explain(workload)
    if verdict is not None or pod is None:
        standing = Standing.DONE if verdict is not None and verdict.stage is Stage.DONE else Standing.PENDING
        return Answer(workload.kind, key.namespace, key.name, standing, verdict=verdict, notes=snapshot.hidden)
    pod_key = NamespacedName(pod.metadata.namespace or "", pod.metadata.name or "")
    if workload.ready == workload.wanted:
        text = f"has all of its {workload.wanted} Pods ready" if workload.wanted > 1 else "has its Pod ready"
        ready = Verdict(Stage.RUNNING, text)
        return Answer(workload.kind, key.namespace, key.name, Standing.PLACED, verdict=ready, notes=snapshot.hidden)
    answer = explain(snapshot, pod_subject(snapshot, pod_key), now, gates=gates)
    if snapshot.documents.get("PodGroup"):
        # Imported on use: it pulls in the whole scheduler.
        from dray.sim.explain.pod_group_explainer import explain_member

        answer = explain_member(snapshot, answer, now, gates=gates)
    assert answer.verdict is not None, "every Pod has a verdict"
    text = f"has {workload.ready} of {workload.wanted} Pods ready: pod {pod_key.name} {answer.verdict.text}"
    verdict = replace(answer.verdict, text=text, action=_action_for_all(snapshot, workload, answer.verdict, now))
    return replace(
        answer, kind=workload.kind, namespace=key.namespace, name=key.name, pod=pod_key.name, verdict=verdict
    )


def _action_for_all(snapshot: Snapshot, workload: Workload, verdict: Verdict, now: datetime) -> str:
    """Return what lets all Pods of the workload have their claims, if a quota refuses the claim of one of them."""
    if verdict.stage is not Stage.QUOTA:
        return verdict.action
    waiting = [pod for pod in workload.pods if not pod.spec.node_name]
    blocked = [pod for pod in waiting if _is_blocked_by_quota(obstacle_before_scheduling(snapshot, pod, now))]
    missing = len(blocked) + max(workload.wanted - len(workload.pods), 0)
    refused = refused_claim(snapshot, blocked[0], missing) if blocked else None
    return verdict.action if refused is None else refused.action


def _is_blocked_by_quota(obstacle: Verdict | None) -> bool:
    return obstacle is not None and obstacle.stage is Stage.QUOTA


def _verdict(
    answer: Answer, question: Question, subject: Subject, pod: Pod | None, obstacle: Verdict | None
) -> Verdict:
    if subject.kind == "pod":
        assert pod is not None, "a Pod that is explained exists"
        if subject.standing is not Standing.PENDING:
            return placed_verdict(question.snapshot, pod, question.now)
        return obstacle or pending_verdict(answer, pod, question.now)
    of_pod = obstacle
    if of_pod is None and subject.standing is Standing.PENDING:
        of_pod = pending_verdict(answer, pod or Pod(), question.now)
    return claim_verdict(answer, "" if pod is None else subject.pod.name, of_pod)


def _bare(subject: Subject) -> Answer:
    return Answer(subject.kind, subject.key.namespace, subject.key.name, subject.standing, subject.node)


def _classic_answer(subject: Subject) -> Answer:
    """Return the answer for a classic claim: no filter of the scheduler decides about it alone."""
    verdict = Verdict(Stage.CLAIM, subject.classic[0].summary)
    return replace(_bare(subject), classic=subject.classic, verdict=verdict)


def _find_pod(snapshot: Snapshot, key: NamespacedName) -> Pod | None:
    return next((pod for pod in snapshot.pods if (pod.metadata.namespace, pod.metadata.name) == key), None)


# --- The scheduler's part. ---


def _evaluated(question: Question, subject: Subject) -> Answer:
    """Return the answer of the filters.

    The scheduler tries the devices that a claim of a pending Pod has before it gives them back and looks for others.
    """
    snapshot = question.snapshot
    trial = _Trial(question, subject)
    if trial.refusal:
        return replace(_bare(subject), obstacle=trial.refusal, notes=snapshot.hidden)
    answer = trial.answer()
    if not answer.fitting and subject.held and subject.standing is Standing.PENDING:
        as_allocated = trial.answer(subject.held)
        answer = as_allocated if as_allocated.fitting else answer
    notes = (*snapshot.hidden, *notes_on(snapshot, (trial.pod,), evaluated_profiles(snapshot)))
    if answer.scores and not configured_profiles(snapshot):
        notes = (*notes, _DEFAULT_SCORES)
    return replace(answer, notes=notes)


def _double_offers(snapshot: Snapshot, answer: Answer) -> Iterator[str]:
    """Yield which of the nodes that fit have devices that Pods may have by a device plugin."""
    fitting = {item.node for item in answer.nodes if item.fits}
    used = used_resources(snapshot)
    if fitting.isdisjoint(item.node for item in plugin_resources(snapshot, used) if item.used):
        return
    for offer in offers_of(snapshot, device_rows(snapshot), used):
        if offer.node in fitting and offer.used:
            count = f"{offer.used} of the {len(offer.rows)} devices"
            yield f"{offer.node}: Pods have {count} as {offer.resource}, which the scheduler does not see (dray doctor)"


def _others_first(snapshot: Snapshot, answer: Answer, pod: Pod) -> Iterator[str]:
    """Yield the Pods that are scheduled first, and that changes were not tested with."""
    if not answer.changes:
        return
    others = [item for item in snapshot.pods if not item.spec.node_name and not is_pod_done(item)]
    order = _queue_order(pod)
    first = [item for item in others if _queue_order(item) < order and not item.spec.scheduling_gates]
    names = [str(key_of(item)) for item in first if item.metadata.uid != pod.metadata.uid and any(pod_claims(item))]
    if names:
        yield f"changes were tested without Pods that are scheduled first, and may take the devices: {listed(names)}"


def _queue_order(pod: Pod) -> tuple[int, str]:
    """Return the place of a Pod in the scheduler's queue."""
    created = pod.metadata.creation_timestamp
    return -(pod.spec.priority or 0), "" if created is None else created.isoformat()


class _Trial:
    """The cluster as the scheduler observes it, with the Pod of a subject as it was before it had a node."""

    def __init__(self, question: Question, subject: Subject) -> None:
        snapshot = before(question.snapshot, subject)
        pod = _find_pod(snapshot, subject.pod)
        assert pod is not None, "a Pod that is explained exists"
        documents = (item for kind in GROUP_KINDS for item in question.snapshot.documents.get(kind, ()))
        self._question, self._subject = question, subject
        # Why the Pod has no claim; empty if it has all.
        self.refusal = ""
        self._claims: tuple[ResourceClaim, ...] = ()
        self.pod = pod
        self._cluster = TrialCluster(snapshot, gates=with_groups(question.gates, documents))
        try:
            observed = self._cluster.observe(pod)
        except SnapshotError as error:
            self.refusal = f"its claim cannot be created: {error}"
        else:
            self.pod, self._claims = observed.pod, observed.claims

    def answer(self, held: Sequence[ResourceClaim] = ()) -> Answer:
        """Return the answer, with these claims of the Pod allocated."""
        placer = self._cluster.placer
        allocated = {key_of(claim): claim for claim in held}
        own = [allocated.pop(key_of(claim), claim) for claim in self._claims]
        for claim in allocated.values():
            placer.put(RESOURCE_CLAIMS, claim)
        with placer.waiting(self.pod, own):
            return self._evaluate()

    def _evaluate(self) -> Answer:
        placer, pod, subject, snapshot = self._cluster.placer, self.pod, self._subject, self._question.snapshot
        filters = self._filters(pod, detailed=self._question.node or subject.node)
        answers = filters.answers() if filters.evaluates_nodes else ()
        bare = replace(_bare(subject), given=given(subject, answers), classic=subject.classic)
        answer = with_nodes(bare, filters, answers, snapshot, pod)
        if subject.standing is Standing.PLACED and subject.kind == "pod" and answer.fitting > 1:
            feasible = {item.node for item in answers if item.fits}
            infos = [node for node in placer.snapshot if node.name in feasible]
            return replace(answer, scores=node_scores(placer.profile_of(pod), filters, infos, subject.node))
        if answer.fitting or not answers or subject.standing is not Standing.PENDING:
            return answer
        return self._advised(answer, filters)

    def _filters(self, pod: Pod, *, detailed: str = "") -> Filters:
        placer = self._cluster.placer
        placer.update_snapshot()
        allocator, nominations = placer.devices.allocator, placer.nominations
        return Filters(
            placer.profile_of(pod), placer.snapshot, allocator, pod, detailed=detailed, nominations=nominations
        )

    def _advised(self, answer: Answer, filters: Filters) -> Answer:
        """Return the answer with hints, tested changes, and the Pods that a higher priority would evict."""
        placer, snapshot = self._cluster.placer, self._question.snapshot
        nodes, allocator = placer.snapshot, placer.devices.allocator
        finder = HintFinder(snapshot)
        hints = finder.hints(filters.pending)
        names = tuple(name_hints(snapshot, self.pod))
        claims = placer.informers.informer(RESOURCE_CLAIMS).lister.list()
        allocated = [claim for claim in claims if claim.status.allocation is not None]
        cluster = Surroundings(filters, nodes, allocator, allocated, self.pod, self._question.now)
        changes = list(cluster_changes(cluster, answer.nodes))
        if filters.pending:
            accepted = filters.accepted_by_other_plugins()
            changes += claim_changes(
                filters.pending,
                answer.nodes,
                hints,
                finder.catalogue,
                allocator.inventory.taint_rules.rules,
                lambda c: nodes_with_devices(allocator, accepted, c),
            )
        for hint in (*names, *dropped_node_labels(self.pod)):
            if hint.corrected is not None:
                fitting = nodes_that_fit(self._filters(hint.corrected), nodes)
                changes += [Change(hint.action, fitting, hint.size)] if fitting else []
        return replace(
            answer,
            changes=_smallest(changes),
            # Who holds devices is beside the point if the request is wrong.
            holders=() if hints or names else holders(cluster, answer.nodes),
            advice=next((hint.action for hint in names), ""),
            victims=self._victims(),
        )

    def _victims(self) -> Victims | None:
        placer, documents = self._cluster.placer, self._question.snapshot.documents
        budgets = [
            budget_of(from_document(PodDisruptionBudget, item)) for item in documents.get("PodDisruptionBudget", ())
        ]
        dry_run = PreemptionDryRun(placer.profile_of(self.pod), placer.snapshot, budgets, self._filters)
        return dry_run.find(self.pod, documents.get("PriorityClass", ()), placer.nominations)


def _smallest(changes: list[Change]) -> tuple[Change, ...]:
    """Return the changes by size; to drop a selector is no advice if anything else works."""
    ordered = sorted(changes, key=lambda change: change.size)
    if ordered and ordered[0].size < Size.DROP_SELECTOR:
        ordered = [change for change in ordered if change.size < Size.DROP_SELECTOR]
    return tuple(ordered[:CHANGES_MAX])
