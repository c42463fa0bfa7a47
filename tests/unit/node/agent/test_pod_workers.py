"""Failures of tasks: one Pod's stay with the Pod, the agent's reach its owner."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from dray.node.agent.dependencies import Dependencies, NodeInfo
from dray.node.agent.pod_manager import PodManager
from dray.node.agent.pod_workers import RETRY_SECONDS, PodWorkers
from dray.node.agent.probes.prober import Prober
from dray.node.runtimes.simulated import SimulatedPodSetup, SimulatedRuntime
from dray.runtime.system import SystemClock
from dray.runtime.tasks import ChildTasks
from tests.unit.node.agent.builders import UID, pod


class Clock(SystemClock):
    """Time that does not pass in sleeps, which are noted."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


class Recorder:
    """Notes the reasons of events."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def event_for(self, _about: Any, _type: str, reason: str, _message: str) -> None:
        self.reasons.append(reason)


class StatusManager:
    """Writes nothing."""

    def status_changed(self, _worker: Any) -> None:
        pass


class FailingSetup(SimulatedPodSetup):
    """Cannot read the first termination message."""

    def __init__(self) -> None:
        self.calls = 0

    async def termination_message(self, *_: Any, **__: Any) -> str:
        self.calls += 1
        if self.calls == 1:
            raise ValueError("unreadable")
        return "done"


def make(setup: SimulatedPodSetup) -> tuple[PodWorkers, Recorder, Clock, ChildTasks, SimulatedRuntime]:
    clock, recorder, tasks = Clock(), Recorder(), ChildTasks("test")
    runtime = SimulatedRuntime(clock)
    dependencies = Dependencies(clock, tasks, runtime, setup, cast(Any, StatusManager()), recorder, cast(Prober, None))
    node = NodeInfo("n1", allocatable={"cpu": "4", "memory": "1Gi", "pods": "10"})
    return PodWorkers(lambda: node, PodManager(), dependencies), recorder, clock, tasks, runtime


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while True:
            await asyncio.sleep(0)
            if condition():
                return


async def test_an_unexpected_failure_is_recorded_for_its_pod_and_retried() -> None:
    workers, recorder, clock, tasks, runtime = make(FailingSetup())
    await workers.start()
    workers.pod_changed(None, pod(restartPolicy="Never"))
    worker = workers.pods.workers[UID]
    state = worker.machine.containers.by_name["a"]
    await until(lambda: state.running)
    assert state.current is not None
    await runtime.stop_container(state.current.id, 0.0)
    await until(lambda: state.exit_code is not None)
    assert recorder.reasons.count("FailedSync") == 1
    assert RETRY_SECONDS in clock.slept
    assert state.current.exit is not None
    assert state.current.exit.message == "done"
    await workers.stop()
    await tasks.aclose()


async def test_a_failure_that_belongs_to_no_pod_reaches_the_owner() -> None:
    workers, _, _, tasks, _ = make(SimulatedPodSetup())
    await workers.start()

    async def fail() -> None:
        raise ValueError("relist failed")

    supervised = asyncio.ensure_future(tasks.supervise())
    tasks.spawn(fail(), "background")
    with pytest.raises(ValueError, match="relist failed"):
        await supervised
    await workers.stop()
