"""CronJobs with their Jobs, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dray.api.document import Document, GroupVersion
from dray.api.errors import ServiceUnavailableError
from dray.client.interface import DeleteOptions, PropagationPolicy, unstructured
from dray.controllers.cron_job.reconciler import CronJobController
from dray.controllers.job.reconciler import JobController
from dray.sim.replica.virtual_time import run_virtually
from tests.conformance.controllers.cluster import JOBS, TEAM, Cluster, running_cluster, template

CRON_JOBS = unstructured(GroupVersion("batch", "v1"), "cronjobs", "CronJob")
STAMP = "batch.kubernetes.io/cronjob-scheduled-timestamp"
# A Job that is deleted without a policy keeps its Pods, and stays until the garbage collector has let them go.
AT_ONCE = DeleteOptions(propagation_policy=PropagationPolicy.BACKGROUND)


def run(scenario: Callable[[Cluster], Awaitable[None]], *, prepare: Any = None) -> None:
    async def main() -> None:
        async with running_cluster(CronJobController, JobController, nodes=2, prepare=prepare) as cluster:
            await scenario(cluster)

    run_virtually(main())


async def add_cron_job(
    cluster: Cluster, *, seconds: int = 5, name: str = "tick", code: int = 0, **spec: Any
) -> Document:
    annotations = {"simulation.dray.dev/run-seconds": str(seconds), "simulation.dray.dev/exit-code": str(code)}
    pods = template({"own": "yes"}, annotations=annotations, restartPolicy="Never")
    job = {"metadata": {"labels": {"from": "cron"}}, "spec": {"template": pods, "backoffLimit": 0}}
    return await cluster.create(CRON_JOBS, name, {"schedule": "* * * * *", "jobTemplate": job, **spec})


async def until_jobs(cluster: Cluster, count: int) -> list[Document]:
    async def reached() -> list[Document] | None:
        found = await cluster.list(JOBS)
        return found if len(found) >= count else None

    found: list[Document] = await cluster.until(reached)
    return found


async def reasons(cluster: Cluster, name: str = "tick") -> set[str]:
    return {reason for _, reason, _ in await cluster.events(name)}


@pytest.mark.behaviour("ST-20", "ST-21", "ST-22")
def test_a_job_starts_every_minute() -> None:
    async def scenario(cluster: Cluster) -> None:
        created = await add_cron_job(cluster)
        spec = created["spec"]
        assert (spec["concurrencyPolicy"], spec["suspend"]) == ("Allow", False)
        assert (spec["successfulJobsHistoryLimit"], spec["failedJobsHistoryLimit"]) == (3, 1)
        first, second = sorted(await until_jobs(cluster, 2), key=lambda job: job["metadata"]["name"])
        name, _, minutes = first["metadata"]["name"].rpartition("-")
        assert name == "tick"
        assert second["metadata"]["name"] == f"tick-{int(minutes) + 1}"
        assert first["metadata"]["labels"]["from"] == "cron"
        assert first["metadata"]["annotations"][STAMP].endswith(":00Z")
        (owner,) = first["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("CronJob", created["metadata"]["uid"], True)
        status = await cluster.until_status(CRON_JOBS, "tick", active=None)
        assert status["lastSuccessfulTime"] > status["lastScheduleTime"]
        assert {"SuccessfulCreate", "SawCompletedJob"} <= await reasons(cluster)

    run(scenario)


@pytest.mark.behaviour("ST-22")
def test_the_history_keeps_the_newest_finished_jobs() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_cron_job(cluster, successfulJobsHistoryLimit=2)
        await asyncio.sleep(600)
        names = sorted(job["metadata"]["name"] for job in await cluster.list(JOBS))
        assert len(names) in (2, 3)
        first, last = (int(name.rpartition("-")[2]) for name in (names[0], names[-1]))
        assert last - first == len(names) - 1
        assert "SuccessfulDelete" in await reasons(cluster)

    run(scenario)


@pytest.mark.behaviour("ST-22")
def test_failed_jobs_have_a_limit_of_their_own() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_cron_job(cluster, code=1)
        await asyncio.sleep(600)
        failed = [job for job in await cluster.list(JOBS) if (job.get("status") or {}).get("failed")]
        assert len(failed) in (1, 2)

    run(scenario)


@pytest.mark.behaviour("ST-22")
def test_forbid_skips_a_time_while_a_job_runs() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_cron_job(cluster, seconds=150, concurrencyPolicy="Forbid")
        await asyncio.sleep(400)
        names = sorted(int(job["metadata"]["name"].rpartition("-")[2]) for job in await cluster.list(JOBS))
        # A Job that ends after two and a half minutes lets the time of the second minute start late.
        assert len(names) > 1
        assert all(later - earlier >= 2 for earlier, later in itertools.pairwise(names))
        assert "JobAlreadyActive" in await reasons(cluster)

    run(scenario)


@pytest.mark.behaviour("ST-22")
def test_replace_deletes_the_running_job() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_cron_job(cluster, seconds=1000, concurrencyPolicy="Replace")
        (first,) = await until_jobs(cluster, 1)

        async def replaced() -> bool:
            return first["metadata"]["name"] not in {job["metadata"]["name"] for job in await cluster.list(JOBS)}

        await cluster.until(replaced)
        assert len((await cluster.status(CRON_JOBS, "tick"))["active"]) == 1

    run(scenario)


@pytest.mark.behaviour("ST-23")
def test_a_suspended_cron_job_starts_nothing_and_goes_on_later() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_cron_job(cluster, suspend=True)
        await asyncio.sleep(200)
        assert await cluster.list(JOBS) == []
        await cluster.patch(CRON_JOBS, "tick", {"spec": {"suspend": False}})
        # The most recent missed time is served, never several.
        await cluster.settle()
        assert len(await cluster.list(JOBS)) == 1

    run(scenario)


@pytest.mark.behaviour("ST-21")
def test_a_time_beyond_the_deadline_is_missed() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_cron_job(cluster, schedule="*/10 * * * *", suspend=True, startingDeadlineSeconds=10)
        await asyncio.sleep(1000)
        await cluster.patch(CRON_JOBS, "tick", {"spec": {"suspend": False}})
        await cluster.settle()
        if not await cluster.list(JOBS):
            assert "MissSchedule" in await reasons(cluster)
        await until_jobs(cluster, 1)

    run(scenario)


@pytest.mark.behaviour("ST-21")
def test_many_missed_times_start_one_job_and_are_reported() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_cron_job(cluster, suspend=True)
        await asyncio.sleep(60 * 150)
        await cluster.patch(CRON_JOBS, "tick", {"spec": {"suspend": False}})
        await cluster.settle()
        assert len(await cluster.list(JOBS)) == 1
        assert "TooManyMissedTimes" in await reasons(cluster)

    run(scenario)


@pytest.mark.behaviour("ST-21")
def test_a_lost_response_and_a_late_cache_start_a_job_once() -> None:
    async def scenario(cluster: Cluster) -> None:
        lost: list[str] = []

        def lose(call: Any) -> Exception | None:
            is_creation = call.resource is not None and call.resource.plural == "jobs" and call.verb == "create"
            if is_creation and not lost:
                lost.append(call.verb)
                return ServiceUnavailableError("the response was lost")
            return None

        cluster.transport.lose = lose
        await add_cron_job(cluster, seconds=1)
        await until_jobs(cluster, 1)
        # Neither the Job's end nor its deletion reaches the controller.
        cluster.transport.held.update(("jobs", "cronjobs"))
        await cluster.until_status(CRON_JOBS, "tick", lastSuccessfulTime=None)
        (job,) = await cluster.list(JOBS)
        await cluster.user.delete(JOBS, job["metadata"]["name"], TEAM, AT_ONCE)
        await cluster.settle(20)
        assert job["metadata"]["name"] not in {item["metadata"]["name"] for item in await cluster.list(JOBS)}
        cluster.transport.held.clear()
        await until_jobs(cluster, 1)

    run(scenario)


@pytest.mark.behaviour("ST-22")
def test_strangers_and_missing_jobs_are_reported() -> None:
    async def scenario(cluster: Cluster) -> None:
        created = await add_cron_job(cluster, seconds=100)
        (job,) = await until_jobs(cluster, 1)
        await cluster.until_status(CRON_JOBS, "tick", lastScheduleTime=job["metadata"]["annotations"][STAMP])
        await cluster.user.delete(JOBS, job["metadata"]["name"], TEAM, AT_ONCE)
        owner = job["metadata"]["ownerReferences"]
        spec = created["spec"]["jobTemplate"]["spec"]
        await cluster.create(JOBS, "stranger", spec, ownerReferences=owner)

        async def reported() -> bool:
            return {"MissingJob", "UnexpectedJob"} <= await reasons(cluster)

        await cluster.until(reported)

    run(scenario)
