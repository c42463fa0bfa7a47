"""What a quota's status should say; pure.

Admission raises the usage before the object is there. A recount in between would not see the object, and
lowering the usage would give out the same amount again. So usage that the account cannot explain is lowered
only after nobody has raised it for a while: by then the write has happened, or never will. What objects have
visibly stopped using is explained, and is given back at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dray.api.quantity import Quantity
from dray.api.quota.usage import ZERO, Usage, parse_amounts, write_amounts
from dray.api.types.core_v1 import ResourceQuota, ResourceQuotaStatus

# From its reservation to the news of it a write takes milliseconds; far longer than a busy disk makes it.
PATIENCE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The status to write, None when it is right; and when to look again, None when nothing is waited for."""

    status: ResourceQuotaStatus | None = None
    again_seconds: float | None = None


def plan_quota(quota: ResourceQuota, counted: Usage, freed: Usage, quiet_seconds: float) -> Plan:
    """Compare a quota's status with the account; `quiet_seconds` is how long nobody else has changed the usage."""
    reported = parse_amounts(quota.status.used)
    doubtful = {
        name
        for name, amount in counted.items()
        if amount < reported.get(name, ZERO) and amount + freed.get(name, ZERO) != reported[name]
    }
    waiting = bool(doubtful) and quiet_seconds < PATIENCE_SECONDS
    used = {name: reported[name] if waiting and name in doubtful else amount for name, amount in counted.items()}
    again = PATIENCE_SECONDS - quiet_seconds if waiting else None
    if _same(used, reported) and _same_texts(quota.spec.hard, quota.status.hard):
        return Plan(None, again)
    return Plan(ResourceQuotaStatus(hard=quota.spec.hard, used=write_amounts(used)), again)


def _same(one: Usage, other: Usage) -> bool:
    return one.keys() == other.keys() and all(amount == other[name] for name, amount in one.items())


def _same_texts(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    return one.keys() == other.keys() and all(
        Quantity.parse(text) == Quantity.parse(other[name]) for name, text in one.items()
    )
