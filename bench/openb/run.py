"""Runs one list with one seed; reports GPUs allocated after arrivals of 100 % and 130 % of capacity, and CPU time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.load import cpu_seconds
from bench.openb.engines import Engine, engine
from bench.openb.fragmentation import unusable_percent
from bench.openb.trace import TraceNode, TracePod, arrivals, milli_gpus

# Points of the curve: share of GPUs arrived, in percent.
STEP_PERCENT: Final = 1
ALL_PERCENT: Final = 100


@dataclass(slots=True)
class Result:
    """One run of a list."""

    seed: int
    pods: int
    placed: int
    # Percent of all GPUs allocated when this percentage had arrived.
    curve: list[tuple[int, float]]
    seconds: float
    processor_seconds: float
    # Pods in the order of their arrival with their node, None if passed over.
    placements: list[tuple[TracePod, str | None]]
    # Percent of all GPUs that is free in the end and that a typical Pod cannot use, as expected.
    unusable: float

    def allocated_at(self, percent: int) -> float:
        """Return the percentage of all GPUs allocated when `percent` had arrived."""
        return next(allocated for arrived, allocated in self.curve if arrived >= percent)


async def run(
    nodes: Sequence[TraceNode], pods: Sequence[TracePod], seed: int, *, engine_name: str, profile: str
) -> Result:
    """Schedule the arrivals of one seed."""
    total = milli_gpus(nodes)
    arriving = arrivals(pods, total, seed)
    curve: list[tuple[int, float]] = []
    placements: list[tuple[TracePod, str | None]] = []
    arrived = allocated = 0
    async with engine(engine_name, nodes, arriving, profile) as placing:
        started, used = time.perf_counter(), _processor_seconds(placing)
        for number, pod in enumerate(arriving):
            node_name = await placing.place(number, pod)
            placements.append((pod, node_name))
            arrived += pod.total_milli_gpu
            allocated += pod.total_milli_gpu if node_name is not None else 0
            percent = ALL_PERCENT * arrived // total
            if not curve or percent >= curve[-1][0] + STEP_PERCENT:
                curve.append((percent, ALL_PERCENT * allocated / total))
        curve.append((ALL_PERCENT * arrived // total, ALL_PERCENT * allocated / total))
        seconds, used = time.perf_counter() - started, _processor_seconds(placing) - used
        unusable = unusable_percent(nodes, placements, await placing.shares())
    placed = sum(node_name is not None for _, node_name in placements)
    return Result(seed, len(arriving), placed, curve, seconds, used, placements, unusable)


def _processor_seconds(placing: Engine) -> float:
    """Return the processor time of this process, and of the cluster's if it is another one."""
    return time.process_time() + (cpu_seconds(placing.server_pid) if placing.server_pid is not None else 0.0)
