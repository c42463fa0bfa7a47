"""Sets of NUMA nodes that could serve a request, and how hints of several resources become one. Pure.

A set of NUMA nodes is an int with one bit for each node. Terms and rules are those of Kubernetes' topology manager:
a resource may say that it does not care (None), that it cannot be served (no hint), or list every set that would do,
the preferred ones being the smallest that the machine could serve the request from when nothing is in use.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

# Kubernetes' bound: the number of sets doubles with each node.
NUMA_NODES_MAX: Final = 8
# Numbers beyond are a plugin's mistake, and must not cost memory.
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
    """The set of these nodes; numbers that no node can have stand for none."""
    mask = 0
    for node in nodes:
        if 0 <= node <= NUMA_NODE_ID_MAX:
            mask |= 1 << node
    return mask


def nodes_of(mask: int) -> tuple[int, ...]:
    """The nodes of the set, in order."""
    return tuple(node for node in range(mask.bit_length()) if mask >> node & 1)


def subsets(mask: int) -> Iterator[int]:
    """Every set of some of the nodes, small ones first, then those of lower nodes."""
    nodes = nodes_of(mask)
    for size in range(1, len(nodes) + 1):
        yield from (mask_of(chosen) for chosen in itertools.combinations(nodes, size))


def item_hints(
    nodes: int, everything: Collection[int], available: Collection[int], reusable: Collection[int], request: int
) -> list[Hint]:
    """The hints for so many items out of `available` and `reusable`; each item is the set of nodes it is close to.

    Reusable items that have a place must be inside the set: they are taken in any case.
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
    """One list for each resource of each provider; a provider without any does not care."""
    lists = []
    for hints in providers:
        if not hints:
            lists.append([ANY])
        for name in sorted(hints):
            offered = hints[name]
            lists.append([ANY] if offered is None else list(offered) or [_IMPOSSIBLE])
    return lists


def single_node(lists: Iterable[Sequence[Hint]]) -> list[list[Hint]]:
    """Only what is preferred and needs one node, or none in particular."""
    return [
        [hint for hint in hints if hint.preferred and (hint.affinity is None or hint.affinity.bit_count() == 1)]
        for hints in lists
    ]


def merge(machine: int, lists: Sequence[Sequence[Hint]]) -> Hint:
    """The best combination of one hint from each list; the whole machine, not preferred, when none fits together."""
    wanted_width = max((_least_width(hints) for hints in lists), default=0)
    best: Hint | None = None
    # Combining list by list keeps the number of candidates at the number of sets, whatever the number of lists.
    for candidate in _combinations(machine, lists):
        if best is None or _is_better(candidate, best, wanted_width):
            best = candidate
    return best or Hint(machine, preferred=False)


def _least_width(hints: Sequence[Hint]) -> int:
    return min((hint.affinity.bit_count() for hint in hints if hint.affinity is not None), default=0)


@dataclass(frozen=True, slots=True)
class _Partial:
    """Some lists combined: what they have in common, and whether all so far were preferred and the same set."""

    mask: int
    preferred: bool
    # The one set all of them named; None when none has named any.
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
    """Narrow sets first; among those not preferred the nearest to the wanted width from below, then from above."""
    assert hint.affinity is not None
    width = hint.affinity.bit_count()
    if hint.preferred:
        return 0, width, hint.affinity
    return (0, wanted_width - width, hint.affinity) if width <= wanted_width else (1, width, hint.affinity)


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
