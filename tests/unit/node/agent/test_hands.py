"""The agent's smaller hands with a runtime that the test controls: CPUs of running containers, and stopping them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dray.node.agent.container_lifecycle import STOP_RETRY_SECONDS, ContainerStarter, ContainerStopper
from dray.node.agent.cpuset_reconciler import CpusetReconciler, RunningContainer
from dray.node.agent.dependencies import ContainerStartMetrics, Dependencies
from dray.node.agent.pod.events import ContainerStarted, StartContainer, StopContainer
from dray.node.agent.pod_manager import PodWorker
from dray.node.runtimes.runtime import ImageFailure, RuntimeFailure
from dray.runtime.metrics import Metrics
from tests.unit.node.agent.builders import Life, pod


class Clock:
    """Time that passes only in sleeps."""

    def __init__(self) -> None:
        self.now_seconds = 0.0

    def monotonic(self) -> float:
        return self.now_seconds

    async def sleep(self, seconds: float) -> None:
        self.now_seconds += seconds


class Runtime:
    """Notes what it is told; `failures` is how often it fails first."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.calls: list[Any] = []

    async def set_cpus(self, container_id: str, cpus: str) -> None:
        self._note((container_id, cpus))

    async def stop_container(self, container_id: str, grace_seconds: float) -> None:
        self._note((container_id, grace_seconds))

    def _note(self, what: Any) -> None:
        self.calls.append(what)
        if self.failures:
            self.failures -= 1
            raise RuntimeFailure("not now")


A, B = (RunningContainer(pod(), name, f"id-{name}") for name in ("a", "b"))


async def test_containers_are_told_once_and_again_when_their_cpus_are_others() -> None:
    runtime, shared = Runtime(), ["0-3"]
    cpusets = CpusetReconciler(
        cast(Any, runtime), cast(Any, Clock()), lambda _pod, name: (shared[0] if name == "a" else "7", "")
    )
    cpusets.started("id-a", "0-3")
    # The other one was started by an earlier agent.
    await cpusets.reconcile([A, B])
    assert runtime.calls == [("id-b", "7")]
    shared[0] = "0-1"
    await cpusets.reconcile([A, B])
    await cpusets.reconcile([A, B])
    assert runtime.calls == [("id-b", "7"), ("id-a", "0-1")]


async def test_a_container_that_was_not_moved_is_tried_again() -> None:
    runtime = Runtime(failures=1)
    cpusets = CpusetReconciler(cast(Any, runtime), cast(Any, Clock()), lambda _pod, _name: ("0", ""))
    for _ in range(3):
        await cpusets.reconcile([A])
    assert runtime.calls == [("id-a", "0")] * 2


async def test_where_nothing_is_pinned_nobody_is_told() -> None:
    runtime = Runtime()
    cpusets = CpusetReconciler(cast(Any, runtime), cast(Any, Clock()), None)
    assert cpusets.lookup(pod(), "a") == ("", "")
    await cpusets.reconcile([A])
    assert runtime.calls == []


@pytest.mark.parametrize(("grace", "expected"), [(5.0, [5.0, 3.0, 1.0, 0.0]), (0.0, [0.0] * 4)])
async def test_a_container_is_stopped_until_it_has_ended_within_its_grace(grace: float, expected: list[float]) -> None:
    runtime, clock, said = Runtime(failures=3), Clock(), []
    life = Life(pod())
    work = PodWorker(life.machine.pod, life.machine)
    parts = cast(Dependencies, type("P", (), {"runtime": runtime, "clock": clock, "prober": None}))
    stopper = ContainerStopper(parts, lambda _work: "", lambda _work, tell: said.append(tell.reason))
    await stopper.stop(work, StopContainer("a", "id-a", grace, hook=False))
    assert [seconds for _, seconds in runtime.calls] == expected
    assert said == ["FailedKillPod"] * 3
    assert clock.now_seconds == 3 * STOP_RETRY_SECONDS


@pytest.mark.parametrize(
    ("answer", "counted"),
    [
        (None, {}),
        (ImageFailure("ErrImagePull", "no such image"), {"ErrImagePull": 1.0}),
        (RuntimeFailure("no"), {"CreateContainerError": 1.0}),
    ],
)
async def test_containers_that_do_not_start_are_counted_by_reason(
    answer: Exception | None, counted: dict[str, float]
) -> None:
    metrics, life = Metrics(), Life(pod())
    parts = cast(Dependencies, type("P", (), {"start_metrics": ContainerStartMetrics(metrics)}))
    starter = ContainerStarter(parts, cast(Any, None), lambda _work, _tell: None)

    async def run(*_: Any) -> ContainerStarted:
        if answer is not None:
            raise answer
        return cast(ContainerStarted, object())

    starter._run = run  # type: ignore[assignment, method-assign]
    await starter.start(PodWorker(life.machine.pod, life.machine), StartContainer("a", 0))
    failed = "kubelet_started_containers_errors"
    samples = {labels["code"]: value for family in metrics.families() if family.name == failed
               for _, labels, value in family.samples}  # fmt: skip
    assert samples == counted
    assert metrics.value("kubelet_started_containers_total", {"container_type": "container"}) == 1
