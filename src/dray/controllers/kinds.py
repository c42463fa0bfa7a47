"""The kinds that several controllers follow, and the indexes they share."""

from __future__ import annotations

from typing import Any, Final

PODS_BY_NODE: Final = "spec.nodeName"


def node_name_values(pod: Any) -> tuple[str, ...]:
    """The node of a Pod, for the index `PODS_BY_NODE`."""
    return (pod.spec.node_name,) if pod.spec.node_name else ()
