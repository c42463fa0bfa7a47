"""Starting and stopping containers."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dray.node.agent.container_lifecycle import STOP_RETRY_SECONDS, ContainerStarter, ContainerStopper
from dray.node.agent.dependencies import ContainerStartMetrics, Dependencies
from dray.node.agent.pod.events import ContainerStarted, StartContainer, StopContainer
from dray.node.agent.pod_manager import PodWorker
from dray.node.runtimes.runtime import ImageFailure, RuntimeFailure
from dray.runtime.metrics import Metrics
from tests.unit.node.agent.builders import Life, pod
from tests.unit.node.agent.fakes import Clock, Runtime


@pytest.mark.parametrize(("grace", "expected"), [(5.0, [5.0, 3.0, 1.0, 0.0]), (0.0, [0.0] * 4)])
async def test_a_container_is_stopped_until_it_has_ended_within_its_grace(grace: float, expected: list[float]) -> None:
    runtime, clock, reasons = Runtime(failures=3), Clock(), []
    life = Life(pod())
    work = PodWorker(life.machine.pod, life.machine)
    parts = cast(Dependencies, type("P", (), {"runtime": runtime, "clock": clock, "prober": None}))
    stopper = ContainerStopper(parts, lambda _work: "", lambda _work, tell: reasons.append(tell.reason))
    await stopper.stop(work, StopContainer("a", "id-a", grace, hook=False))
    assert [seconds for _, seconds in runtime.calls] == expected
    assert reasons == ["FailedKillPod"] * 3
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
    failed = "kubelet_started_containers_errors_total"
    samples = {labels["code"]: value for family in metrics.families() if family.name == failed
               for _, labels, value in family.samples}  # fmt: skip
    assert samples == counted
    assert metrics.value("kubelet_started_containers_total", {"container_type": "container"}) == 1
