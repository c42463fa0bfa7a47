"""What becomes of hints: whether a container or Pod is admitted, and from which NUMA nodes it is served. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from dray.node.topology.hints import ANY, Hint, ResourceHints, flatten, merge, single_node


class Policy(enum.StrEnum):
    """Kubernetes' names."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


class Scope(enum.StrEnum):
    """What is aligned as one."""

    CONTAINER = "container"
    POD = "pod"


def decide(policy: Policy, machine: int, providers: Iterable[ResourceHints]) -> tuple[Hint, bool]:
    """The hint to allocate by, and whether to admit; `machine` is the set of all its NUMA nodes."""
    if policy is Policy.NONE:
        return ANY, True
    lists = flatten(providers)
    if policy is Policy.SINGLE_NUMA_NODE:
        best = merge(machine, single_node(lists))
        # The whole machine says nothing, unless it is one node.
        if best.affinity == machine:
            best = Hint(None, best.preferred)
        return best, best.preferred
    best = merge(machine, lists)
    return best, best.preferred or policy is Policy.BEST_EFFORT
