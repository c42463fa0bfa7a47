"""The metric of created ResourceClaims that the claim controller and the scheduler have in common."""

from __future__ import annotations

from typing import Final

from dray.runtime.metrics import Metrics

_NAME: Final = "dynamic_resource_allocation_resourceclaim_creates_total"
_LABELS: Final = ("status", "admin_access", "owner_api_group", "owner_api_kind")


class ClaimCreates:
    """Counts claims that were created for an owner, by outcome."""

    def __init__(self, metrics: Metrics) -> None:
        self._counter = metrics.counter(_NAME, "Claims created, by outcome and kind of owner", _LABELS)

    def count(self, *, success: bool, admin_access: bool = False, group: str = "", kind: str = "Pod") -> None:
        """Count one attempt."""
        status = "success" if success else "failure"
        self._counter.labels(status, "true" if admin_access else "false", group, kind).inc()
