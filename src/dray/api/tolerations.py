"""Which taints a Pod tolerates, as scheduler and controllers both read it."""

from __future__ import annotations

from typing import Final

from dray.api.types.core_v1 import Taint, Toleration

_EVERY_VALUE: Final = "Exists"


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether the toleration is for the taint: effect and key may be left open, the value goes by the operator."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == _EVERY_VALUE:
        return True
    return bool(toleration.key) and (toleration.value or "") == (taint.value or "")
