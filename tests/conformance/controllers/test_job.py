"""Jobs on the API server, with the scheduler and simulated nodes, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import ConflictError, NotFoundError, ServiceUnavailableError
from dray.client.interface import DeleteOptions, PropagationPolicy
from dray.client.rest import Call
from dray.controllers.garbage_collector.reconciler import GarbageCollector
from dray.controllers.job.indexes import INDEX
from dray.controllers.job.pod_templates import TRACKING
from dray.controllers.job.reconciler import JobController
from dray.sim.replica.virtual_time import run_virtually
from tests.conformance.controllers.cluster import JOBS, PODS, TEAM, Cluster, running_cluster, template

RUN = "simulation.dray.dev/run-seconds"
CODE = "simulation.dray.dev/exit-code"


def spec(*, seconds: float = 1.0, code: int = 0, pod: Document | None = None, **more: Any) -> Document:
    annotations = {RUN: str(seconds), CODE: str(code)}
    return {"template": template({}, annotations=annotations, **{"restartPolicy": "Never", **(pod or {})}), **more}


def run_scenario(scenario: Callable[[Cluster], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with running_cluster(JobController, GarbageCollector, **options) as cluster:
            await scenario(cluster)

    run_virtually(run())


def conditions(status: Document) -> dict[str, tuple[str, str, str]]:
    return {
        item["type"]: (item["status"], item.get("reason", ""), item.get("message", ""))
        for item in status.get("conditions") or ()
    }


async def ended(cluster: Cluster, name: str = "job") -> Document:
    async def done() -> Document | None:
        status = await cluster.status(JOBS, name)
        return status if {"Complete", "Failed"} & set(conditions(status)) else None

    status: Document = await cluster.until(done)
    await cluster.settle()
    return status


def numbers(status: Document) -> Document:
    return {key: value for key, value in status.items() if key not in ("conditions", "startTime", "completionTime")}


COMPLETED = ("True", "CompletionsReached", "Reached expected number of succeeded pods")


def test_a_job_completes() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(JOBS, "job", spec(completions=5, parallelism=2))
        status = await cluster.until_status(JOBS, "job", active=2, ready=2)
        assert status["startTime"]
        most = 0

        async def done() -> bool:
            nonlocal most
            pods = await cluster.list(PODS)
            running = [pod for pod in pods if pod["status"].get("phase") in ("Pending", "Running")]
            most = max(most, len(running))
            return "Complete" in conditions(await cluster.status(JOBS, "job"))

        await cluster.until(done)
        assert most == 2
        status = await cluster.status(JOBS, "job")
        assert numbers(status) == {"succeeded": 5, "ready": 0, "terminating": 0, "uncountedTerminatedPods": {}}
        assert conditions(status) == {"SuccessCriteriaMet": COMPLETED, "Complete": COMPLETED}
        assert status["completionTime"]
        pods = await cluster.list(PODS)
        assert len(pods) == 5
        assert all(not pod["metadata"].get("finalizers") for pod in pods)
        assert all(pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] == "job" for pod in pods)
        events = [event[:2] for event in await cluster.events("job")]
        assert events == [("Normal", "SuccessfulCreate")] * 5 + [("Normal", "Completed")]

    run_scenario(scenario)


def test_failures_wait_and_then_end_the_job() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(JOBS, "job", spec(code=1, seconds=0, backoffLimit=3))
        seen: dict[str, float] = {}

        async def done() -> bool:
            for pod in await cluster.list(PODS):
                seen.setdefault(pod["metadata"]["name"], asyncio.get_running_loop().time())
            return "Failed" in conditions(await cluster.status(JOBS, "job"))

        await cluster.until(done)
        status = await ended(cluster)
        assert numbers(status) == {"failed": 4, "ready": 0, "terminating": 0, "uncountedTerminatedPods": {}}
        failed = ("True", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
        assert conditions(status) == {"FailureTarget": failed, "Failed": failed}
        waits = [round(after - before) for before, after in itertools.pairwise(sorted(seen.values()))]
        # From the end of one to the start of the next; timestamps have whole seconds.
        assert [abs(wait - wanted) <= 1 for wait, wanted in zip(waits, (10, 20, 40), strict=True)] == [True] * 3
        assert ("Warning", *failed[1:]) in await cluster.events("job")
        assert "completionTime" not in status

    run_scenario(scenario)


def test_a_deadline_ends_what_runs() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(JOBS, "job", spec(seconds=100000, parallelism=3, activeDeadlineSeconds=30))
        await cluster.until_status(JOBS, "job", active=3)
        status = await ended(cluster)
        failed = ("True", "DeadlineExceeded", "Job was active longer than specified deadline")
        assert conditions(status) == {"FailureTarget": failed, "Failed": failed}
        assert numbers(status) == {"failed": 3, "ready": 0, "terminating": 0, "uncountedTerminatedPods": {}}
        assert await cluster.list(PODS) == []

    run_scenario(scenario)


def test_indexes() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(JOBS, "job", spec(completions=4, parallelism=3, completionMode="Indexed"))
        status = await ended(cluster)
        assert (status["succeeded"], status["completedIndexes"]) == (4, "0-3")
        pods = {pod["metadata"]["annotations"][INDEX]: pod for pod in await cluster.list(PODS)}
        assert sorted(pods) == ["0", "1", "2", "3"]
        pod = pods["2"]
        assert pod["metadata"]["labels"][INDEX] == "2"
        assert pod["metadata"]["name"].startswith("job-2-")
        assert pod["spec"]["hostname"] == "job-2"
        assert pod["spec"]["containers"][0]["env"] == [
            {
                "name": "JOB_COMPLETION_INDEX",
                "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}},
            }
        ]

    run_scenario(scenario)


def test_suspended_and_resumed() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(JOBS, "job", spec(seconds=20, parallelism=2, completions=2))
        status = await cluster.until_status(JOBS, "job", active=2)
        first_start = status["startTime"]
        await cluster.patch(JOBS, "job", {"spec": {"suspend": True}})
        status = await cluster.until_status(JOBS, "job", active=None, terminating=0)
        assert conditions(status)["Suspended"] == ("True", "JobSuspended", "Job suspended")
        assert not status.get("failed")
        await cluster.settle(30)
        assert await cluster.list(PODS) == []
        await cluster.patch(JOBS, "job", {"spec": {"suspend": False}})
        status = await ended(cluster)
        assert conditions(status)["Suspended"] == ("False", "JobResumed", "Job resumed")
        assert status["startTime"] > first_start
        assert (status["succeeded"], status.get("failed")) == (2, None)
        reasons = [event[1] for event in await cluster.events("job")]
        assert ("Suspended" in reasons, "Resumed" in reasons) == (True, True)

    run_scenario(scenario)


@pytest.mark.parametrize("silent", [False, True])
def test_fewer_at_a_time_is_no_failure(silent: bool) -> None:
    """Also when the informer tells of the discarded Pods late."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create(JOBS, "job", spec(seconds=30, parallelism=4, completions=4))
        await cluster.until_status(JOBS, "job", active=4)
        if silent:
            cluster.transport.held.add("pods")
        await cluster.patch(JOBS, "job", {"spec": {"parallelism": 1}})
        await cluster.until_status(JOBS, "job", active=1)
        await cluster.settle()
        cluster.transport.held.clear()
        status = await ended(cluster)
        assert (status["succeeded"], status.get("failed")) == (4, None)

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("action", "code", "expected"),
    [
        ("FailJob", 42, "PodFailurePolicy"),
        ("Ignore", 42, ""),
        ("Count", 42, "BackoffLimitExceeded"),
        ("FailJob", 1, "BackoffLimitExceeded"),
    ],
)
def test_failure_policy(action: str, code: int, expected: str) -> None:
    policy = {"rules": [{"action": action, "onExitCodes": {"operator": "In", "values": [42]}}]}

    async def scenario(cluster: Cluster) -> None:
        await cluster.create(JOBS, "job", spec(code=code, backoffLimit=1, podFailurePolicy=policy))
        if not expected:
            await cluster.settle(120)
            status = await cluster.status(JOBS, "job")
            assert (status.get("failed"), conditions(status)) == (None, {})
            assert len(await cluster.list(PODS)) > 2
            return
        status = await ended(cluster)
        state = conditions(status)["Failed"]
        assert state[1] == expected
        if expected == "PodFailurePolicy":
            (pod,) = await cluster.list(PODS)
            assert state[2] == (
                f"Container c for pod team/{pod['metadata']['name']} failed with exit code 42 "
                "matching FailJob rule at index 0"
            )
            assert status["failed"] == 1

    run_scenario(scenario)


