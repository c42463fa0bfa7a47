"""The status of a quota. Pure.

Admission raises the usage before the object exists. A recount in between would miss the object, and lowering the usage
would grant the same amount twice. Therefore usage that the counted objects do not explain is lowered only after no
other writer has raised it for a while: by then the object was written, or never will be. Usage that objects were seen
to release is subtracted at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dray.api.quantity import Quantity
from dray.api.quota.usage import ZERO, Usage, parse_amounts, write_amounts
from dray.api.types.core_v1 import ResourceQuota, ResourceQuotaStatus

# Admission and the watch event of the write are milliseconds apart; this is far above what a busy disk adds.
UNEXPLAINED_SECONDS: Final = 5.0
# Differences of times may be too small to be waited for.
RECHECK_SECONDS_MIN: Final = 0.1


@dataclass(frozen=True, slots=True)
class Plan:
    """The status to write, if it changes, and when to check again, if usage is unexplained."""

    status: ResourceQuotaStatus | None = None
    requeue_seconds: float | None = None


def plan_quota(quota: ResourceQuota, counted: Usage, freed: Usage, quiet_seconds: float) -> Plan:
    """Compare a quota's status with the counted usage.

    `quiet_seconds` is how long no other writer has changed the usage.
    """
    reported = parse_amounts(quota.status.used)
    unexplained = {
        name
        for name, amount in counted.items()
        if amount < reported.get(name, ZERO) and amount + freed.get(name, ZERO) != reported[name]
    }
    waiting = bool(unexplained) and quiet_seconds < UNEXPLAINED_SECONDS
    used = {name: reported[name] if waiting and name in unexplained else amount for name, amount in counted.items()}
    requeue = max(UNEXPLAINED_SECONDS - quiet_seconds, RECHECK_SECONDS_MIN) if waiting else None
    if _same(used, reported) and _same_texts(quota.spec.hard, quota.status.hard):
        return Plan(None, requeue)
    return Plan(ResourceQuotaStatus(hard=quota.spec.hard, used=write_amounts(used)), requeue)


def _same(one: Usage, other: Usage) -> bool:
    return one.keys() == other.keys() and all(amount == other[name] for name, amount in one.items())


def _same_texts(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    return one.keys() == other.keys() and all(
        Quantity.parse(text) == Quantity.parse(other[name]) for name, text in one.items()
    )
