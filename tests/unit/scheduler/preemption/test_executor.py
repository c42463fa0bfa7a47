"""The evictions of a preemption, with a server that may fail: order, waiting, memory, and a preemptor that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest

from dray.api.document import GroupResource, NamespacedName
from dray.api.errors import APIError, ConflictError, InternalError, NotFoundError, ServiceUnavailableError
from dray.api.types.core_v1 import Pod
from dray.client.interface import DeleteOptions, Patch
from dray.client.objects import key_of
from dray.framework.pod_info import PodInfo
from dray.framework.status import SUCCESS, unresolvable
from dray.runtime.metrics import Metrics
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.default_preemption import DefaultPreemption
from dray.scheduler.preemption.executor import Executor, disruption_patch, is_preempted, pod_preemptor
from dray.scheduler.preemption.metrics import PreemptionMetrics
from tests.unit.scheduler.builders import handle, pod, pod_info

GROUP_RESOURCE = GroupResource("", "pods")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
PREEMPTOR = pod("urgent", priority=10)


class Server:
    """A client that deletes Pods at once, and fails as requested: (verb, Pod) -> errors of the next calls."""

    def __init__(self, *pods: Pod) -> None:
        self.pods = {key_of(item): item for item in pods}
        self.calls: list[str] = []
        self.failures: dict[tuple[str, str], list[APIError]] = {}
        # The uid of the Pod that a name has by now; empty for none.
        self.uids: dict[str, str] = {}
        # The next deletion waits for it.
        self.gate: asyncio.Event | None = None

    def get_key(self, key: NamespacedName) -> Pod | None:
        return self.pods.get(key)

    async def get(self, _resource: object, name: str, _namespace: str) -> Pod:
        if not self.uids[name]:
            raise NotFoundError(GROUP_RESOURCE, name)
        found = pod(name)
        return msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, uid=self.uids[name]))

    async def patch(self, _resource: object, name: str, _namespace: str, patch: Patch, _options: object) -> None:
        self._call("patch", name)
        (condition,) = cast(Any, patch.body)["status"]["conditions"]
        assert condition["reason"] == "PreemptionByScheduler"

    async def delete(self, _resource: object, name: str, namespace: str, options: DeleteOptions) -> None:
        assert options.uid
        assert options.grace_period_seconds is None
        if self.gate is not None:
            gate, self.gate = self.gate, None
            await gate.wait()
        self._call("delete", name)
        self.pods.pop(NamespacedName(namespace, name))

    def _call(self, verb: str, name: str) -> None:
        self.calls.append(f"{verb} {name}")
        failures = self.failures.get((verb, name))
        if failures:
            raise failures.pop(0)


class Informers:
    def __init__(self, lister: Server) -> None:
        self.lister = lister

    def informer(self, *_arguments: object) -> Informers:
        return self


class Clock:
    def now(self) -> datetime:
        return NOW

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, _seconds: float) -> None:
        await asyncio.sleep(0)


class Waiter:
    """A Pod at Permit."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def get(self, uid: str) -> Waiter | None:
        return self if uid == "uid-waiting" else None

    def preempt(self, message: str) -> None:
        self.messages.append(message)


class Parts:
    """An executor with all it uses; `calls` has its calls to the scheduler."""

    def __init__(self, *victims: PodInfo, binding: tuple[str, ...] = ()) -> None:
        self.server = Server(PREEMPTOR, *(item.pod for item in victims))
        self.calls: list[str] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.waiter = Waiter()
        self.binding = binding
        self.cancelled: list[str] = []
        self.registry = Metrics()
        base: Handle = handle()
        self.handle = replace(
            base,
            client=cast(Any, self.server),
            informers=cast(Any, Informers(self.server)),
            clock=cast(Any, Clock()),
            waiting_pods=cast(Any, self.waiter),
            activate=lambda uid: self.calls.append(f"activate {uid}"),
            recheck_gate=lambda uid: self.calls.append(f"recheck {uid}"),
            clear_nomination=lambda uid: self.calls.append(f"clear {uid}"),
            preemption_failed=lambda uid: self.calls.append(f"failed {uid}"),
            cancel_binding=self._cancel,
            record_preempted=lambda victim, _preemptor, _name, text: self.calls.append(
                f"{victim.metadata.name}: {text}"
            ),
            spawn=self._spawn,
        )
        self.executor = Executor(self.handle, PreemptionMetrics(self.registry))
        self.preemptor = pod_preemptor(PREEMPTOR, "n")
        self.victims = victims

    def _cancel(self, uid: str, message: str) -> asyncio.Event | None:
        if uid not in (*self.binding, "uid-waiting"):
            return None
        self.cancelled.append(message)
        return _ended()

    def _spawn(self, work: Coroutine[Any, Any, Any], _name: str) -> object:
        self.tasks.append(asyncio.get_running_loop().create_task(work))
        return None

    def start(self) -> None:
        self.executor.start(self.preemptor, self.victims)

    async def finish(self) -> None:
        await asyncio.gather(*self.tasks)

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.value(name, labels)


def _ended() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


