"""Profiles the CPU time of a scheduler workload by function.

`python -m bench.profile WORKLOAD [--pods N]` samples the main thread after each millisecond of processor time. Unlike a
tracing profiler this does not make small functions look expensive. `--below NAME` counts only what NAME called,
`--components` the share of each component.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import uvloop

from bench import scheduler, workloads
from bench.workloads import Workload

INTERVAL_SECONDS = 0.001
Function = str
# From the function that ran to the one that started it all.
Stack = tuple[Function, ...]
# Components by package; what other packages do is part of the component that called them.
COMPONENTS: Final = {
    "apiserver": "API server",
    "store": "API server",
    "scheduler": "scheduler",
    "allocator": "scheduler",
    "framework": "scheduler",
    "controllers": "controllers",
}
OTHER: Final = "informers, event loop, load"


class Sampler:
    """Counts the stacks it finds."""

    def __init__(self) -> None:
        self.stacks: Counter[Stack] = Counter()
        self.main_thread_seconds = 0.0

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Look at the main thread from time to time."""
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_SECONDS, INTERVAL_SECONDS)
        used = time.thread_time()
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self.main_thread_seconds = time.thread_time() - used

    def _look(self, _signal: int, frame: FrameType | None) -> None:
        stack: list[Function] = []
        while frame is not None:
            stack.append(_name(frame))
            frame = frame.f_back
        self.stacks[tuple(stack)] += 1


def _name(frame: FrameType) -> Function:
    code = frame.f_code
    return f"{code.co_filename.rpartition('/dray/')[2]} {code.co_qualname}"


def below(stacks: Counter[Stack], name: str) -> Counter[Stack]:
    """Only the stacks with a function of that name, each cut off there."""
    found: Counter[Stack] = Counter()
    for stack, count in stacks.items():
        for depth, function in enumerate(stack):
            if function.endswith(name):
                found[stack[: depth + 1]] += count
                break
    return found


def by_component(stacks: Counter[Stack]) -> Counter[str]:
    """Count the samples of each component."""
    found: Counter[str] = Counter()
    for stack, count in stacks.items():
        packages = (function.partition("/")[0] for function in stack)
        found[next((COMPONENTS[package] for package in packages if package in COMPONENTS), OTHER)] += count
    return found


def own_and_total(stacks: Counter[Stack]) -> tuple[Counter[Function], Counter[Function]]:
    """How often each function ran itself, and how often it or something it called did."""
    own: Counter[Function] = Counter()
    total: Counter[Function] = Counter()
    for stack, count in stacks.items():
        own[stack[0]] += count
        for function in set(stack):
            total[function] += count
    return own, total


def lines(stacks: Counter[Stack], top: int) -> Iterable[str]:
    """Two tables: by own time, by time with all that was called."""
    samples = stacks.total() or 1
    own, total = own_and_total(stacks)
    for title, order in (("own", own), ("total", total)):
        yield f"\n   own  total  by {title} time, of {samples} samples"
        for function, _ in order.most_common(top):
            yield f"{100 * own[function] / samples:5.1f}% {100 * total[function] / samples:5.1f}%  {function}"


def profile(workload: Workload, sampler: Sampler) -> None:
    """Run a workload in this process while looking at it."""

    class SampledRun(scheduler.Run):
        async def _all(self) -> None:
            with sampler.sampling():
                await super()._all()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scheduler.measure(workload, SampledRun))


def main() -> None:
    """Profile the selected workload."""
    parser = argparse.ArgumentParser(prog="bench.profile", description=__doc__)
    parser.add_argument("workload", choices=workloads.BY_NAME, metavar="WORKLOAD", help="the whole name of a workload")
    parser.add_argument("--pods", type=int, default=4000, help="how many Pods come, rounded up to whole gangs")
    parser.add_argument("--below", metavar="NAME", help="count only below this function")
    parser.add_argument("--components", action="store_true", help="show the share of each component")
    parser.add_argument("--top", type=int, default=60, help="how many functions to show")
    given = parser.parse_args()
    workload = workloads.with_pods(workloads.BY_NAME[given.workload], given.pods)
    sampler = Sampler()
    profile(workload, sampler)
    print(f"main thread: {1000 * sampler.main_thread_seconds / workload.pods:.2f} ms/pod")
    stacks = below(sampler.stacks, given.below) if given.below else sampler.stacks
    if given.components:
        for component, count in by_component(stacks).most_common():
            print(f"{100 * count / stacks.total():5.1f}%  {component}")
        return
    print("\n".join(lines(stacks, given.top)))


if __name__ == "__main__":
    main()
