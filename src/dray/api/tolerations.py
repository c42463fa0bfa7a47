"""Matching of tolerations and taints, for scheduler and controllers."""

from __future__ import annotations

from typing import Final

from dray.api.types.core_v1 import Taint, Toleration

_EVERY_VALUE: Final = "Exists"


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Report whether the toleration matches the taint; an empty effect or key matches any."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == _EVERY_VALUE:
        return True
    return bool(toleration.key) and (toleration.value or "") == (taint.value or "")
