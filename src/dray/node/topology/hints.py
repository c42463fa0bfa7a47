"""Topology hints and the policies that merge them. Pure.

A set of NUMA nodes is an int with one bit for each node. Terms and rules are those of Kubernetes' topology manager: a
resource has no preference (None), cannot be served (no hint), or lists every set that can serve the request; preferred
are the smallest sets that could serve it if nothing were in use.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

# Kubernetes' limit: the number of sets doubles with each node.
NUMA_NODES_MAX: Final = 8
# Larger numbers are a plugin's mistake, and must not cost memory.
NUMA_NODE_ID_MAX: Final = 63


@dataclass(frozen=True, slots=True)
class Hint:
    """A set of NUMA nodes; None means any."""

    affinity: int | None
    preferred: bool


# By resource name.
ResourceHints: TypeAlias = Mapping[str, Sequence[Hint] | None]

ANY: Final = Hint(None, preferred=True)
_IMPOSSIBLE: Final = Hint(None, preferred=False)


def mask_of(nodes: Iterable[int]) -> int:
    """Return the set of these nodes; invalid numbers are ignored."""
    mask = 0
    for node in nodes:
        if 0 <= node <= NUMA_NODE_ID_MAX:
            mask |= 1 << node
    return mask


def nodes_of(mask: int) -> tuple[int, ...]:
    """Return the nodes of the set, in order."""
    return tuple(node for node in range(mask.bit_length()) if mask >> node & 1)


def subsets(mask: int) -> Iterator[int]:
    """Yield every non-empty subset, smaller ones first, then those of lower nodes."""
    nodes = nodes_of(mask)
    for size in range(1, len(nodes) + 1):
        yield from (mask_of(chosen) for chosen in itertools.combinations(nodes, size))


def item_hints(
    nodes: int, everything: Collection[int], available: Collection[int], reusable: Collection[int], request: int
) -> list[Hint]:
    """Return the hints for `request` items out of `available` and `reusable`; each item is the set of its NUMA nodes.

    Reusable items with NUMA nodes must be inside the set: they are always used.
    """
    width = nodes.bit_count()
    found = []
    for mask in subsets(nodes):
        if mask.bit_count() < width and sum(1 for item in everything if item & mask) >= request:
            width = mask.bit_count()
        if any(item and not item & mask for item in reusable):
            continue
        if sum(1 for item in itertools.chain(available, reusable) if item & mask) >= request:
            found.append(mask)
    return [Hint(mask, preferred=mask.bit_count() == width) for mask in found]


def flatten(providers: Iterable[ResourceHints]) -> list[list[Hint]]:
    """Return one list for each resource of each provider; a provider without hints has no preference."""
    lists = []
    for hints in providers:
        if not hints:
            lists.append([ANY])
        for name in sorted(hints):
            offered = hints[name]
            lists.append([ANY] if offered is None else list(offered) or [_IMPOSSIBLE])
    return lists


def single_node(lists: Iterable[Sequence[Hint]]) -> list[list[Hint]]:
    """Return only preferred hints of one node, or without nodes."""
    return [
        [hint for hint in hints if hint.preferred and (hint.affinity is None or hint.affinity.bit_count() == 1)]
        for hints in lists
    ]


def merge(machine: int, lists: Sequence[Sequence[Hint]]) -> Hint:
    """Return the best combination of one hint from each list; without one, the whole machine, not preferred."""
    wanted_width = max((_least_width(hints) for hints in lists), default=0)
    best: Hint | None = None
    # Combining list by list limits the number of candidates to the number of sets.
    for candidate in _combinations(machine, lists):
        if best is None or _is_better(candidate, best, wanted_width):
            best = candidate
    return best or Hint(machine, preferred=False)


def _least_width(hints: Sequence[Hint]) -> int:
    return min((hint.affinity.bit_count() for hint in hints if hint.affinity is not None), default=0)


@dataclass(frozen=True, slots=True)
class _Partial:
    """A combination of hints of some lists: the intersection, and whether all were preferred and equal."""

    mask: int
    preferred: bool
    # The set of the first hint that has one.
    common: int | None


def _combinations(machine: int, lists: Sequence[Sequence[Hint]]) -> list[Hint]:
    partials: dict[_Partial, None] = {_Partial(machine, preferred=True, common=None): None}
    for hints in lists:
        partials = dict.fromkeys(_combine(partial, hint) for partial in partials for hint in hints)
    merged = (Hint(partial.mask, partial.preferred) for partial in partials if partial.mask)
    return list(dict.fromkeys(merged))


def _combine(partial: _Partial, hint: Hint) -> _Partial:
    if hint.affinity is None:
        return _Partial(partial.mask, partial.preferred and hint.preferred, partial.common)
    same = partial.common is None or partial.common == hint.affinity
    common = hint.affinity if partial.common is None else partial.common
    return _Partial(partial.mask & hint.affinity, partial.preferred and hint.preferred and same, common)


def _is_better(candidate: Hint, best: Hint, wanted_width: int) -> bool:
    if candidate.preferred != best.preferred:
        return candidate.preferred
    return _order(candidate, wanted_width) < _order(best, wanted_width)


def _order(hint: Hint, wanted_width: int) -> tuple[int, int, int]:
    """Return a sort key: smaller sets first; if not preferred, those closest to the wanted width from below first."""
    assert hint.affinity is not None
    width = hint.affinity.bit_count()
    if hint.preferred:
        return 0, width, hint.affinity
    return (0, wanted_width - width, hint.affinity) if width <= wanted_width else (1, width, hint.affinity)


class Policy(enum.StrEnum):
    """The topology manager policies, with Kubernetes' names."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


class Scope(enum.StrEnum):
    """The topology manager scopes."""

    CONTAINER = "container"
    POD = "pod"


def decide(policy: Policy, machine: int, providers: Iterable[ResourceHints]) -> tuple[Hint, bool]:
    """Return the hint to allocate by and whether to admit; `machine` is the set of all NUMA nodes."""
    if policy is Policy.NONE:
        return ANY, True
    lists = flatten(providers)
    if policy is Policy.SINGLE_NUMA_NODE:
        best = merge(machine, single_node(lists))
        # The whole machine is no restriction, unless it is one node.
        if best.affinity == machine:
            best = Hint(None, best.preferred)
        return best, best.preferred
    best = merge(machine, lists)
    return best, best.preferred or policy is Policy.BEST_EFFORT
