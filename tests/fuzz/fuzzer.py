"""Runs fuzz targets: documents drawn by hypothesis from a seed, each sent with mutations, and every answer checked.

A finding is an exception, an answer of 500 or more, more CPU time than the bytes of the input are worth, or memory that
keeps growing.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning, NonInteractiveExampleWarning

from tests.fuzz.inputs import mutated
from tests.fuzz.target import Finding, FuzzedServer, Sent, Target
from tests.fuzz.targets import TARGETS, fuzzed_server

# Documents of one seed, and inputs made from each: itself, and mutations of it.
DOCUMENTS = 10
MUTATIONS = 60
MUTATED_BYTES_MAX = 1_000_000
# Of any input, and for each of its bytes: a body of 3 MiB may take 6 s, and one of a kilobyte 52 ms.
CPU_SECONDS_MAX = 0.05
CPU_SECONDS_PER_BYTE = 2e-6
# An input that took too long is sent again; what else the machine does takes time from one of them, not from all.
ATTEMPTS = 3
# After a warm-up; caches of types and texts fill slowly.
GROWTH_BYTES_MAX = 200 * 1024 * 1024
FINDINGS_MAX = 50


@dataclass(slots=True)
class Report:
    """What one run did."""

    inputs: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    # Targets and problems that have been reported.
    known: set[tuple[str, str]] = field(default_factory=set)
    growth_bytes: int = 0

    @property
    def total(self) -> int:
        """All inputs."""
        return sum(self.inputs.values())


def drawn(target: Target, number: int, count: int) -> list[Sent]:
    """The documents of a seed; the same for the same seed."""
    found: list[Sent] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def collect(data: st.DataObject) -> None:
        found.append(data.draw(target.inputs))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HypothesisWarning)
        warnings.simplefilter("ignore", NonInteractiveExampleWarning)
        collect()
    return found


def variants(target: Target, document: Sent, number: int, index: int) -> Iterator[Sent]:
    """The document itself, and mutations of its body or target."""
    yield document
    rng = random.Random(f"{number}/{index}")
    # Fewer of large ones.
    for _ in range(min(MUTATIONS, 1 + MUTATED_BYTES_MAX // max(document.size, 1))):
        if target.mutates_target:
            text = mutated(document.target.encode(), rng).decode("latin-1")
            yield Sent(document.method, text, document.body, document.media)
        else:
            yield Sent(document.method, document.target, mutated(document.body, rng), document.media)


async def fuzz_seed(server: FuzzedServer, name: str, number: int, report: Report, count: int = DOCUMENTS) -> None:
    """Send all inputs of one seed to one target."""
    target = TARGETS[name]
    for index, document in enumerate(drawn(target, number, count)):
        for sent in variants(target, document, number, index):
            report.inputs[name] = report.inputs.get(name, 0) + 1
            problem = await _problem(server, target, sent)
            # The same problem again hides no other one.
            if problem and (name, problem) not in report.known and len(report.findings) < FINDINGS_MAX:
                report.known.add((name, problem))
                report.findings.append(
                    f"{name}: {problem}\n  {sent.method} {sent.target[:200]} {sent.media}\n  {sent.body[:300]!r}\n"
                    f"  replay: python -m tests.fuzz --only {name} --seed {number} --seeds 1"
                )


async def _problem(server: FuzzedServer, target: Target, sent: Sent) -> str:
    allowed = CPU_SECONDS_MAX + sent.size * CPU_SECONDS_PER_BYTE
    for _ in range(ATTEMPTS):
        started = time.process_time()
        try:
            await target.run(server, sent)
        except Finding as finding:
            return str(finding)[:500]
        except Exception as error:  # noqa: BLE001 - whatever it is, it is found
            return f"{type(error).__name__}: {str(error)[:300]} at {_where(error)}"
        spent = time.process_time() - started
        if spent <= allowed:
            return ""
    return f"took {spent:.2f} s of CPU time for {sent.size:,} bytes"


def _where(error: Exception) -> str:
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return f"{Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}" if frame is not None else "?"


def memory_bytes() -> int:
    """The resident memory of this process."""
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


async def fuzz(names: list[str], first: int, *, seeds: int | None, seconds: float) -> Report:
    """Fuzz the targets in turn, for a number of seeds or a time."""
    report = Report()
    until = time.monotonic() + seconds
    number = first
    async with fuzzed_server() as server:
        before = 0
        while (seeds is None or number < first + seeds) and (seeds is not None or time.monotonic() < until):
            for name in names:
                await fuzz_seed(server, name, number, report)
                await asyncio.sleep(0)
            number += 1
            # The first rounds fill the caches.
            if number == first + 2:
                before = memory_bytes()
        if before:
            report.growth_bytes = memory_bytes() - before
            if report.growth_bytes > GROWTH_BYTES_MAX:
                report.findings.append(f"memory grew by {report.growth_bytes / 2**20:.0f} MiB")
    return report
