"""What the Job controller counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dray.api.errors import ServiceUnavailableError
from dray.api.types.batch_v1 import Job
from dray.api.types.core_v1 import Pod
from dray.controllers.job.job_state import make_job_state
from dray.controllers.job.metrics import JobMetrics, reason_to_create
from dray.controllers.job.plan import Action
from dray.runtime.metrics import Metrics
from dray.sim.replica.virtual_time import LoopClock, run_virtually
from tests.unit.controllers.job.jobs import job, worker
from tests.unit.controllers.pod_control.pods import NOW

INDEXED: dict[str, Any] = {"completionMode": "Indexed"}
PER_INDEX: dict[str, Any] = {**INDEXED, "backoffLimitPerIndex": 1}


def counted(metrics: Metrics) -> dict[str, float]:
    """Every counter that has counted, as it is shown."""
    return {
        f"{family.name}{_shown(labels)}": value
        for family in metrics.families()
        if family.type == "counter"
        for _, labels, value in family.samples
    }


def _shown(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{name}={value}" for name, value in sorted(labels.items())) + "}"


def condition(kind: str, reason: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": "True", "reason": reason}]}


PODS = "job_controller_job_pods_finished_total"
JOBS = "job_controller_jobs_finished_total"
INDEXES = "job_controller_job_finished_indexes_total"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(job(), job({"active": 2}), {}, id="nothing ended"),
        pytest.param(
            job({"succeeded": 1, "failed": 2}),
            job({"succeeded": 3, "failed": 3}),
            {
                PODS + "{completion_mode=NonIndexed,result=succeeded}": 2,
                PODS + "{completion_mode=NonIndexed,result=failed}": 1,
            },
            id="Pods ended",
        ),
        pytest.param(
            job({"succeeded": 1, "completedIndexes": "0"}, **INDEXED),
            job({"succeeded": 3, "completedIndexes": "0-2"}, **INDEXED),
            {
                PODS + "{completion_mode=Indexed,result=succeeded}": 2,
                INDEXES + "{backoffLimit=global,status=succeeded}": 2,
            },
            id="indexes succeeded",
        ),
        pytest.param(
            job({"completedIndexes": "0-2"}, **INDEXED, completions=4),
            job({"completedIndexes": "0-1"}, **INDEXED, completions=2),
            {},
            id="the Job shrank",
        ),
        pytest.param(
            job({"failedIndexes": ""}, **PER_INDEX),
            job({"failedIndexes": "1,3", "failed": 4}, **PER_INDEX),
            {
                PODS + "{completion_mode=Indexed,result=failed}": 4,
                INDEXES + "{backoffLimit=perIndex,status=failed}": 2,
            },
            id="indexes failed",
        ),
        pytest.param(
            job(condition("SuccessCriteriaMet", "CompletionsReached")),
            job(condition("Complete", "CompletionsReached")),
            {JOBS + "{completion_mode=NonIndexed,reason=CompletionsReached,result=succeeded}": 1},
            id="the Job is complete",
        ),
        pytest.param(
            job(**INDEXED),
            job(condition("Complete", "SuccessPolicy"), **INDEXED),
            {JOBS + "{completion_mode=Indexed,reason=SuccessPolicy,result=succeeded}": 1},
            id="the Job is complete before all its indexes are",
        ),
        pytest.param(
            job(condition("FailureTarget", "DeadlineExceeded")),
            job(condition("Failed", "DeadlineExceeded")),
            {JOBS + "{completion_mode=NonIndexed,reason=DeadlineExceeded,result=failed}": 1},
            id="the Job failed",
        ),
        pytest.param(job(), job(condition("FailureTarget", "DeadlineExceeded")), {}, id="the Job will have failed"),
    ],
)
def test_a_status_that_was_written(before: Job, after: Job, expected: dict[str, float]) -> None:
    metrics = Metrics()
    JobMetrics(metrics).reported(before, after)
    assert counted(metrics) == expected


HELD = "job_controller_terminated_pods_tracking_finalizer_total"


@pytest.mark.parametrize(
    ("old", "new", "event"),
    [
        pytest.param(None, worker("a"), "", id="one runs"),
        pytest.param(None, worker("a", "Failed"), "add", id="one was found ended"),
        pytest.param(worker("a"), worker("a", "Succeeded"), "add", id="one ended"),
        pytest.param(worker("a"), worker("a", "Succeeded", held=False), "", id="one ended and is let go"),
        pytest.param(worker("a", "Failed"), worker("a", "Failed"), "", id="nothing new"),
        pytest.param(worker("a", "Failed"), worker("a", "Failed", held=False), "delete", id="one is let go"),
        pytest.param(worker("a", "Failed"), None, "delete", id="one is gone"),
        pytest.param(worker("a", "Failed", held=False), None, "", id="one that was let go is gone"),
    ],
)
def test_pods_that_have_ended_and_are_held(old: Pod | None, new: Pod | None, event: str) -> None:
    metrics = Metrics()
    JobMetrics(metrics).pod_changed(old, new)
    assert counted(metrics) == ({HELD + f"{{event={event}}}": 1} if event else {})


@pytest.mark.parametrize(
    ("item", "pods", "reason"),
    [
        (job(), [worker("a")], "new"),
        (job({"failed": 1}), [], "recreate_terminating_or_failed"),
        (job(), [worker("a", deleting=True, held=False)], "recreate_terminating_or_failed"),
        (job({"failed": 1}, podReplacementPolicy="Failed"), [], "recreate_failed"),
        (job(podReplacementPolicy="Failed"), [], "new"),
    ],
    ids=["nothing failed", "one failed", "one is leaving", "only ended ones are replaced", "none has ended"],
)
def test_what_a_pod_is_made_for(item: Job, pods: list[Pod], reason: str) -> None:
    assert reason_to_create(make_job_state(item, pods, (), NOW)) == reason


def test_other_counts() -> None:
    metrics = Metrics()
    measures, state = JobMetrics(metrics), make_job_state(job(), [], (), NOW)
    measures.failure_policy_applied(("Ignore", "FailIndex", "Ignore"))
    measures.created(state, success=True)
    measures.created(state, success=False)
    measures.managed_by_other("example.com/other")
    assert counted(metrics) == {
        "job_controller_pod_failures_handled_by_failure_policy_total{action=Ignore}": 2,
        "job_controller_pod_failures_handled_by_failure_policy_total{action=FailIndex}": 1,
        "job_controller_job_pods_creation_total{reason=new,status=succeeded}": 1,
        "job_controller_job_pods_creation_total{reason=new,status=failed}": 1,
        "job_controller_jobs_by_external_controller_total{controller_name=example.com/other}": 1,
    }


def test_a_look_is_timed() -> None:
    metrics = Metrics()

    async def look() -> None:
        clock, measures = LoopClock(), JobMetrics(metrics)
        with measures.sync(job(), clock) as sync:
            await clock.sleep(3.0)
            sync.action = Action.PODS_CREATED
        with pytest.raises(ServiceUnavailableError), measures.sync(job(**INDEXED), clock):
            raise ServiceUnavailableError("away")

    run_virtually(look())
    good = {"completion_mode": "NonIndexed", "result": "success", "action": "pods_created"}
    bad = {"completion_mode": "Indexed", "result": "error", "action": "reconciling"}
    for labels, seconds in ((good, 3.0), (bad, 0.0)):
        assert metrics.value("job_controller_job_syncs_total", labels) == 1
        assert metrics.value("job_controller_job_sync_duration_seconds_count", labels) == 1
        assert metrics.value("job_controller_job_sync_duration_seconds_sum", labels) == pytest.approx(seconds)
