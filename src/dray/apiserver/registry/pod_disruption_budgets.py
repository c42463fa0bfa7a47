"""Pod disruption budgets."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from dray.api.document import Document
from dray.api.validation.policy_v1 import (
    validate_pod_disruption_budget,
    validate_pod_disruption_budget_status,
    validate_pod_disruption_budget_update,
)
from dray.apiserver.registry.columns import AGE, NAME, status_number
from dray.apiserver.registry.generic import GenericStatusStrategy, GenericStrategy
from dray.apiserver.registry.strategy import Column, ResourceDefinition

# Go writes these counts even when they are zero.
_NO_PODS: Final = {"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0}


def _limit(field: str) -> Callable[[Document, datetime], str]:
    def cell(budget: Document, now: datetime) -> str:
        value: Any = (budget.get("spec") or {}).get(field)
        return "N/A" if value is None else str(value)

    return cell


POD_DISRUPTION_BUDGETS: Final = ResourceDefinition(
    group="policy",
    resource="poddisruptionbudgets",
    singular="poddisruptionbudget",
    kind="PodDisruptionBudget",
    namespaced=True,
    versions=("v1",),
    storage_version="v1",
    strategy=GenericStrategy(
        validate_pod_disruption_budget,
        validate_pod_disruption_budget_update,
        initial_status=_NO_PODS,
        unconditional_update=False,
    ),
    status_strategy=GenericStatusStrategy(validate_pod_disruption_budget_status, unconditional_update=False),
    short_names=("pdb",),
    columns=(
        NAME,
        Column("Min Available", "string", "The pods that must stay available.", _limit("minAvailable")),
        Column("Max Unavailable", "string", "The pods that may be unavailable.", _limit("maxUnavailable")),
        Column(
            "Allowed Disruptions",
            "integer",
            "The pods that may be evicted now.",
            lambda budget, now: status_number(budget, "disruptionsAllowed"),
        ),
        AGE,
    ),
)

DEFINITIONS: Final = (POD_DISRUPTION_BUDGETS,)
