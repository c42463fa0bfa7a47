"""What a Job starts, removes, counts and reports, decided without a server."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from dray.api.types.batch_v1 import Job, PodFailurePolicy, UncountedTerminatedPods
from dray.api.types.core_v1 import Pod
from dray.api.types.meta_v1 import ObjectMeta
from dray.controllers.job import plan
from dray.controllers.job.accounting import UntrackedPods, account
from dray.controllers.job.backoff import FailureRecord
from dray.controllers.job.failure_policy import evaluate
from dray.controllers.job.indexes import format_indexes, parse_indexes
from dray.controllers.job.job_state import make_job_state, verdict_of
from dray.controllers.job.pod_templates import INDEX_FAILURES, make_job_pod, owner_of
from dray.controllers.ttl_after_finished import expires_in_seconds
from tests.unit.controllers.job.jobs import ended, job, worker
from tests.unit.controllers.pod_control.pods import NOW, ago


def decide(item: Job, pods: Sequence[Pod], record: FailureRecord | None = None) -> plan.Plan:
    return plan.plan_pods(make_job_state(item, pods, (), NOW), record or FailureRecord())


def names(pods: Sequence[Pod]) -> list[str]:
    return sorted(item.metadata.name or "" for item in pods)


@pytest.mark.parametrize(
    ("text", "indexes", "written"),
    [
        ("", set(), ""),
        ("1", {1}, "1"),
        ("1,3-5,7", {1, 3, 4, 5, 7}, "1,3-5,7"),
        ("3,4", {3, 4}, "3-4"),
        ("8-20", {8, 9}, "8-9"),
        ("x,2,-", {2}, "2"),
    ],
)
def test_indexes(text: str, indexes: set[int], written: str) -> None:
    assert parse_indexes(text, 10) == indexes
    assert format_indexes(indexes) == written


@pytest.mark.parametrize(
    ("item", "pods", "create", "discard"),
    [
        pytest.param(job(), [], 2, [], id="as many as may run at once"),
        pytest.param(job({"succeeded": 3}), [], 1, [], id="as many as are missing"),
        pytest.param(job({"succeeded": 3}), [worker("a"), worker("b", age=1.0)], 0, ["b"], id="no more than missing"),
        pytest.param(job(), [worker("a"), worker("b", "Succeeded")], 1, [], id="a success not yet in the status"),
        pytest.param(job(completions=None), [], 2, [], id="work queue"),
        pytest.param(
            job(completions=None), [worker("a", "Succeeded"), worker("b")], 0, [], id="work queue, one succeeded"
        ),
        pytest.param(job(parallelism=0), [worker("a")], 0, ["a"], id="none at all"),
        pytest.param(job(suspend=True), [worker("a"), worker("b")], 0, ["a", "b"], id="suspended"),
        pytest.param(job(deleting=True), [worker("a")], 0, [], id="deleted"),
        pytest.param(job(parallelism=3), [worker("a"), worker("b", held=False)], 0, ["b"], id="no finalizer"),
    ],
)
def test_pods(item: Job, pods: list[Pod], create: int, discard: list[str]) -> None:
    result = decide(item, pods)
    assert (len(result.create), names(result.discard), result.delete) == (create, discard, ())


INDEXED: dict[str, Any] = {"completionMode": "Indexed", "completions": 4, "parallelism": 3}


@pytest.mark.parametrize(
    ("item", "pods", "create", "discard"),
    [
        pytest.param(job(**INDEXED), [], [0, 1, 2], [], id="the lowest first"),
        pytest.param(job({"completedIndexes": "0-1"}, **INDEXED), [], [2, 3], [], id="those that are not done"),
        pytest.param(
            job(**INDEXED), [worker("a", index=1), worker("b", "Succeeded", index=0)], [2, 3], [], id="nor under way"
        ),
        pytest.param(
            job(**INDEXED), [worker("a", index=1), worker("b", index=1, age=1.0)], [], ["b"], id="one is enough"
        ),
        pytest.param(job(**INDEXED), [worker("a", index=9), worker("b")], [], ["a", "b"], id="no such index"),
        pytest.param(job({"failedIndexes": "0"}, **INDEXED, backoffLimitPerIndex=1), [], [1, 2, 3], [], id="given up"),
    ],
)
def test_indexed_pods(item: Job, pods: list[Pod], create: list[int], discard: list[str]) -> None:
    result = decide(item, pods)
    assert ([start.index for start in result.create], names(result.discard)) == (create, discard)


def test_backoff() -> None:
    record = FailureRecord().after([], [ended("a", 1), ended("b", 1)], NOW)
    assert (record.failures, record.remaining(NOW)) == (2, 15.0)
    assert decide(job(), [], record).requeue_seconds == 15.0
    assert decide(job(activeDeadlineSeconds=70), [], record).requeue_seconds == 10.0
    assert record.after([worker("c", "Succeeded")], [], NOW).remaining(NOW) == 0.0
    assert FailureRecord(20, NOW).remaining(NOW) == 600.0


def test_backoff_after_the_clock_was_set_back() -> None:
    assert FailureRecord(1, NOW + timedelta(seconds=1)).remaining(NOW) == 11.0
    assert FailureRecord(1, NOW + timedelta(hours=20)).remaining(NOW) == 0.0


def test_backoff_per_index() -> None:
    item = job(**INDEXED, backoffLimitPerIndex=3)
    failed = ended("a", 1, index=0, failures=1)
    waiting = decide(item, [failed])
    assert ([start.index for start in waiting.create], waiting.requeue_seconds) == ([1, 2, 3], 15.0)
    later = plan.plan_pods(make_job_state(item, [failed], (), NOW + timedelta(seconds=20)), FailureRecord())
    assert dict(later.create[0].failures) == {INDEX_FAILURES: "2"}
    # The failed one is kept until the next one exists, since only it knows how often.
    assert account(make_job_state(item, [failed], (), NOW)).release == ()
    successor = worker("b", index=0, failures=2)
    assert names(account(make_job_state(item, [failed, successor], (), NOW)).release) == ["a"]


@pytest.mark.parametrize(
    ("item", "pods", "reason"),
    [
        (job(), [], None),
        (job({"failed": 6}), [worker("a", "Failed")], "BackoffLimitExceeded"),
        (job({"failed": 5}), [worker("a", "Failed")], None),
        (job({"failed": 4, "uncountedTerminatedPods": {"failed": ["x", "y", "z"]}}), [], "BackoffLimitExceeded"),
        (job(activeDeadlineSeconds=60), [], "DeadlineExceeded"),
        (job(activeDeadlineSeconds=60, suspend=True), [], None),
        (job(activeDeadlineSeconds=61), [], None),
        (
            job(backoffLimit=2, template={"spec": {"restartPolicy": "OnFailure"}}),
            [worker("a", restarts=1), worker("b", restarts=1)],
            "BackoffLimitExceeded",
        ),
        (
            job(**INDEXED, backoffLimitPerIndex=0, maxFailedIndexes=0),
            [ended("a", 1, index=0)],
            "MaxFailedIndexesExceeded",
        ),
        (
            job({"completedIndexes": "1-3"}, **INDEXED, backoffLimitPerIndex=0),
            [ended("a", 1, index=0)],
            "FailedIndexes",
        ),
        (job(**INDEXED, successPolicy={"rules": [{"succeededCount": 1}]}), [], None),
        (
            job({"completedIndexes": "2"}, **INDEXED, successPolicy={"rules": [{"succeededIndexes": "2"}]}),
            [],
            "SuccessPolicy",
        ),
        (
            job({"conditions": [{"type": "FailureTarget", "status": "True", "reason": "DeadlineExceeded"}]}),
            [],
            "DeadlineExceeded",
        ),
    ],
)
def test_verdicts(item: Job, pods: list[Pod], reason: str | None) -> None:
    verdict = verdict_of(make_job_state(item, pods, (), NOW))
    assert (None if verdict is None else verdict.reason) == reason


RULES: list[dict[str, Any]] = [
    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    {"action": "FailJob", "onExitCodes": {"containerName": "c", "operator": "In", "values": [42, 43]}},
    {"action": "FailIndex", "onExitCodes": {"operator": "NotIn", "values": [1, 2]}},
]


@pytest.mark.parametrize(
    ("item", "action", "message"),
    [
        (
            ended("a", 42, "DisruptionTarget"),
            "Ignore",
            "Pod team/a has condition DisruptionTarget matching Ignore rule at index 0",
        ),
        (
            ended("a", 42),
            "FailJob",
            "Container c for pod team/a failed with exit code 42 matching FailJob rule at index 1",
        ),
        (
            ended("a", 7),
            "FailIndex",
            "Container c for pod team/a failed with exit code 7 matching FailIndex rule at index 2",
        ),
        (ended("a", 1), "Count", ""),
        (ended("a", 0), "Count", ""),
        (worker("a", deleting=True), "Count", ""),
    ],
)
def test_failure_policy(item: Pod, action: str, message: str) -> None:
    ruling = evaluate(msgspec.convert({"rules": RULES}, PodFailurePolicy), item)
    assert (ruling.action, ruling.message) == (action, message)


def test_a_pod_is_named_then_let_go_then_counted() -> None:
    item = job()
    pods = [worker("a", "Succeeded"), worker("b", "Failed"), worker("c")]
    first = account(make_job_state(item, pods, (), NOW))
    assert first.status.uncounted_terminated_pods == UncountedTerminatedPods(succeeded=("uid-a",), failed=("uid-b",))
    assert (first.status.succeeded, first.status.failed, first.status.active) == (None, None, 1)
    assert names(first.release) == ["a", "b"]
    item = msgspec.structs.replace(item, status=first.status)
    again = account(make_job_state(item, pods, (), NOW))
    assert (again.status, names(again.release)) == (first.status, ["a", "b"])
    counted = account(make_job_state(item, pods, ("uid-a", "uid-b"), NOW))
    assert counted.status.uncounted_terminated_pods == UncountedTerminatedPods()
    assert (counted.status.succeeded, counted.status.failed, counted.release) == (1, 1, ())


@pytest.mark.parametrize(
    ("item", "pods", "action"),
    [
        pytest.param(job(), [], "pods_created", id="some are missing"),
        pytest.param(job(), [ended("a", 1)], "pods_created", id="some are missing, after a wait"),
        pytest.param(job(), [worker("a"), worker("b")], "tracking", id="as many as there should be"),
        pytest.param(job(parallelism=1), [worker("a"), worker("b")], "pods_deleted", id="too many"),
        pytest.param(job(suspend=True), [], "pods_deleted", id="suspended"),
        pytest.param(job({"failed": 7}), [worker("a")], "reconciling", id="failed"),
        pytest.param(job(deleting=True), [worker("a")], "reconciling", id="being deleted"),
    ],
)
def test_what_a_look_comes_to(item: Job, pods: list[Pod], action: str) -> None:
    record = FailureRecord().after([], [pod for pod in pods if pod.status.phase == "Failed"], NOW)
    assert decide(item, pods, record).action == action


@pytest.mark.parametrize(
    ("pods", "judged", "failed"),
    [
        pytest.param([ended("a", 42)], ("FailJob",), ["a"], id="fails the Job"),
        pytest.param([ended("a", 42, "DisruptionTarget")], ("Ignore",), [], id="ignored"),
        pytest.param([ended("a", 7), ended("b", 7)], ("FailIndex", "FailIndex"), ["a", "b"], id="fails the index"),
        pytest.param([ended("a", 1)], (), ["a"], id="no rule matches"),
        pytest.param([worker("a", "Succeeded"), worker("b")], (), [], id="none failed"),
    ],
)
def test_rules_that_matched(pods: list[Pod], judged: tuple[str, ...], failed: list[str]) -> None:
    result = account(make_job_state(job(podFailurePolicy={"rules": RULES}), pods, (), NOW))
    named = result.status.uncounted_terminated_pods
    assert (result.failure_policy_actions, named.failed if named else None) == (
        judged,
        tuple(f"uid-{name}" for name in failed),
    )


def test_a_named_pod_is_not_judged_again() -> None:
    item = job({"uncountedTerminatedPods": {"failed": ["uid-a"]}}, podFailurePolicy={"rules": RULES})
    assert account(make_job_state(item, [ended("a", 42)], (), NOW)).failure_policy_actions == ()


@pytest.mark.parametrize(
    ("item", "reasons"),
    [
        (job({"succeeded": 4}), ["Completed"]),
        (job({"succeeded": 5}), ["TooManySucceededPods", "Completed"]),
        (job({"succeeded": 5}, completions=None), ["Completed"]),
        (job({"succeeded": 5, "failed": 7}), ["BackoffLimitExceeded"]),
    ],
    ids=["as many as asked for", "more", "a work queue", "failed"],
)
def test_events_of_a_finished_job(item: Job, reasons: list[str]) -> None:
    events = account(make_job_state(item, [], (), NOW)).events
    assert [event.reason for event in events] == reasons
    assert all(event.warning is (event.reason != "Completed") for event in events)


def test_the_end_waits_for_what_still_runs() -> None:
    item = job(completions=1)
    pods = [worker("a", "Succeeded"), worker("b", deleting=True, held=False)]
    first = account(make_job_state(item, pods, (), NOW))
    assert [state.type for state in first.status.conditions] == ["SuccessCriteriaMet"]
    item = msgspec.structs.replace(item, status=first.status)
    waiting = account(make_job_state(item, [pods[1]], (), NOW))
    assert [state.type for state in waiting.status.conditions] == ["SuccessCriteriaMet"]
    item = msgspec.structs.replace(item, status=waiting.status)
    last = account(make_job_state(item, [], (), NOW))
    assert [state.type for state in last.status.conditions] == ["SuccessCriteriaMet", "Complete"]
    assert last.status.completion_time == NOW
    assert [event.message for event in last.events] == ["Job completed"]


def test_pods_of_a_job_that_is_decided() -> None:
    late = job(activeDeadlineSeconds=1)
    assert names(decide(late, [worker("a"), worker("b")]).delete) == ["a", "b"]
    failing = account(make_job_state(late, [worker("a", deleting=True)], (), NOW))
    assert failing.status.uncounted_terminated_pods == UncountedTerminatedPods(failed=("uid-a",))
    early = job({"completedIndexes": "0"}, **INDEXED, successPolicy={"rules": [{"succeededCount": 1}]})
    useless = account(make_job_state(early, [worker("a", index=1, deleting=True)], (), NOW))
    assert useless.status.uncounted_terminated_pods == UncountedTerminatedPods()
    assert names(useless.release) == ["a"]


def test_untracked() -> None:
    untracked = UntrackedPods()
    untracked.expect_removal("uid-a")
    assert "uid-a" not in untracked
    untracked.removed("uid-a")
    assert "uid-a" in untracked
    untracked.observe(worker("a"), tracked=True)
    assert "uid-a" in untracked
    untracked.observe(worker("a"), tracked=False)
    assert "uid-a" not in untracked
    untracked.expect_removal("uid-b")
    untracked.observe(worker("b"), tracked=False)
    untracked.removed("uid-b")
    assert "uid-b" not in untracked


def test_a_removal_that_was_confirmed_is_not_forgotten_when_another_request_fails() -> None:
    """Otherwise the Pod, which the cache still shows with its finalizer, would be counted twice."""
    untracked = UntrackedPods()
    untracked.expect_removal("uid-a")
    untracked.expect_removal("uid-a")
    untracked.removed("uid-a")
    untracked.removal_failed("uid-a")
    assert "uid-a" in untracked
    untracked.expect_removal("uid-a")
    assert "uid-a" in untracked
    untracked.expect_removal("uid-b")
    untracked.removal_failed("uid-b")
    assert "uid-b" not in untracked


def test_long_names_leave_room_for_the_index() -> None:
    item = msgspec.structs.replace(job(), metadata=ObjectMeta(name="j" * 80, namespace="team", uid="u1"))
    made = make_job_pod(owner_of(item), item, 12, {})
    prefix = made.metadata.generate_name or ""
    assert (len(prefix), prefix.endswith("j-12-")) == (58, True)


@pytest.mark.parametrize("seed", range(20))
def test_counting_in_any_order_with_any_interruption(seed: int) -> None:
    """Writes are kept or lost at random; in the end each of 30 Pods is counted once."""
    rng = random.Random(seed)
    item = job(completions=1000, backoffLimit=1000, parallelism=30)
    phases = {f"p{number}": rng.choice(("Succeeded", "Failed")) for number in range(30)}
    pods = {name: worker(name) for name in phases}
    for _ in range(400):
        name = rng.choice(list(phases))
        if name in pods and rng.random() < 0.3:
            pods[name] = worker(name, phases[name], held=bool(pods[name].metadata.finalizers))
        result = account(make_job_state(item, pods.values(), (), NOW))
        if rng.random() < 0.5:
            continue
        item = msgspec.structs.replace(item, status=result.status)
        for released in result.release:
            name = released.metadata.name or ""
            if rng.random() < 0.5:
                pods[name] = worker(name, phases[name], held=False)
                if rng.random() < 0.5:
                    del pods[name]
    for _ in range(3):
        pods = {name: worker(name, phases[name], held=bool(item_.metadata.finalizers)) for name, item_ in pods.items()}
        result = account(make_job_state(item, pods.values(), (), NOW))
        item = msgspec.structs.replace(item, status=result.status)
        for released in result.release:
            pods.pop(released.metadata.name or "")
    wanted = list(phases.values())
    assert (item.status.succeeded, item.status.failed) == (wanted.count("Succeeded"), wanted.count("Failed"))


@pytest.mark.parametrize(
    ("seconds", "conditions", "expected"),
    [
        (None, ["Complete"], None),
        (100, [], None),
        (100, ["SuccessCriteriaMet"], None),
        (100, ["SuccessCriteriaMet", "Complete"], 70.0),
        (100, ["Failed"], 70.0),
        (10, ["Failed"], 0.0),
    ],
)
def test_time_to_live(seconds: int | None, conditions: list[str], expected: float | None) -> None:
    listed = [{"type": kind, "status": "True", "lastTransitionTime": ago(30)} for kind in conditions]
    assert expires_in_seconds(job({"conditions": listed}, ttlSecondsAfterFinished=seconds), NOW) == expected
