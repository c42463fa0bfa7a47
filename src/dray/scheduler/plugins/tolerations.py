"""Which taints a Pod tolerates; shared by the plugins that look at taints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dray.api.tolerations import tolerates
from dray.api.types.core_v1 import Taint, Toleration

__all__ = ["tolerates", "untolerated"]


def untolerated(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> Taint | None:
    """The first taint that no toleration is for."""
    for taint in taints:
        if not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None
