"""Selects CPUs so that containers share cores, caches and memory paths as little as possible. Pure.

Whole sockets come first, then whole NUMA nodes, then whole cores, as far as they fit into the request; single CPUs
come last, from cores and nodes that are partly used already. Fuller groups come before emptier ones, so that the
emptier ones stay whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dray.node.topology.machine import CPU, Machine


class TooFewCPUsError(Exception):
    """Not enough CPUs are free."""


@dataclass(slots=True)
class _Taking:
    free: set[int]
    taken: set[int]
    missing: int


def take(machine: Machine, free: Iterable[int], count: int) -> frozenset[int]:
    """Return `count` of the free CPUs; raises `TooFewCPUsError`."""
    state = _Taking(set(free), set(), count)
    if len(state.free) < count:
        raise TooFewCPUsError(
            f"not enough cpus available to satisfy request: requested={count}, available={len(state.free)}"
        )
    for place in (_socket, _node, _core):
        _take_whole(machine, state, place)
    _take_single(machine, state)
    return frozenset(state.taken)


def _socket(cpu: CPU) -> tuple[int, ...]:
    return (cpu.socket,)


def _node(cpu: CPU) -> tuple[int, ...]:
    return (cpu.numa_node,)


def _core(cpu: CPU) -> tuple[int, ...]:
    return cpu.numa_node, cpu.core


def _take_whole(machine: Machine, state: _Taking, place: Callable[[CPU], tuple[int, ...]]) -> None:
    groups: dict[tuple[int, ...], list[CPU]] = {}
    for cpu in machine.cpus:
        groups.setdefault(place(cpu), []).append(cpu)
    whole = [group for group in groups.values() if all(cpu.id in state.free for cpu in group)]
    for group in sorted(whole, key=lambda group: _closeness(machine, state, group[0])):
        if len(group) <= state.missing:
            _move(state, [cpu.id for cpu in group])


def _take_single(machine: Machine, state: _Taking) -> None:
    left = [cpu for cpu in machine.cpus if cpu.id in state.free]
    siblings = {cpu.id: sum(1 for other in left if _core(other) == _core(cpu)) for cpu in left}
    left.sort(key=lambda cpu: (_closeness(machine, state, cpu)[:2], siblings[cpu.id], cpu.id))
    _move(state, [cpu.id for cpu in left[: state.missing]])


def _closeness(machine: Machine, state: _Taking, cpu: CPU) -> tuple[int, int, int]:
    """Return a sort key: NUMA nodes of CPUs taken before come first, then nodes with fewer free CPUs."""
    beside = any(other.id in state.taken and other.numa_node == cpu.numa_node for other in machine.cpus)
    free = sum(1 for other in machine.cpus if other.id in state.free and other.numa_node == cpu.numa_node)
    return int(not beside), free, cpu.id


def _move(state: _Taking, cpus: Iterable[int]) -> None:
    for cpu in cpus:
        state.free.discard(cpu)
        state.taken.add(cpu)
        state.missing -= 1