async def spin(times: int = 20) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


VICTIMS = (pod_info("a"), pod_info("b"), pod_info("c"))


@pytest.mark.behaviour("PE-30", "PE-46")
def test_the_last_victim_goes_when_the_others_are_gone() -> None:
    async def main() -> None:
        parts = Parts(*VICTIMS)
        gate = parts.server.gate = asyncio.Event()
        parts.start()
        await spin()
        assert "patch c" not in parts.server.calls
        gate.set()
        await parts.finish()
        assert parts.server.calls[-2:] == ["patch c", "delete c"]
        assert set(parts.server.calls) == {f"{verb} {name}" for verb in ("patch", "delete") for name in "abc"}
        assert parts.calls[-1] == "recheck uid-urgent"
        assert "activate uid-urgent" not in parts.calls
        assert "c: Preempted by pod uid-urgent on node n" in parts.calls
        assert not parts.executor.is_waiting("uid-urgent")
        assert parts.metric("scheduler_preemption_goroutines_execution_total", result="success") == 1
        assert parts.metric("scheduler_preemption_goroutines_duration_seconds_count", result="success") == 1
        assert parts.metric("scheduler_preemption_victims_sum") == 3

    asyncio.run(main())


@pytest.mark.behaviour("PE-29", "PE-31", "GW-53")
def test_when_the_preemptor_has_to_wait() -> None:
    async def main() -> None:
        parts = Parts(*VICTIMS[:1])
        assert not parts.executor.is_waiting("uid-urgent")
        gate = parts.server.gate = asyncio.Event()
        parts.start()
        assert parts.executor.is_waiting("uid-urgent")
        parts.handle.shared["DefaultPreemption"] = (PreemptionMetrics(Metrics()), parts.executor, None)
        plugin = DefaultPreemption({}, parts.handle)
        text = "waiting for the preemption for this pod to be finished"
        assert plugin.pre_enqueue(PREEMPTOR) == unresolvable(text).with_plugin("DefaultPreemption")
        member = pod("urgent", schedulingGroup={"podGroupName": "team"})
        text = "waiting for the preemption for this pod group to be finished"
        assert plugin.pre_enqueue(member) == unresolvable(text).with_plugin("DefaultPreemption")
        assert plugin.pre_enqueue(pod("other")) is SUCCESS
        await spin()
        # The last victim is being evicted, and still there.
        assert parts.executor.is_waiting("uid-urgent")
        key = NamespacedName("default", "a")
        metadata = msgspec.structs.replace(VICTIMS[0].pod.metadata, deletion_timestamp=NOW)
        terminating = msgspec.structs.replace(VICTIMS[0].pod, metadata=metadata)
        before, parts.server.pods[key] = parts.server.pods[key], terminating
        assert not parts.executor.is_waiting("uid-urgent")
        del parts.server.pods[key]
        assert not parts.executor.is_waiting("uid-urgent")
        parts.server.pods[key] = before
        gate.set()
        await parts.finish()

    asyncio.run(main())


@pytest.mark.behaviour("PE-30", "PE-32", "PE-46")
def test_a_failure_spares_the_last_victim_and_ends_the_nomination() -> None:
    async def main() -> None:
        parts = Parts(*VICTIMS)
        parts.server.failures["delete", "a"] = [InternalError("disk full")]
        parts.start()
        await parts.finish()
        assert "patch c" not in parts.server.calls
        assert parts.calls[-2:] == ["failed uid-urgent", "recheck uid-urgent"]
        assert not parts.executor.is_waiting("uid-urgent")
        assert parts.metric("scheduler_preemption_goroutines_execution_total", result="error") == 1

    asyncio.run(main())


@pytest.mark.behaviour("PE-32", "PE-34")
@pytest.mark.parametrize(
    ("verb", "failures", "calls"),
    [
        pytest.param("patch", [NotFoundError(GROUP_RESOURCE, "a")], ["patch a"], id="gone when patched"),
        pytest.param(
            "delete", [NotFoundError(GROUP_RESOURCE, "a")], ["patch a", "delete a"], id="gone when it is deleted"
        ),
        pytest.param(
            "patch",
            [ConflictError(GROUP_RESOURCE, "a", "changed"), InternalError("oops"), ServiceUnavailableError("busy")],
            [*["patch a"] * 4, "delete a"],
            id="the condition is tried again",
        ),
        pytest.param(
            "delete",
            [ConflictError(GROUP_RESOURCE, "a", "changed")] * 3,
            ["patch a", *["delete a"] * 4],
            id="the deletion is tried again after a conflict",
        ),
    ],
)
def test_failures_that_are_none(verb: str, failures: list[APIError], calls: list[str]) -> None:
    async def main() -> None:
        parts = Parts(*VICTIMS[:1])
        parts.server.failures[verb, "a"] = failures
        parts.start()
        await parts.finish()
        assert parts.server.calls == calls
        assert "failed uid-urgent" not in parts.calls

    asyncio.run(main())