def test_a_limit_per_index() -> None:
    async def scenario(cluster: Cluster) -> None:
        body = spec(
            code=1, completions=2, parallelism=2, completionMode="Indexed", backoffLimitPerIndex=1, maxFailedIndexes=5
        )
        await cluster.create(JOBS, "job", body)
        status = await ended(cluster)
        assert conditions(status)["Failed"] == ("True", "FailedIndexes", "Job has failed indexes")
        assert (status["failedIndexes"], status["failed"]) == ("0-1", 4)
        key = "batch.kubernetes.io/job-index-failure-count"
        counts = sorted(
            (pod["metadata"]["annotations"][INDEX], pod["metadata"]["annotations"][key])
            for pod in await cluster.list(PODS)
        )
        assert counts == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]

    run_scenario(scenario)


def test_early_success() -> None:
    async def scenario(cluster: Cluster) -> None:
        body = spec(
            completions=3,
            parallelism=1,
            completionMode="Indexed",
            successPolicy={"rules": [{"succeededIndexes": "1-2", "succeededCount": 1}]},
        )
        await cluster.create(JOBS, "job", body)
        status = await ended(cluster)
        met = ("True", "SuccessPolicy", "Matched rules at index 0")
        assert conditions(status) == {"SuccessCriteriaMet": met, "Complete": met}
        assert status["completedIndexes"] == "0-1"

    run_scenario(scenario)


