"""Which Pods of lower priority would have to go for a group, in the whole cluster.

Units of lower priority are hidden and the group cycle runs once; its placement is kept. Then the units are put back
one by one, the most important first, as long as every Pod of the group still fits on its node. In a large cluster,
units are first hidden on some nodes only, those with the least important Pods, then on more, and at last on all.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from dray.api.pod_groups import priority_of
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.framework.pod_info import PodInfo
from dray.framework.status import Status, unschedulable
from dray.scheduler.group_cycle import topology_key
from dray.scheduler.group_dry_run import GroupDryRun
from dray.scheduler.handle import Handle
from dray.scheduler.preemption.budgets import Budget, split_by_violation
from dray.scheduler.preemption.dry_run import reprieve_several
from dray.scheduler.preemption.units import Unit, units_of

NO_VICTIMS: Final = "No preemption victims found for incoming preemptor"
NOT_KEPT: Final = "the placement of the pod group does not fit any more"

# Each time the group does not fit, units are hidden on so many times more nodes: a group that fits nowhere costs little
# more than one search on all nodes.
NODES_FACTOR: Final = 8


class GroupCandidate(msgspec.Struct, frozen=True):
    """A placement of a group without the victims."""

    # The node of each Pod by uid.
    nodes: Mapping[str, str]
    # The most important first.
    victims: tuple[PodInfo, ...]
    # The number of victims whose eviction violates a disruption budget.
    violations: int = 0


def search_widths(node_count: int, least: int) -> Iterator[int]:
    """Yield on how many nodes units are hidden, one after the other until the group fits; the last is all of them."""
    width = max(least, 1)
    while width < node_count:
        yield width
        width *= NODES_FACTOR
    yield node_count


def units_within(units: Sequence[Unit], width: int) -> list[Unit]:
    """Return the units with Pods on so many nodes, those on which the most important unit is the least important."""
    highest: dict[str, int] = {}
    for unit in units:
        for name in _node_names(unit):
            highest[name] = max(highest.get(name, unit.priority), unit.priority)
    # Nodes with equal priorities keep their order.
    chosen = frozenset(sorted(highest, key=highest.__getitem__)[:width])
    return [unit for unit in units if not chosen.isdisjoint(_node_names(unit))]


def group_dry_runs(
    handle: Handle,
    group: PodGroup,
    members: Sequence[PodInfo],
    budgets: Callable[[], Sequence[Budget]],
    least_nodes: int,
) -> Iterator[GroupCandidate | Status]:
    """Yield the results of dry runs on more and more nodes, the last of which is that of the whole search.

    Nothing is hidden while the caller has control, and each dry run looks at the cluster as it is then.
    """
    count, priority = len(handle.snapshot), priority_of(group)
    # All domains of a topology are compared with each other.
    for width in (count,) if topology_key(group) else search_widths(count, least_nodes):
        with handle.dry_run_group(group, members) as dry_run:
            pods = (pod for node in handle.snapshot for pod in node.pods.values())
            units = [unit for unit in units_of(pods, handle.pod_groups) if unit.priority < priority]
            potential = units_within(units, width)
            found = find_group_victims(dry_run, potential, budgets())
        yield found
        if isinstance(found, GroupCandidate) or len(potential) == len(units):
            return


def find_group_victims(
    dry_run: GroupDryRun, units: Sequence[Unit], budgets: Sequence[Budget]
) -> GroupCandidate | Status:
    """Return where the group fits without which Pods, or why it does not; what it gets there is kept by plugins."""
    if not units:
        return unschedulable(NO_VICTIMS)
    potential = sorted(units, key=Unit.importance)
    dry_run.hide([pod for unit in potential for pod in unit.pods])
    outcome, nodes = dry_run.place()
    if not outcome.status.is_success:
        return outcome.status
    violating, others = split_by_violation(potential, budgets)
    counts = {id(unit): count for unit, count in violating}
    # Members of different nodes may still want the same device, one that several nodes can use: then nothing is local.
    for is_local in (True, False) if dry_run.is_monotonic(outcome) else (False,):
        attempt = _Reprieve(dry_run, nodes, is_local=is_local)
        gone = {id(unit) for unit in (*attempt.of([unit for unit, _ in violating]), *attempt.of(others))}
        if dry_run.keep(nodes):
            victims = tuple(pod for unit in potential if id(unit) in gone for pod in unit.pods)
            return GroupCandidate(nodes, victims, sum(counts.get(key, 0) for key in gone))
        dry_run.hide([pod for unit in potential if id(unit) not in gone for pod in unit.pods])
    return unschedulable(NOT_KEPT)


class _Reprieve:
    """Puts units back as long as the group fits.

    If filters look at one node alone, a unit matters only to the members on its nodes: no others are placed again.
    """

    def __init__(self, dry_run: GroupDryRun, nodes: Mapping[str, str], *, is_local: bool) -> None:
        self._dry_run = dry_run
        self._nodes = nodes
        self._is_local = is_local

    def of(self, units: Sequence[Unit]) -> list[Unit]:
        """Put back what is possible, the first ones first; return the others."""
        if not self._is_local:
            return [unit for unit in units if not self._put_back(self._nodes, (unit,))]
        used = frozenset(self._nodes.values())
        # The Pods of other nodes are in nobody's way.
        self._dry_run.show([pod for unit in units if not _nodes_among(unit, used) for pod in unit.pods])
        victims: list[Unit] = []
        for names, dependent in _parts([unit for unit in units if _nodes_among(unit, used)], used):
            members = {uid: name for uid, name in self._nodes.items() if name in names}
            victims += reprieve_several(dependent, partial(self._put_back, members))
        return victims

    def _put_back(self, members: Mapping[str, str], units: Sequence[Unit]) -> bool:
        pods = [pod for unit in units for pod in unit.pods]
        self._dry_run.show(pods)
        if self._dry_run.fits(members):
            return True
        self._dry_run.hide(pods)
        return False


def _nodes_among(unit: Unit, used: Container[str]) -> list[str]:
    """Return which of the nodes the unit has Pods on."""
    return [name for name in _node_names(unit) if name in used]


def _node_names(unit: Unit) -> list[str]:
    return [pod.pod.spec.node_name or "" for pod in unit.pods]


def _parts(units: Sequence[Unit], used: Container[str]) -> Iterator[tuple[frozenset[str], list[Unit]]]:
    """Yield the units that have nodes in common, directly or by other units, with all their nodes; others are apart."""
    part_of: dict[str, set[str]] = {}
    for unit in units:
        names = _nodes_among(unit, used)
        part = set(names).union(*(part_of.get(name, ()) for name in names))
        part_of |= dict.fromkeys(part, part)
    parts = {id(part): (part, list[Unit]()) for part in part_of.values()}
    for unit in units:
        parts[id(part_of[_nodes_among(unit, used)[0]])][1].append(unit)
    for part, dependent in parts.values():
        yield frozenset(part), dependent
