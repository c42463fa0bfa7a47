"""The one verdict on a Pod that waits for a node; every tool takes it from here.

What comes before scheduling decides first. Then all filters of the scheduler run on all nodes, and what is wrong with
names in the Pod's requests comes before the reasons of the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

import msgspec

from dray.api.codec import to_document
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.framework.node_info import NodeInfo
from dray.sim.classic_claims import claims_of
from dray.sim.explain.answers import Answer, NodeAnswer, Standing, Verdict
from dray.sim.explain.before_scheduling import obstacle_before_scheduling, unevaluated, unread_needs
from dray.sim.explain.claim_quota import ClaimQuotas
from dray.sim.explain.filters import Filters
from dray.sim.explain.grouping import reason_groups
from dray.sim.explain.name_hints import name_hints
from dray.sim.explain.refusals import refusal
from dray.sim.explain.selector_hints import HintFinder
from dray.sim.explain.subject import classic_answers
from dray.sim.explain.verdict import pending_verdict
from dray.sim.snapshot import Snapshot

# Each kind of Pod is evaluated once on every node; so many of both are evaluated in one answer.
EVALUATIONS_MAX: Final = 20_000


def with_nodes(answer: Answer, filters: Filters, nodes: Sequence[NodeAnswer], snapshot: Snapshot, pod: Pod) -> Answer:
    """Return the answer with the results of the nodes, grouped, and with hints on names if no node fits."""
    hints: tuple[str, ...] = ()
    if nodes and not any(item.fits for item in nodes):
        of_claims = HintFinder(snapshot).hints(filters.pending)
        hints = (*(hint.text for hint in of_claims), *(hint.text for hint in name_hints(snapshot, pod)))
    groups = reason_groups(nodes, snapshot.nodes, pod, _classes(filters.pending))
    found = replace(answer, obstacle=filters.obstacle, nodes=tuple(nodes), groups=groups, hints=hints)
    refused = _refused_by_quota(filters, nodes, snapshot)
    if refused is None:
        return found
    return replace(
        found, obstacle=f"its claim for extended resources cannot be created: {refused.text}", advice=refused.action
    )


def _refused_by_quota(filters: Filters, nodes: Sequence[NodeAnswer], snapshot: Snapshot) -> Verdict | None:
    """Return why the claim that the scheduler creates for extended resources is refused, wherever the Pod fits."""
    claims = [filters.created_on(item.node) for item in nodes if item.fits] if snapshot.quotas else []
    found: Verdict | None = None
    quotas = ClaimQuotas(snapshot)
    for claim in claims:
        message = "" if claim is None else quotas.refusal_of((claim,))
        if claim is None or not message:
            return None
        found = found or refusal(snapshot, claim.metadata.namespace or "", message)
    return found


class PendingPods:
    """Gives verdicts on the pending Pods of one state of a cluster; equal Pods are evaluated once."""

    def __init__(self, snapshot: Snapshot, make_filters: Callable[[Pod], Filters], now: datetime) -> None:
        self._snapshot = snapshot
        self._make_filters = make_filters
        self._now = now
        self._known: dict[bytes, Verdict] = {}
        self._left = EVALUATIONS_MAX

    def verdict(self, pod: Pod) -> Verdict | None:
        """Return why a Pod is pending; None if there are too many different Pods to evaluate."""
        snapshot = self._snapshot
        if (obstacle := obstacle_before_scheduling(snapshot, pod, self._now)) is not None:
            return obstacle
        if unread := unread_needs(snapshot, pod):
            return unevaluated(snapshot, pod, unread)
        key = _kind_of(pod)
        if key not in self._known:
            if self._left <= 0:
                return None
            self._known[key] = self.evaluated(pod)
        return self._known[key]

    def evaluated(self, pod: Pod) -> Verdict:
        """Return what the filters say of a Pod that the scheduler looks at."""
        filters = self._make_filters(pod)
        nodes = filters.answers() if filters.evaluates_nodes else ()
        self._left -= len(nodes)
        answer = Answer("pod", pod.metadata.namespace or "", pod.metadata.name or "", Standing.PENDING)
        answer = replace(answer, classic=classic_answers(self._snapshot, claims_of(pod, self._snapshot)))
        return pending_verdict(with_nodes(answer, filters, nodes, self._snapshot, pod), pod, self._now)


def reasons_on(filters: Filters, node: NodeInfo, pod: Pod) -> str:
    """Return why a Pod does not fit on one node, as a verdict says it; empty if it fits."""
    groups = reason_groups([filters.answer(node)], [node.node], pod, _classes(filters.pending))
    return groups[0].text if groups else ""


def _kind_of(pod: Pod) -> bytes:
    """Return what the verdict on a Pod depends on, besides the cluster: not the names of its claims from templates."""
    labels = sorted(pod.metadata.labels.items())
    parts = [pod.metadata.namespace, labels, to_document(pod.spec), pod.status.nominated_node_name]
    return msgspec.json.encode(parts, order="deterministic")


def _classes(claims: Iterable[ResourceClaim]) -> dict[str, str]:
    """Return the class of each request; those with alternatives have several."""
    requests = [request for claim in claims for request in claim.spec.devices.requests]
    found = {request.name: request.exactly.device_class_name for request in requests if request.exactly is not None}
    for request in requests:
        names = dict.fromkeys(item.device_class_name for item in request.first_available)
        if names:
            found[request.name] = " or ".join(names)
    return found