@pytest.mark.parametrize(("policy", "waits"), [("Failed", True), ("TerminatingOrFailed", False)])
def test_what_is_replaced(policy: str, waits: bool) -> None:
    """No node here: the test plays it."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create(JOBS, "job", spec(podReplacementPolicy=policy))
        await cluster.until_status(JOBS, "job", active=1)
        (pod,) = await cluster.list(PODS)
        name = pod["metadata"]["name"]
        await cluster.patch(PODS, name, {"metadata": {"finalizers": [TRACKING, "example.com/hold"]}})
        await cluster.user.delete(PODS, name, TEAM)
        status = await cluster.until_status(JOBS, "job", terminating=1)
        assert status.get("failed") == (None if waits else 1)
        await cluster.settle(60)
        assert len(await cluster.list(PODS)) == (1 if waits else 2)
        await cluster.patch(PODS, name, {"status": {"phase": "Failed"}}, "status")
        status = await cluster.until_status(JOBS, "job", terminating=0, active=1)
        assert status["failed"] == 1
        assert len(await cluster.list(PODS)) == 2

    run_scenario(scenario, nodes=0, scheduler=False)


def test_a_deleted_job_lets_its_pods_go() -> None:
    async def scenario(cluster: Cluster) -> None:
        for policy in (PropagationPolicy.BACKGROUND, PropagationPolicy.FOREGROUND):
            await cluster.create(JOBS, "job", spec(seconds=100000, parallelism=2, completions=2))
            await cluster.until_status(JOBS, "job", ready=2)
            await cluster.user.delete(JOBS, "job", TEAM, DeleteOptions(propagation_policy=policy))

            async def all_gone() -> bool:
                try:
                    await cluster.get(JOBS, "job")
                except NotFoundError:
                    return not await cluster.list(PODS)
                return False

            await cluster.until(all_gone)

    run_scenario(scenario)


def test_orphans_are_not_held() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(JOBS, "job", spec(seconds=100000))
        await cluster.until_status(JOBS, "job", ready=1)
        await cluster.user.delete(JOBS, "job", TEAM, DeleteOptions(propagation_policy=PropagationPolicy.ORPHAN))

        async def released() -> bool:
            (pod,) = await cluster.list(PODS)
            return not pod["metadata"].get("finalizers") and not pod["metadata"].get("ownerReferences")

        await cluster.until(released)

    run_scenario(scenario)


def test_a_pod_deleted_by_its_user_is_counted() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(JOBS, "job", spec(seconds=15))
        await cluster.until_status(JOBS, "job", ready=1)
        (pod,) = await cluster.list(PODS)
        await cluster.user.delete(PODS, pod["metadata"]["name"], TEAM)
        status = await ended(cluster)
        assert (status["succeeded"], status["failed"]) == (1, 1)

    run_scenario(scenario)


@pytest.mark.parametrize("error", [ServiceUnavailableError("lost"), ConflictError(JOBS.group_resource, "job", "x")])
@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("plural", ["pods", "jobs"])
def test_every_third_write_fails_and_the_counts_are_right(plural: str, lost: bool, error: Exception) -> None:
    """Half succeed and half fail, by index; each is counted once."""
    writes = itertools.count()

    def fault(call: Call) -> Exception | None:
        named = call.resource is not None and call.resource.plural == plural
        return error if named and call.verb not in ("get", "list") and next(writes) % 3 == 1 else None

    async def scenario(cluster: Cluster) -> None:
        setattr(cluster.transport, "lose" if lost else "fail", fault)
        await cluster.create(JOBS, "good", spec(completions=6, parallelism=3))
        await cluster.create(JOBS, "bad", spec(code=1, backoffLimit=2, parallelism=1))
        good, bad = await ended(cluster, "good"), await ended(cluster, "bad")
        assert (good["succeeded"], good.get("failed")) == (6, None)
        assert (bad.get("succeeded"), bad["failed"]) == (None, 3)
        pods = await cluster.list(PODS)
        assert len(pods) == 9
        assert all(not pod["metadata"].get("finalizers") for pod in pods)

    run_scenario(scenario)


@pytest.mark.parametrize("silent", [("pods",), ("jobs",), ("pods", "jobs")], ids="-".join)
def test_unobserved_changes_are_not_counted_twice(silent: tuple[str, ...]) -> None:
    """From the first named Pod on, the controller hears nothing of its own writes for a while."""
    acknowledged: list[Call] = []
    cluster: Cluster

    def listen(call: Call) -> Exception | None:
        status = (call.body or {}).get("status") if isinstance(call.body, dict) else None
        if call.resource is not None and call.resource.plural == "jobs" and status:
            named = status.get("uncountedTerminatedPods") or {}
            if named.get("succeeded") and not acknowledged:
                acknowledged.append(call)
                cluster.transport.held.update(silent)
        return None

    async def scenario(given: Cluster) -> None:
        nonlocal cluster
        cluster = given
        cluster.transport.lose = listen
        await cluster.create(JOBS, "job", spec(completions=4, parallelism=2))
        await cluster.until(first_named)
        await cluster.settle(20)
        assert len(await cluster.list(PODS)) <= 4
        cluster.transport.held.clear()
        status = await ended(cluster)
        assert (status["succeeded"], status.get("failed")) == (4, None)
        assert len(await cluster.list(PODS)) == 4

    async def first_named() -> bool:
        return bool(acknowledged)

    run_scenario(scenario)


@pytest.mark.api_faults
def test_an_orphan_is_adopted_and_not_replaced() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(JOBS, "job", spec(seconds=1000, parallelism=2, completions=2))
        await cluster.until_status(JOBS, "job", active=2, ready=2)
        first = {pod["metadata"]["uid"] for pod in await cluster.list(PODS)}
        for pod in await cluster.list(PODS):
            del pod["metadata"]["ownerReferences"], pod["metadata"]["resourceVersion"]
            await cluster.user.update(PODS, pod)
        await cluster.settle()
        pods = await cluster.list(PODS)
        assert {pod["metadata"]["uid"] for pod in pods} == first
        assert [pod["metadata"]["ownerReferences"][0]["name"] for pod in pods] == ["job", "job"]
        assert all(pod["metadata"]["finalizers"] == [TRACKING] for pod in pods)
        assert not [pod for pod in pods if "deletionTimestamp" in pod["metadata"]]

    run_scenario(scenario)


@pytest.mark.api_faults
def test_an_orphan_of_a_job_that_ends_loses_its_finalizer() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(JOBS, "job", spec(seconds=1000))
        await cluster.until_status(JOBS, "job", active=1, ready=1)
        (pod,) = await cluster.list(PODS)
        del pod["metadata"]["ownerReferences"], pod["metadata"]["resourceVersion"]
        await cluster.user.delete(JOBS, "job", TEAM, DeleteOptions(propagation_policy=PropagationPolicy.ORPHAN))
        await cluster.settle()
        await cluster.user.update(PODS, pod)
        await cluster.settle()
        (pod,) = await cluster.list(PODS)
        assert not pod["metadata"].get("finalizers")

    run_scenario(scenario)
