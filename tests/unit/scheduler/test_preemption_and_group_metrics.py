"""The names, labels and buckets of the metrics of preemption and of PodGroups."""

from __future__ import annotations

import pytest

from dray.framework.status import SUCCESS, error, unschedulable
from dray.lib.clock import VirtualClock, Waiter
from dray.runtime.metrics import Metrics
from dray.scheduler.group_metrics import GroupMetrics
from dray.scheduler.preemption.metrics import POD, POD_GROUP, PreemptionMetrics


def _no_waiter() -> Waiter:
    raise AssertionError("nobody waits")


def bounds(metrics: Metrics, name: str) -> list[float]:
    """The upper bounds of a histogram with one sample."""
    (family,) = [item for item in metrics.families() if item.name == name]
    found = [labels["le"] for suffix, labels, _ in family.samples if suffix == "_bucket"]
    return [float(item) for item in found if item != "+Inf"]


def doubled(start: float, count: int) -> list[float]:
    return [start * 2**number for number in range(count)]


@pytest.mark.behaviour("PE-46", "GW-59")
def test_preemption() -> None:
    metrics = Metrics()
    preemption = PreemptionMetrics(metrics)
    preemption.attempts.inc()
    preemption.selected(POD, 3)
    preemption.selected(POD_GROUP, 40)
    preemption.executed(POD, 0.5, succeeded=True)
    preemption.executed(POD_GROUP, 0.5, succeeded=False)
    preemption.evaluated(POD, "success", 0.25, violations=2)
    preemption.group_attempted("success")
    preemption.disrupted(POD_GROUP, 2)
    expected: list[tuple[str, dict[str, str], float]] = [
        ("scheduler_preemption_attempts_total", {}, 1),
        ("scheduler_preemption_victims_sum", {}, 3),
        ("scheduler_workload_preemption_victims_sum", {}, 40),
        ("scheduler_workload_preemption_attempts_total", {"result": "success"}, 1),
        ("scheduler_preemption_goroutines_execution_total", {"result": "success"}, 1),
        ("scheduler_preemption_goroutines_execution_total", {"result": "error"}, 1),
        ("scheduler_preemption_goroutines_duration_seconds_sum", {"result": "success"}, 0.5),
        ("scheduler_preemption_execution_duration_seconds_sum", {"preemptor": "podgroup", "result": "error"}, 0.5),
        ("scheduler_preemption_evaluation_duration_seconds_sum", {"preemptor": "pod", "result": "success"}, 0.25),
        ("scheduler_preemption_pdb_violations_total", {"preemptor": "pod"}, 2),
        ("scheduler_preemption_workload_disruptions_sum", {"preemptor": "podgroup"}, 2),
    ]
    assert [(name, labels, metrics.value(name, labels)) for name, labels, _ in expected] == expected
    assert bounds(metrics, "scheduler_preemption_victims") == doubled(1, 7)
    assert bounds(metrics, "scheduler_workload_preemption_victims") == doubled(1, 11)
    assert bounds(metrics, "scheduler_preemption_evaluation_duration_seconds") == doubled(0.001, 16)
    assert bounds(metrics, "scheduler_preemption_goroutines_duration_seconds") == doubled(0.01, 20) * 2


@pytest.mark.behaviour("GW-38", "GW-63")
def test_groups() -> None:
    metrics, clock = Metrics(), VirtualClock(_no_waiter)
    groups = GroupMetrics(metrics, clock)
    groups.attempted("scheduled", "default-scheduler", 0.5)
    groups.searched(0.25)
    for status in (SUCCESS, unschedulable(), error("x")):
        groups.placement_tried("default-scheduler", None)
        clock.advance(2)
        groups.placement_tried("default-scheduler", status)
    labels = {"result": "scheduled", "profile": "default-scheduler"}
    assert metrics.value("scheduler_podgroup_schedule_attempts_total", labels) == 1
    assert metrics.value("scheduler_podgroup_scheduling_attempt_duration_seconds_sum", labels) == 0.5
    assert metrics.value("scheduler_podgroup_scheduling_algorithm_duration_seconds_sum") == 0.25
    assert bounds(metrics, "scheduler_podgroup_scheduling_algorithm_duration_seconds") == doubled(0.001, 15)
    assert metrics.value("scheduler_generated_placements_total", {"profile": "default-scheduler"}) == 3
    for result in ("feasible", "infeasible"):
        tried = {"result": result, "profile": "default-scheduler"}
        assert metrics.value("scheduler_placement_evaluations_total", tried) == 1
        assert metrics.value("scheduler_placement_evaluation_duration_seconds_sum", tried) == 2
    exposition = metrics.exposition().decode()
    assert exposition.count("scheduler_placement_evaluations_total{") == 2
