"""Which Pods may be moved to another node: evicted, so that their controller creates a replacement. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from dray.api.codec import from_document
from dray.api.document import NamespacedName
from dray.api.pod_claims import is_owned_by_pod, is_pod_done, pod_claims
from dray.api.pod_groups import group_name_of
from dray.api.types.core_v1 import Pod
from dray.api.types.meta_v1 import OwnerReference
from dray.api.types.policy_v1 import PodDisruptionBudget
from dray.client.objects import key_of
from dray.framework.pod_info import PodInfo
from dray.scheduler.preemption.budget_cache import budget_of
from dray.scheduler.preemption.budgets import Budget
from dray.sim.kept_fields import MIRROR_ANNOTATION, SAFE_TO_EVICT_ANNOTATION
from dray.sim.snapshot import Snapshot

# Priorities of the system's own Pods begin here.
SYSTEM_PRIORITY_MIN: Final = 2_000_000_000

NO_CONTROLLER: Final = "no controller would recreate it"
DAEMON: Final = "it belongs to a DaemonSet"
STATIC: Final = "it is a static Pod"
DELETED: Final = "it is being deleted"
NOT_SAFE: Final = f"its annotation {SAFE_TO_EVICT_ANNOTATION} is false"
SYSTEM: Final = "it has a priority of the system"
HIGHER_PRIORITY: Final = "it has a higher priority than the Pods that need room"
GANG: Final = "it belongs to a PodGroup"
CLASSIC: Final = "it uses a classic claim"
SHARED: Final = "it uses a claim that was not created for it alone"
JOB: Final = "it belongs to a Job, which would start it from the beginning"


def controller_of(pod: Pod) -> OwnerReference | None:
    """Return the controller of a Pod."""
    return next((owner for owner in pod.metadata.owner_references if owner.controller), None)


class MoveRules:
    """Tells for the Pods of one snapshot why they must stay."""

    def __init__(self, snapshot: Snapshot, *, jobs: bool = False) -> None:
        self._snapshot = snapshot
        self._jobs = jobs
        self._budgets: list[tuple[str, Budget]] = []
        for document in snapshot.documents.get("PodDisruptionBudget", ()):
            budget = from_document(PodDisruptionBudget, document)
            self._budgets.append((budget.metadata.name or "", budget_of(budget)))
        # A claim that several Pods name is shared, even if one of them owns it.
        users = Counter(
            NamespacedName(pod.metadata.namespace or "", entry.claim_name or "")
            for pod in snapshot.pods
            if not is_pod_done(pod)
            for entry in pod_claims(pod)
        )
        self._shared = frozenset(key for key, count in users.items() if count > 1)

    def obstacle(self, pod: Pod) -> str:
        """Return why the Pod must not be moved; empty if it may be."""
        return self._own_obstacle(pod) or self._claim_obstacle(pod) or self._budget_obstacle(pod)

    def _own_obstacle(self, pod: Pod) -> str:
        controller = controller_of(pod)
        found = (
            (MIRROR_ANNOTATION in pod.metadata.annotations, STATIC),
            (controller is None, NO_CONTROLLER),
            (controller is not None and controller.kind == "DaemonSet", DAEMON),
            (controller is not None and controller.kind == "Node", STATIC),
            (controller is not None and controller.kind == "Job" and not self._jobs, JOB),
            (pod.metadata.deletion_timestamp is not None, DELETED),
            (pod.metadata.annotations.get(SAFE_TO_EVICT_ANNOTATION) == "false", NOT_SAFE),
            ((pod.spec.priority or 0) >= SYSTEM_PRIORITY_MIN, SYSTEM),
            (bool(group_name_of(pod)), GANG),
        )
        return next((reason for applies, reason in found if applies), "")

    def _claim_obstacle(self, pod: Pod) -> str:
        if any(True for _ in self._snapshot.classic_entries(pod)):
            return CLASSIC
        for entry in pod_claims(pod):
            key = NamespacedName(pod.metadata.namespace or "", entry.claim_name or "")
            claim = self._snapshot.claims_by_key.get(key)
            if not entry.generated or claim is None or not is_owned_by_pod(claim, pod) or key in self._shared:
                return SHARED
            if any(user.uid != pod.metadata.uid for user in claim.status.reserved_for):
                return SHARED
        return ""

    def _budget_obstacle(self, pod: Pod) -> str:
        info = PodInfo(pod)
        covering = [(name, budget) for name, budget in self._budgets if budget.covers(info)]
        if len(covering) > 1:
            return f"{len(covering)} PodDisruptionBudgets cover it, which the eviction API refuses"
        for name, budget in covering:
            if budget.disruptions_allowed < 1:
                return f"the PodDisruptionBudget {name} allows no disruption"
        return ""

    def movable(self, pods: Iterable[Pod]) -> list[Pod]:
        """Return the Pods that may be moved."""
        return [pod for pod in pods if not self.obstacle(pod)]


def label(pod: Pod) -> str:
    """Return `namespace/name`."""
    return str(key_of(pod))
