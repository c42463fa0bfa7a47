"""Disruption budgets: which Pods they match, whether an eviction is allowed, and what it writes into the budget. Pure.

The API server decides on evictions with it, the disruption controller and the scheduler read the same rules. Messages
and reasons are those of Kubernetes; `kubectl drain` shows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from dray.api.document import Document, GroupResource
from dray.api.errors import APIError, ForbiddenError, RequestTimeoutError, TooManyRequestsError
from dray.api.selectors import LabelSelector, SelectorError
from dray.api.timestamps import format_time

# The condition of a Pod that is about to be deleted.
DISRUPTION_TARGET: Final = "DisruptionTarget"
# The condition of a budget, and its reasons.
DISRUPTION_ALLOWED: Final = "DisruptionAllowed"
SUFFICIENT_PODS: Final = "SufficientPods"
INSUFFICIENT_PODS: Final = "InsufficientPods"
SYNC_FAILED: Final = "SyncFailed"
ALWAYS_ALLOW: Final = "AlwaysAllow"

# The controller forgets an eviction whose Pod is still there after this long.
DELETION_TIMEOUT_SECONDS: Final = 120.0
# Evictions that the controller has not seen yet.
DISRUPTED_PODS_MAX: Final = 2000

RETRY_SECONDS: Final = 10
DENIED: Final = "Cannot evict pod as it would violate the pod's disruption budget."
SEVERAL_BUDGETS: Final = (
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
)
_BUDGET: Final = GroupResource("policy", "poddisruptionbudget")
# Pods in these phases do not count as available, so no budget is asked.
_WITHOUT_BUDGET: Final = frozenset({"Succeeded", "Failed", "Pending"})


# --- Which budgets apply. ---


def selects(budget: Document, labels: Mapping[str, str]) -> bool:
    """Return whether the budget is for Pods with these labels; an empty selector is for all of the namespace."""
    try:
        selector = LabelSelector.from_document((budget.get("spec") or {}).get("selector"))
    except SelectorError:
        return False
    return bool(selector.matches(labels))


def selector_problem(budget: Document) -> str:
    """Return why the budget's selector cannot be parsed, as one may that was stored long ago; empty if it can."""
    try:
        LabelSelector.from_document((budget.get("spec") or {}).get("selector"))
    except SelectorError as error:
        return str(error)
    return ""


def budgets_of(budgets: Iterable[Document], pod: Document) -> list[Document]:
    """Return the budgets of a Pod's namespace that are for it."""
    labels = pod["metadata"].get("labels") or {}
    return [budget for budget in budgets if selects(budget, labels)]


def needs_no_budget(pod: Document) -> bool:
    """Return whether the Pod can go without asking a budget: it has ended, never began, or is going already."""
    return "deletionTimestamp" in pod["metadata"] or (pod.get("status") or {}).get("phase") in _WITHOUT_BUDGET


def is_ready(pod: Document) -> bool:
    """Return whether the Pod's condition Ready is true."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)


def frees_unhealthy(budget: Document) -> bool:
    """Return whether a Pod of the budget that is not ready may go without being charged."""
    if (budget.get("spec") or {}).get("unhealthyPodEvictionPolicy") == ALWAYS_ALLOW:
        return True
    desired = _number(budget, "desiredHealthy")
    return desired > 0 and _number(budget, "currentHealthy") >= desired


# --- Charging a budget. ---


def charge(budget: Document, pod_name: str, now: datetime) -> Document:
    """Return the budget with one more eviction; raise if it allows none."""
    name, status = budget["metadata"]["name"], budget.get("status") or {}
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        raise still_processed(name)
    allowed = _number(budget, "disruptionsAllowed")
    if allowed < 0:
        raise ForbiddenError(_BUDGET, name, "pdb disruptions allowed is negative")
    disrupted = status.get("disruptedPods") or {}
    if len(disrupted) > DISRUPTED_PODS_MAX:
        text = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        raise ForbiddenError(_BUDGET, name, text)
    if allowed == 0:
        raise _denied(_cause(budget))
    changed = {**status, "disruptionsAllowed": allowed - 1, "disruptedPods": {**disrupted, pod_name: format_time(now)}}
    if allowed == 1:
        changed["conditions"] = with_disruption_allowed(changed, now)
    return {**budget, "status": changed}


def still_processed(name: str) -> TooManyRequestsError:
    """Return the refusal while the controller has not seen the budget's specification."""
    text = f"The disruption budget {name} is still being processed by the server."
    return _denied(text, retry_after_seconds=RETRY_SECONDS)


def several_budgets() -> APIError:
    """Return the refusal for a Pod with more than one budget."""
    error = APIError(SEVERAL_BUDGETS)
    error.reason = ""
    return error


def too_many_conflicts(name: str) -> RequestTimeoutError:
    """Return the error after the budget could not be written."""
    error = RequestTimeoutError(f'Timeout: couldn\'t update PodDisruptionBudget "{name}" due to conflicts')
    error.retry_after_seconds = RETRY_SECONDS
    return error


def _denied(cause: str, retry_after_seconds: int | None = None) -> TooManyRequestsError:
    error = TooManyRequestsError(DENIED)
    error.retry_after_seconds = retry_after_seconds
    error.details = {"causes": [{"reason": "DisruptionBudget", "message": cause}]}
    return error


def _cause(budget: Document) -> str:
    """Return why the budget allows no eviction."""
    name = budget["metadata"]["name"]
    current, desired = _number(budget, "currentHealthy"), _number(budget, "desiredHealthy")
    condition = _condition((budget.get("status") or {}).get("conditions") or ())
    refused = condition is not None and condition.get("status") == "False"
    reason, message = ((condition or {}).get(field) or "" for field in ("reason", "message"))
    start = f"The disruption budget {name} does not allow evicting pods currently"
    if refused and reason == SYNC_FAILED and message:
        return f"{start} because it failed sync: {message}"
    if current <= desired:
        return f"The disruption budget {name} needs {desired} healthy pods and has {current} currently"
    if refused and message:
        return f"{start} ({reason}): {message}"
    return start


# --- The condition. ---


def with_disruption_allowed(status: Document, now: datetime, sync_error: str = "") -> list[Document]:
    """Return the conditions of a status with DisruptionAllowed as its numbers, or a failed sync, demand."""
    allowed = (status.get("disruptionsAllowed") or 0) > 0
    reason = SYNC_FAILED if sync_error else SUFFICIENT_PODS if allowed else INSUFFICIENT_PODS
    state = "True" if allowed and not sync_error else "False"
    before = _condition(status.get("conditions") or ())
    same = before is not None and before.get("status") == state
    condition: Document = {
        "type": DISRUPTION_ALLOWED,
        "status": state,
        "observedGeneration": status.get("observedGeneration") or 0,
        "lastTransitionTime": before["lastTransitionTime"] if before is not None and same else format_time(now),
        "reason": reason,
        "message": sync_error,
    }
    others = [item for item in status.get("conditions") or () if item.get("type") != DISRUPTION_ALLOWED]
    return [*others, condition]


def _condition(conditions: Iterable[Document]) -> Document | None:
    return next((item for item in conditions if item.get("type") == DISRUPTION_ALLOWED), None)


def _number(budget: Document, field: str) -> int:
    value: Any = (budget.get("status") or {}).get(field)
    return int(value or 0)
