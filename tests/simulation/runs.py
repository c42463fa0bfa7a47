"""Runs of the simulations, by variant and seed; everything in a run follows from these two."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain
from typing import Any, Protocol

import pytest

from tests.simulation.budget_simulation import BudgetSimulation
from tests.simulation.classic_simulation import ClassicSimulation
from tests.simulation.cluster_simulation import ClusterSimulation
from tests.simulation.device_taint_simulation import DeviceTaintSimulation
from tests.simulation.eviction_simulation import EvictionSimulation
from tests.simulation.faults import Faults
from tests.simulation.gang_change_simulation import GangChangeSimulation
from tests.simulation.gang_preemption_simulation import GangPreemptionSimulation
from tests.simulation.gang_simulation import GangLossSimulation, GangSimulation
from tests.simulation.hang_guard import CPU_SECONDS_MAX, HangError, hang_guard
from tests.simulation.housekeeping_simulation import HousekeepingSimulation
from tests.simulation.network import CRASH_OUTCOMES, FAULTS, CrashPoint, FaultRates
from tests.simulation.node_simulation import NodeSimulation
from tests.simulation.preemption_simulation import PreemptionSimulation
from tests.simulation.server_simulation import ServerSimulation
from tests.simulation.store_simulation import StoreSimulation
from tests.simulation.threadless import run_without_threads
from tests.simulation.workload_simulation import WorkloadSimulation

STORY_LINES_MAX = 200


class Simulation(Protocol):
    """One run of one cluster."""

    story: list[str]

    @property
    def rates(self) -> FaultRates | Faults:
        """The faults, and the count of steps."""

    async def run(self) -> None:
        """Run to the end; raises `AssertionError` for a broken promise."""


# Caches in the three patterns that break controllers: a crash in an intermediate state, states that are never observed,
# and a state of the past.
_STALE: Mapping[str, float] = {"crash": 0.03, "watch_gap": 0.03, "watch_stalled": 0.05}
_JUMPS: Mapping[str, float] = {"clock_jump": 0.02}
# Seeds for faults that the listed seeds of a test do not have.
_MORE_SEEDS = 7001, 7021


def _variant(simulation: Callable[..., Simulation], **rates: float) -> Callable[..., Simulation]:
    """Return a simulation with rates of its own, unless others are given."""

    def make(seed: int, **options: Any) -> Simulation:
        return simulation(seed, **{"rates": FaultRates.of(rates)} | options)

    return make


_two_schedulers = partial(ClusterSimulation, schedulers=2)
_classic_two_schedulers = partial(ClassicSimulation, schedulers=2)

VARIANTS: Mapping[str, Callable[..., Simulation]] = {
    "one_scheduler": partial(ClusterSimulation, schedulers=1),
    "two_schedulers": _two_schedulers,
    "extended_one_scheduler": partial(ClusterSimulation, schedulers=1, extended=True),
    "extended_two_schedulers": partial(ClusterSimulation, schedulers=2, extended=True),
    "exclusive_devices": partial(ClusterSimulation, schedulers=2, exclusive=True),
    "stale_caches": _variant(_two_schedulers, **_STALE),
    "clock_jumps": _variant(partial(ClusterSimulation, schedulers=1), **_JUMPS),
    "classic_one_scheduler": partial(ClassicSimulation, schedulers=1),
    "classic_two_schedulers": _classic_two_schedulers,
    "classic_stale_caches": _variant(_classic_two_schedulers, driver_broken=0.03, **_STALE),
    "classic_clock_jumps": _variant(_classic_two_schedulers, driver_broken=0.03, **_JUMPS),
    "device_taints": DeviceTaintSimulation,
    "device_taints_stale_caches": _variant(DeviceTaintSimulation, evicted_binding=0.1, **_STALE),
    "device_taints_clock_jumps": _variant(DeviceTaintSimulation, evicted_binding=0.1, **_JUMPS),
    "workloads": WorkloadSimulation,
    "workloads_stale_caches": _variant(WorkloadSimulation, **_STALE),
    "workloads_clock_jumps": _variant(WorkloadSimulation, crash=0.04, **_JUMPS),
    "budgets": BudgetSimulation,
    "budgets_stale_caches": _variant(BudgetSimulation, **_STALE),
    "housekeeping": HousekeepingSimulation,
    "housekeeping_stale_caches": _variant(HousekeepingSimulation, **_STALE),
    "housekeeping_clock_jumps": _variant(HousekeepingSimulation, crash=0.05, **_JUMPS),
    "evictions": EvictionSimulation,
    "evictions_stale_caches": _variant(EvictionSimulation, heartbeat_lost=0.2, **_STALE),
    "evictions_clock_jumps": _variant(EvictionSimulation, heartbeat_lost=0.2, **_JUMPS),
    "gangs": GangSimulation,
    "gangs_two_schedulers": partial(GangSimulation, schedulers=2),
    "gangs_stale_caches": _variant(GangSimulation, **_STALE),
    "gang_losses": GangLossSimulation,
    "gang_losses_stale_caches": _variant(GangLossSimulation, **_STALE),
    "gang_changes": GangChangeSimulation,
    "gang_changes_stale_caches": _variant(GangChangeSimulation, **_STALE),
    "gang_preemption": GangPreemptionSimulation,
    "gang_preemption_stale_caches": _variant(GangPreemptionSimulation, **_STALE),
    "preemption": PreemptionSimulation,
    "preemption_stale_caches": _variant(PreemptionSimulation, **_STALE),
    "sqlite_store": partial(StoreSimulation, backend="sqlite"),
    "asynchronous_commit": partial(StoreSimulation, backend="sqlite", components=3),
    "etcd_store": partial(StoreSimulation, backend="etcd"),
    "sqlite_server": partial(ServerSimulation, backend="sqlite"),
    "etcd_servers": partial(ServerSimulation, backend="etcd", servers=2),
    "node": NodeSimulation,
    # One crash and no other fault: half the seed is the step at which it is, and the odd seeds are power cuts.
    "node_crash": partial(NodeSimulation, systematic=True),
}

# Those of which every write is made the last one of its process, in turn.
CRASH_VARIANTS = (
    "one_scheduler",
    "two_schedulers",
    "extended_one_scheduler",
    "classic_one_scheduler",
    "device_taints",
    "workloads",
    "housekeeping",
    "evictions",
)


@dataclass(frozen=True)
class Outcome:
    """What happened in a run."""

    variant: str
    seed: int
    steps: int
    faults: Counter[str]
    # The broken promise; empty if there is none.
    violation: str
    story: tuple[str, ...] = ()
    # How often the run took paths that it is meant for.
    paths: Counter[str] = field(default_factory=Counter)
    # The write at which a process crashed, in the form of `CrashPoint.parse`.
    crash: str = ""

    @property
    def replay(self) -> str:
        """The command that repeats the run."""
        crash = f" CRASH={self.crash}" if self.crash else ""
        return f"make simulate RUNS=1 SEED={self.seed} VARIANT={self.variant}{crash}"


def run(variant: str, seed: int) -> Outcome:
    """Run one variant with one seed."""
    return run_simulation(variant, seed, VARIANTS[variant](seed))


def run_with_crash(variant: str, seed: int, crash: str, actions: int | None = None) -> Outcome:
    """Run one variant without any fault but one crash; a shorter run has fewer actions."""
    return run_simulation(variant, seed, _without_faults(variant, seed, CrashPoint.parse(crash), actions), crash)


def crash_points(variant: str, seed: int, actions: int | None = None) -> list[str]:
    """Return all the writes of a run without faults, each with every outcome of a crash."""
    simulation = _without_faults(variant, seed, None, actions)
    outcome = run_simulation(variant, seed, simulation)
    assert not outcome.violation, outcome.violation
    assert isinstance(simulation.rates, FaultRates)
    return [
        str(CrashPoint(process, write, result))
        for process, count in sorted(simulation.rates.writes.items())
        for write in range(1, count + 1)
        for result in CRASH_OUTCOMES
    ]


def _without_faults(variant: str, seed: int, crash: CrashPoint | None, actions: int | None) -> Simulation:
    return VARIANTS[variant](seed, rates=FaultRates.none(crash), **({} if actions is None else {"actions": actions}))


def run_simulation(
    variant: str, seed: int, simulation: Simulation, crash: str = "", hang_seconds: float = CPU_SECONDS_MAX
) -> Outcome:
    """Run a simulation; it takes this long at most."""
    violation = ""
    try:
        with hang_guard(hang_seconds):
            run_without_threads(simulation.run())
    except (Exception, HangError) as failure:  # noqa: BLE001 - whatever ends a run is a finding
        violation = _describe(failure)
    rates = simulation.rates
    return Outcome(variant, seed, rates.steps, rates.fired, violation, tuple(simulation.story), rates.paths, crash)


def _describe(failure: BaseException) -> str:
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return f"{type(failure).__name__}: {failure}"


@cache
def _run_once(variant: str, seed: int) -> Outcome:
    return replace(run(variant, seed), story=())


def faults_of(variant: str, seed: int) -> Counter[str]:
    """Return the faults of a run, which is made at most once in a test session; fails if it broke a promise."""
    return outcome_of(variant, seed).faults


def outcome_of(variant: str, seed: int) -> Outcome:
    """Return what happened in a run, which is made at most once in a test session; fails if it broke a promise."""
    outcome = _run_once(variant, seed)
    if outcome.violation:
        print("\n".join(run(variant, seed).story[-STORY_LINES_MAX:]))
        pytest.fail(f"{outcome.violation}\nreplay: {outcome.replay}")
    return outcome


def declared_faults(variant: str) -> set[str]:
    """Return the faults that the variant is to have."""
    rates = VARIANTS[variant](0).rates
    if isinstance(rates, Faults):
        return rates.declared
    return {name for name in FAULTS if getattr(rates, name)}


def missing_faults(variant: str, listed: Iterable[int]) -> set[str]:
    """Return the declared faults that did not happen with the listed seeds, nor with some more if one is missing.

    Which of the rare faults a seed has changes with every request that the code makes.
    """
    missing = declared_faults(variant)
    for seed in chain(listed, range(*_MORE_SEEDS)):
        if not missing:
            break
        missing = missing - faults_of(variant, seed).keys()
    return missing


def seeds(listed: Iterable[int]) -> list[Any]:
    """Return the listed seeds, or those of DRAY_SEED."""
    chosen = os.environ.get("DRAY_SEED")
    return [int(text) for text in chosen.split(",")] if chosen else list(listed)
