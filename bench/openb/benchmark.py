"""Benchmark rows of the trace with one seed: allocated GPUs and CPU time."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from unittest.mock import patch

import uvloop

from bench.openb.published import PUBLISHED
from bench.openb.run import Result, run
from bench.openb.trace import TraceMissingError, read_nodes, read_pods
from bench.rows import Row, Target, progress
from dray.scheduler.named_profiles import PACK, SPREAD

SEED: Final = 42
LISTS: Final = ("default", "gpuspec33", "multigpu50", "gpushare100", "cpu250")
# Milliseconds of processor time for a Pod, of all components.
STACK_TARGET: Final = Target(4.0)
# Seconds for all Pods of the list `default`, one after the other, over TLS.
TLS_TARGET: Final = Target(60.0)
_SAMPLE: Final = Path(__file__).parent / "sample"


def _placed(name: str, engine: str, profile: str) -> Result:
    progress(f"openb, {name}, {profile}, {engine}")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(read_nodes(), read_pods(name), SEED, engine_name=engine, profile=profile))


def rows(*, quick: bool = False) -> Iterator[Row]:
    """Measure the lists; in quick sizes, and without the trace, the small made-up one."""
    try:
        read_nodes()
    except TraceMissingError as missing:
        sys.stderr.write(f"{missing}; the rows are of the sample\n")
        quick = True
    if not quick:
        yield from _rows(LISTS)
        return
    with patch.dict(os.environ, OPENB=str(_SAMPLE)):
        yield from _rows(("sample",))


def _rows(lists: tuple[str, ...]) -> Iterator[Row]:
    for name in lists:
        found = _placed(name, "core", PACK)
        parameters = _parameters(found) | {"unusable": f"{found.unusable:.2f} %"}
        for mark in (100, 130):
            floor = PUBLISHED[name]["FGD"][mark] if name in PUBLISHED else None
            target = None if floor is None else Target(floor, at_least=True)
            yield Row(
                f"openb: {name}, pack, {mark} % arrived", found.allocated_at(mark), "% allocated", parameters, target
            )
    name = lists[0]
    for profile in (SPREAD, PACK):
        found = _placed(name, "stack", profile)
        milliseconds = 1000 * found.processor_seconds / found.pods
        target = STACK_TARGET if name in PUBLISHED else None
        yield Row(f"openb: {name}, {profile}, whole stack", milliseconds, "ms/pod", _parameters(found), target)
    found = _placed(name, "tls", SPREAD)
    target = TLS_TARGET if name in PUBLISHED else None
    yield Row(f"openb: {name}, over TLS, one client", found.seconds, "s", _parameters(found), target)


def _parameters(found: Result) -> dict[str, object]:
    processor = f"{1000 * found.processor_seconds / found.pods:.2f}ms/pod"
    return {"seed": found.seed, "pods": found.pods, "placed": found.placed, "processor": processor}
