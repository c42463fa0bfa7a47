"""What the Job controller counts and tells beside its statuses, by Kubernetes' names."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dray.api.document import Document
from dray.client.in_process import InProcessTransport
from dray.client.interface import unstructured
from dray.client.rest import RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.job.reconciler import JobController
from dray.controllers.reconciler import ControllerContext
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup
from dray.sim.replica.virtual_time import LoopClock, run_virtually
from tests.conformance.controllers.cluster import CORE, JOBS, PODS, TEAM, Cluster, running_cluster, template
from tests.conformance.controllers.test_job import ended, spec
from tests.fake_local_server import FakeLocalServer, served

EVENTS = unstructured(CORE, "events", "Event")


def run_scenario(scenario: Callable[[Cluster, Metrics], Awaitable[None]], **options: Any) -> None:
    metrics = Metrics()

    async def run() -> None:
        async with running_cluster(JobController, metrics=metrics, **options) as cluster:
            await scenario(cluster, metrics)

    run_virtually(run())


def samples(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """A counter's values by the values of its labels."""
    return {
        tuple(labels.values()): value
        for family in metrics.families()
        if family.name == f"job_controller_{name}_total"
        for _, labels, value in family.samples
    }


RULE = {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [42]}}
INDEXED: Document = {"completionMode": "Indexed"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(
            spec(completions=5, parallelism=2),
            {
                "jobs_finished": {("NonIndexed", "succeeded", "CompletionsReached"): 1},
                "job_pods_finished": {("NonIndexed", "succeeded"): 5},
                "job_pods_creation": {("new", "succeeded"): 5},
                "terminated_pods_tracking_finalizer": {("add",): 5, ("delete",): 5},
            },
            id="completes",
        ),
        pytest.param(
            spec(code=1, backoffLimit=2),
            {
                "jobs_finished": {("NonIndexed", "failed", "BackoffLimitExceeded"): 1},
                "job_pods_finished": {("NonIndexed", "failed"): 3},
                "job_pods_creation": {("new", "succeeded"): 1, ("recreate_terminating_or_failed", "succeeded"): 2},
                "terminated_pods_tracking_finalizer": {("add",): 3, ("delete",): 3},
                "pod_failures_handled_by_failure_policy": {},
            },
            id="fails",
        ),
        pytest.param(
            spec(code=1, completions=2, parallelism=2, backoffLimitPerIndex=0, **INDEXED),
            {
                "jobs_finished": {("Indexed", "failed", "FailedIndexes"): 1},
                "job_pods_finished": {("Indexed", "failed"): 2},
                "job_finished_indexes": {("failed", "perIndex"): 2},
            },
            id="indexes fail",
        ),
        pytest.param(
            spec(completions=3, parallelism=3, **INDEXED),
            {
                "jobs_finished": {("Indexed", "succeeded", "CompletionsReached"): 1},
                "job_pods_finished": {("Indexed", "succeeded"): 3},
                "job_finished_indexes": {("succeeded", "global"): 3},
            },
            id="indexes succeed",
        ),
        pytest.param(
            spec(code=42, activeDeadlineSeconds=5, podFailurePolicy={"rules": [RULE]}),
            {
                "jobs_finished": {("NonIndexed", "failed", "DeadlineExceeded"): 1},
                "job_pods_finished": {},
                "pod_failures_handled_by_failure_policy": {("Ignore",): 1},
            },
            id="a failure is ignored until the deadline",
        ),
    ],
)
def test_what_became_of_a_job(body: Document, expected: dict[str, dict[tuple[str, ...], float]]) -> None:
    async def scenario(cluster: Cluster, metrics: Metrics) -> None:
        await cluster.create(JOBS, "job", body)
        await ended(cluster)
        assert {name: samples(metrics, name) for name in expected} == expected
        syncs = samples(metrics, "job_syncs")
        assert all(result == "success" for _, result, _ in syncs)
        assert sum(syncs.values()) == sum(
            value
            for family in metrics.families()
            if family.name == "job_controller_job_sync_duration_seconds"
            for suffix, _, value in family.samples
            if suffix == "_count"
        )

    run_scenario(scenario)


def test_a_job_of_another_controller() -> None:
    async def scenario(cluster: Cluster, metrics: Metrics) -> None:
        await cluster.create(JOBS, "job", spec(managedBy="example.com/other"))
        await cluster.settle()
        assert samples(metrics, "jobs_by_external_controller") == {("example.com/other",): 1}
        assert (samples(metrics, "job_syncs"), await cluster.list(PODS)) == ({}, [])

    run_scenario(scenario)


def test_more_pods_succeeded_than_were_asked_for() -> None:
    """A Job that chooses its Pods itself adopts two that have ended already."""
    labels = {"app": "tool"}

    async def prepare(cluster: Cluster) -> None:
        for name in ("first", "second"):
            pod = {"metadata": {"name": name, "namespace": TEAM, "labels": labels}, "spec": template(labels)["spec"]}
            await cluster.user.create(PODS, pod)
            await cluster.patch(PODS, name, {"status": {"phase": "Succeeded"}}, "status")

    async def scenario(cluster: Cluster, metrics: Metrics) -> None:
        body = spec(completions=1, manualSelector=True, selector={"matchLabels": labels})
        body["template"]["metadata"]["labels"] = labels
        await cluster.create(JOBS, "job", body)
        status = await ended(cluster)
        assert status["succeeded"] == 2
        message = "Too many succeeded pods running after completion count reached"
        events = await cluster.events("job")
        assert ("Warning", "TooManySucceededPods", message) in events
        assert ("Normal", "Completed", "Job completed") in events
        assert samples(metrics, "job_pods_finished") == {("NonIndexed", "succeeded"): 2}

    run_scenario(scenario, nodes=0, scheduler=False, prepare=prepare)


def test_a_mode_that_only_a_newer_server_knows() -> None:
    """Ours refuses it, so another one plays the server."""

    async def run() -> None:
        clock = LoopClock()
        server = FakeLocalServer(served("jobs", "Job", "batch"), served("pods", "Pod"), served("events", "Event"))
        client = RestClient(InProcessTransport(server, user="user", groups=(), user_agent="test"))
        informers = SharedInformerFactory(client, clock, random.Random(0))
        controller = JobController(ControllerContext(client, informers, clock, rng=random.Random(0)))
        body = {"metadata": {"name": "job", "namespace": TEAM}, "spec": spec(completionMode="Ring")}
        await client.create(JOBS, body)
        async with TaskGroup("test") as group:
            for work in (informers.run(), controller.run()):
                group.spawn(work, "controller")
            await clock.sleep(10.0)
            (event,) = (await client.list(EVENTS)).items
            message = "Skipped Job sync because completion mode is unknown"
            assert (event["type"], event["reason"], event["message"]) == ("Warning", "UnknownCompletionMode", message)
            assert (await client.list(PODS)).items == []

    run_virtually(run())
