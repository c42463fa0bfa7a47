"""Metrics of the claim controller, with the names of Kubernetes 1.37, of earlier releases, and of KEP-4816."""

from __future__ import annotations

from typing import Final, NamedTuple

from dray.api.pod_claims import (
    EXTENDED_RESOURCE_ANNOTATION,
    POD_CLAIM_NAME_ANNOTATION,
    has_admin_access,
)
from dray.api.types.resource_v1 import ResourceClaim
from dray.client.claim_metrics import ClaimCreates
from dray.runtime.metrics import Metrics

_PREFIX: Final = "resourceclaim_controller_"


class ClaimLabels(NamedTuple):
    """Metric labels of a claim."""

    allocated: str
    admin_access: str
    source: str
    # KEP-4816: whether the claim has alternatives.
    prioritized_list: str


def labels_of(claim: ResourceClaim) -> ClaimLabels:
    """Return the metric labels of a claim."""
    admin_access = prioritized_list = "false"
    for request in claim.spec.devices.requests:
        if request.first_available:
            prioritized_list = "true"
        if request.exactly is not None and request.exactly.admin_access:
            admin_access = "true"
    allocated = "false" if claim.status.allocation is None else "true"
    return ClaimLabels(allocated, admin_access, source=_source(claim), prioritized_list=prioritized_list)


def _boolean(value: object) -> str:
    return "true" if value else "false"


def _source(claim: ResourceClaim) -> str:
    annotations = claim.metadata.annotations
    if not annotations:
        return ""
    if annotations.get(EXTENDED_RESOURCE_ANNOTATION):
        return "extended_resource"
    return "resource_claim_template" if annotations.get(POD_CLAIM_NAME_ANNOTATION) else ""


class ClaimMetrics:
    """Counts created claims, and existing claims as the informer delivers them."""

    def __init__(self, metrics: Metrics) -> None:
        self._creates = metrics.counter(
            _PREFIX + "creates_total", "Claims created, by outcome", ("status", "admin_access")
        )
        self._all_creates = ClaimCreates(metrics)
        self._create_alias = metrics.counter(_PREFIX + "create_total", "Attempts to create a claim")
        self._failure_alias = metrics.counter(_PREFIX + "create_failures_total", "Failed attempts to create a claim")
        self._claims = metrics.gauge(
            _PREFIX + "resource_claims",
            "Claims in the cluster",
            ("allocated", "admin_access", "source", "prioritized_list"),
        )
        self._all_claims = metrics.gauge(
            "dynamic_resource_allocation_resource_claims",
            "Claims in the cluster",
            ("allocated", "admin_access", "source"),
        )
        self._allocated_alias = metrics.gauge(
            _PREFIX + "allocated_resource_claims",
            "Allocated claims in the cluster",
            ("admin_access", "source", "prioritized_list"),
        )
        # The gauges are read from here when they are scraped: a claim changes its labels more often than that.
        self._counts: dict[ClaimLabels, int] = {}

    def created(self, claim: ResourceClaim, *, success: bool) -> None:
        """Count an attempt to create a claim."""
        admin_access = has_admin_access(claim)
        self._creates.labels("success" if success else "failure", _boolean(admin_access)).inc()
        self._all_creates.count(success=success, admin_access=admin_access)
        self._create_alias.inc()
        if not success:
            self._failure_alias.inc()

    def changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """Update the gauges for an event of the claim informer."""
        if old is not None and new is not None and _has_same_labels(old, new):
            return
        for claim, change in ((old, -1), (new, 1)):
            if claim is not None:
                labels = labels_of(claim)
                if labels not in self._counts:
                    self._add_gauges(labels)
                self._counts[labels] += change

    def _add_gauges(self, labels: ClaimLabels) -> None:
        """Count claims with labels that no claim had before."""
        self._counts[labels] = 0
        self._claims.labels(*labels).set_function(lambda: self._counts[labels])
        common = labels[:-1]
        self._all_claims.labels(*common).set_function(
            lambda: sum(count for other, count in tuple(self._counts.items()) if other[:-1] == common)
        )
        if labels.allocated == "true":
            self._allocated_alias.labels(*labels[1:]).set_function(lambda: self._counts[labels])


def _has_same_labels(old: ResourceClaim, new: ResourceClaim) -> bool:
    """Return whether no label changes; a cheap check that covers most events."""
    return (
        (old.status.allocation is None) == (new.status.allocation is None)
        and old.metadata.annotations == new.metadata.annotations
        and old.spec == new.spec
    )