@pytest.mark.behaviour("PE-32", "PE-34")
@pytest.mark.parametrize("verb", ["patch", "delete"])
@pytest.mark.parametrize(("there", "failed"), [("uid-a", True), ("uid-later", False), ("", False)])
def test_a_conflict_that_stays_is_a_failure_unless_another_pod_has_the_name(
    verb: str, there: str, *, failed: bool
) -> None:
    """Otherwise the preemptor would wait for a victim that nobody deletes."""

    async def main() -> None:
        parts = Parts(*VICTIMS[:1])
        parts.server.failures[verb, "a"] = [ConflictError(GROUP_RESOURCE, "a", "changed")] * 4
        parts.server.uids["a"] = there
        parts.start()
        await parts.finish()
        assert ("failed uid-urgent" in parts.calls) is failed
        assert not any(call.startswith("a: Preempted") for call in parts.calls)
        assert not parts.executor.is_waiting("uid-urgent")

    asyncio.run(main())


@pytest.mark.behaviour("PE-33", "PE-35")
@pytest.mark.parametrize("where", ["Permit", "PreBind"])
def test_a_victim_that_is_not_bound_keeps_its_pod(where: str) -> None:
    async def main() -> None:
        victim = pod_info("waiting" if where == "Permit" else "binding")
        parts = Parts(victim, binding=("uid-binding",))
        parts.start()
        await parts.finish()
        assert parts.server.calls == []
        note = "Preempted by pod uid-urgent on node n (in kube-scheduler memory)."
        # No event of a deleted Pod will come.
        assert parts.calls == [f"{victim.key.name}: {note}", "activate uid-urgent", "recheck uid-urgent"]
        assert parts.waiter.messages == (["preempted"] if where == "Permit" else [])
        assert parts.cancelled == ["preempted" if where == "Permit" else "preempted by DefaultPreemption"]

    asyncio.run(main())


@pytest.mark.behaviour("PE-27")
def test_nothing_is_written_for_victims_that_are_terminating() -> None:
    async def main() -> None:
        metadata = msgspec.structs.replace(VICTIMS[0].pod.metadata, deletion_timestamp=NOW)
        parts = Parts(PodInfo(msgspec.structs.replace(VICTIMS[0].pod, metadata=metadata)))
        parts.start()
        assert not parts.tasks
        assert not parts.executor.is_waiting("uid-urgent")
        assert parts.server.calls == []

    asyncio.run(main())


@pytest.mark.behaviour("PE-36")
def test_less_important_nominations_to_the_node_are_withdrawn() -> None:
    async def main() -> None:
        parts = Parts(*VICTIMS[:1])
        for name, priority, node in (("less", 9, "n"), ("equal", 10, "n"), ("elsewhere", 1, "m"), ("urgent", 10, "n")):
            parts.handle.nominations.set(pod_info(name, priority=priority), node)
        parts.start()
        assert parts.calls == ["clear uid-less"]
        await parts.finish()

    asyncio.run(main())


@pytest.mark.behaviour("PE-75")
def test_nobody_is_evicted_for_a_pod_that_was_deleted_midway() -> None:
    async def main() -> None:
        parts = Parts(*VICTIMS)
        gate = parts.server.gate = asyncio.Event()
        parts.start()
        await spin()
        del parts.server.pods[key_of(PREEMPTOR)]
        gate.set()
        await parts.finish()
        assert "delete c" not in parts.server.calls
        assert not parts.executor.is_waiting("uid-urgent")

    asyncio.run(main())


@pytest.mark.behaviour("PE-34")
def test_the_condition_is_written_only_if_it_says_something_new() -> None:
    message = "default-scheduler: preempting to accommodate a higher priority pod"
    target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": message}
    assert disruption_patch(pod("a", status={"conditions": [target]}), "default-scheduler", NOW) is None
    other = pod("a", status={"conditions": [target | {"reason": "EvictionByEvictionAPI"}]})
    patch = disruption_patch(other, "default-scheduler", NOW)
    assert patch is not None
    assert patch["metadata"] == {"uid": "uid-a"}
    assert patch["status"]["conditions"] == [target | {"lastTransitionTime": "2026-01-01T00:00:00Z"}]


@pytest.mark.behaviour("PE-13")
@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([("DisruptionTarget", "True", "PreemptionByScheduler")], True),
        ([("DisruptionTarget", "False", "PreemptionByScheduler")], False),
        ([("DisruptionTarget", "True", "EvictionByEvictionAPI")], False),
        (
            [
                ("DisruptionTarget", "True", "EvictionByEvictionAPI"),
                ("DisruptionTarget", "True", "PreemptionByScheduler"),
            ],
            False,
        ),
        ([], False),
    ],
)
def test_terminating_by_preemption(conditions: list[tuple[str, str, str]], *, expected: bool) -> None:
    names = ("type", "status", "reason")
    victim = pod("a", status={"conditions": [dict(zip(names, item, strict=True)) for item in conditions]})
    assert not is_preempted(victim)
    metadata = msgspec.structs.replace(victim.metadata, deletion_timestamp=NOW)
    assert is_preempted(msgspec.structs.replace(victim, metadata=metadata)) is expected
