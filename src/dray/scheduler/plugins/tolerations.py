"""Which taints a Pod tolerates; shared by the plugins that look at taints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from dray.api.types.core_v1 import Taint, Toleration

_EVERY_TAINT: Final = "Exists"


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether the toleration is for the taint: effect and key may be left open, the value goes by the operator."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == _EVERY_TAINT:
        return True
    return bool(toleration.key) and (toleration.value or "") == (taint.value or "")


def untolerated(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> Taint | None:
    """The first taint that no toleration is for."""
    for taint in taints:
        if not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None
