"""Runs of the simulations, by variant and seed; everything in a run follows from these two."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Protocol

import pytest

from dray.sim.replica.virtual_time import run_virtually
from tests.simulation.classic_simulation import ClassicSimulation
from tests.simulation.cluster_simulation import ClusterSimulation
from tests.simulation.eviction_simulation import EvictionSimulation
from tests.simulation.network import FAULTS, FaultRates
from tests.simulation.workload_simulation import WorkloadSimulation

STORY_LINES_MAX = 200


class Simulation(Protocol):
    """One run of one cluster."""

    rates: FaultRates
    story: list[str]

    async def run(self) -> None:
        """Run to the end; raises `AssertionError` for a broken promise."""


def _stale_caches(seed: int) -> ClusterSimulation:
    """Caches of schedulers and claim controllers in the three patterns that break controllers.

    They crash in intermediate states, miss states, and begin a life with a state of the past.
    """
    return ClusterSimulation(seed, schedulers=2, rates=FaultRates(crash=0.03, watch_gap=0.03, list_stale=0.5))


def _clock_jumps(seed: int) -> ClusterSimulation:
    return ClusterSimulation(seed, schedulers=1, rates=FaultRates(clock_jump=0.02))


VARIANTS: Mapping[str, Callable[[int], Simulation]] = {
    "one_scheduler": partial(ClusterSimulation, schedulers=1),
    "two_schedulers": partial(ClusterSimulation, schedulers=2),
    "extended_one_scheduler": partial(ClusterSimulation, schedulers=1, extended=True),
    "extended_two_schedulers": partial(ClusterSimulation, schedulers=2, extended=True),
    "exclusive_devices": partial(ClusterSimulation, schedulers=2, exclusive=True),
    "stale_caches": _stale_caches,
    "clock_jumps": _clock_jumps,
    "classic_one_scheduler": partial(ClassicSimulation, schedulers=1),
    "classic_two_schedulers": partial(ClassicSimulation, schedulers=2),
    "workloads": WorkloadSimulation,
    "evictions": EvictionSimulation,
}


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

    @property
    def replay(self) -> str:
        """The command that repeats the run."""
        return f"make simulate RUNS=1 SEED={self.seed} VARIANT={self.variant}"


def run(variant: str, seed: int) -> Outcome:
    """Run one variant with one seed."""
    simulation = VARIANTS[variant](seed)
    violation = ""
    try:
        run_virtually(simulation.run())
    except Exception as failure:  # noqa: BLE001 - whatever ends a run is a finding
        violation = f"{type(failure).__name__}: {failure}"
    rates = simulation.rates
    return Outcome(variant, seed, rates.steps, rates.fired, violation, tuple(simulation.story))


@cache
def _run_once(variant: str, seed: int) -> Outcome:
    return replace(run(variant, seed), story=())


def faults_of(variant: str, seed: int) -> Counter[str]:
    """Return the faults of a run, which is made at most once in a test session; fails if it broke a promise."""
    outcome = _run_once(variant, seed)
    if outcome.violation:
        print("\n".join(run(variant, seed).story[-STORY_LINES_MAX:]))
        pytest.fail(f"{outcome.violation}\nreplay: {outcome.replay}")
    return outcome.faults


def declared_faults(variant: str) -> set[str]:
    """Return the faults that the variant is to have."""
    rates = VARIANTS[variant](0).rates
    return {name for name in FAULTS if getattr(rates, name)}


def seeds(listed: Iterable[int]) -> list[Any]:
    """Return the listed seeds, or those of DRAY_SEED."""
    chosen = os.environ.get("DRAY_SEED")
    return [int(text) for text in chosen.split(",")] if chosen else list(listed)
