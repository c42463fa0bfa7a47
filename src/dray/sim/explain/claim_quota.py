"""Whether a quota lets the claims of a Pod in that are still to be created. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from dray.api.document import GroupResource
from dray.api.pod_claims import PodClaim, pod_claims
from dray.api.quantity import Quantity
from dray.api.quota.check import Subject, excess, requested
from dray.api.quota.names import ClassNames
from dray.api.quota.usage import add_to, claim_usage, parse_amounts, pod_usage
from dray.api.types.core_v1 import Pod, ResourceQuota
from dray.api.types.resource_v1 import ResourceClaim
from dray.sim.snapshot import DRA, Snapshot

_CLAIMS: Final = GroupResource(DRA, "resourceclaims")
_PODS: Final = GroupResource("", "pods")
_ANY_TIME: Final = datetime(2000, 1, 1, tzinfo=UTC)


class ClaimQuotas:
    """The quotas of a snapshot, and what is charged to them besides what their status says."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._classes = ClassNames.of(snapshot.classes)
        self._templates = {(item.metadata.namespace, item.metadata.name): item for item in snapshot.templates}
        # By namespace and name of the quota.
        self._charged: dict[tuple[str, str], dict[str, Quantity]] = {}

    def refusal(self, pod: Pod) -> str:
        """Return why a claim of the Pod would be refused, in the words of the API server; empty if none would."""
        return self._refusal(pod.metadata.namespace, self._wanted(pod))

    def refusal_of(self, claims: Sequence[ResourceClaim]) -> str:
        """Return why one of these claims of one namespace would be refused; empty if none would."""
        namespace = claims[0].metadata.namespace if claims else None
        return self._refusal(namespace, [claim_usage(claim, self._classes) for claim in claims])

    def _refusal(self, namespace: str | None, wanted: Sequence[Mapping[str, Quantity]]) -> str:
        for quota in self._quotas(namespace) if wanted else ():
            used = self._used(quota)
            for usage in wanted:
                amounts = requested(quota, Subject(_CLAIMS, usage))
                if amounts and (reason := excess(quota, used, amounts)):
                    return reason
                add_to(used, amounts)
        return ""

    def charge(self, pod: Pod) -> None:
        """Count the claims of a Pod that are still to be created."""
        wanted = self._wanted(pod)
        for quota in self._quotas(pod.metadata.namespace) if wanted else ():
            key = quota.metadata.namespace or "", quota.metadata.name or ""
            for usage in wanted:
                add_to(self._charged.setdefault(key, {}), requested(quota, Subject(_CLAIMS, usage)))

    def claims(self, pod: Pod) -> list[Subject]:
        """Return what the claims of the Pod that do not exist yet add to quotas."""
        return [Subject(_CLAIMS, usage) for usage in self._wanted(pod)]

    def with_pod(self, pod: Pod) -> list[Subject]:
        """Return what a new Pod adds to quotas, with its claims."""
        # No Pod that is to be created is being deleted.
        own = Subject(_PODS, pod_usage(pod, self._classes, _ANY_TIME), pod)
        return [own, *self.claims(pod)]

    def _quotas(self, namespace: str | None) -> Sequence[ResourceQuota]:
        return [quota for quota in self._snapshot.quotas if quota.metadata.namespace == namespace]

    def _used(self, quota: ResourceQuota) -> dict[str, Quantity]:
        used = dict(parse_amounts(quota.status.used))
        add_to(used, self._charged.get((quota.metadata.namespace or "", quota.metadata.name or ""), {}))
        return used

    def _wanted(self, pod: Pod) -> list[Mapping[str, Quantity]]:
        """Return the usage of each claim from a template that does not exist yet."""
        namespace = pod.metadata.namespace
        templates = [
            self._templates.get((namespace, entry.template)) for entry in pod_claims(pod) if _is_missing(entry)
        ]
        return [
            claim_usage(ResourceClaim(spec=item.spec.spec), self._classes) for item in templates if item is not None
        ]


def _is_missing(entry: PodClaim) -> bool:
    return entry.generated and entry.claim_name is None and not entry.optional
