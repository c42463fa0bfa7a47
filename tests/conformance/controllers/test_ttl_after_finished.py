"""Finished Jobs that are deleted by themselves, in virtual time."""

from __future__ import annotations

from typing import Any

from dray.controllers.garbage_collector.reconciler import GarbageCollector
from dray.controllers.job.reconciler import JobController
from dray.controllers.ttl_after_finished import TTLAfterFinishedController
from dray.runtime.metrics import Metrics
from dray.sim.replica.virtual_time import run_virtually
from tests.conformance.controllers.cluster import JOBS, PODS, Cluster, running_cluster, template


def body(seconds: int | None) -> dict[str, Any]:
    annotations = {"simulation.dray.dev/run-seconds": "1"}
    more = {} if seconds is None else {"ttlSecondsAfterFinished": seconds}
    return {"template": template({}, annotations=annotations, restartPolicy="Never"), **more}


async def names(cluster: Cluster) -> set[str]:
    return {item["metadata"]["name"] for item in await cluster.list(JOBS)}


def test_finished_jobs_go_when_their_time_is_over() -> None:
    metrics = Metrics()
    seconds_name = "ttl_after_finished_controller_job_deletion_duration_seconds"

    async def scenario() -> None:
        async with running_cluster(
            JobController, GarbageCollector, TTLAfterFinishedController, metrics=metrics
        ) as cluster:
            for name, seconds in (("now", 0), ("soon", 60), ("later", 60), ("never", None)):
                await cluster.create(JOBS, name, body(seconds))
            for name in ("soon", "later", "never"):
                await cluster.until_status(JOBS, name, succeeded=1)
            await cluster.settle(10)
            assert await names(cluster) == {"soon", "later", "never"}
            await cluster.patch(JOBS, "later", {"spec": {"ttlSecondsAfterFinished": 600}})
            await cluster.settle(60)
            assert await names(cluster) == {"later", "never"}
            assert len(await cluster.list(PODS)) == 2
            await cluster.settle(600)
            assert await names(cluster) == {"never"}
            assert metrics.value(f"{seconds_name}_count") == 3
            # Nobody was late; times in a status have no fractions.
            assert metrics.value(f"{seconds_name}_sum") < 3 * 2

    run_virtually(scenario())
