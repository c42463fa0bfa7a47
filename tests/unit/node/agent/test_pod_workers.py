"""Failures of tasks: one Pod's stay with the Pod, the agent's reach its owner."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from dray.api.types.core_v1 import Pod
from dray.node.agent.cpuset_reconciler import CpusetLookup
from dray.node.agent.dependencies import Dependencies, NodeInfo
from dray.node.agent.pod.machine import Stage
from dray.node.agent.pod_manager import PodManager
from dray.node.agent.pod_workers import RETRY_SECONDS, PodWorkers
from dray.node.agent.probes.prober import Prober
from dray.node.resource_manager import NO_OPTIONS, Rejection, RunOptions
from dray.node.runtimes.runtime import ContainerRecord, ExitListener, Sandbox
from dray.node.runtimes.simulated import SimulatedPodSetup, SimulatedRuntime
from dray.runtime.system import SystemClock
from dray.runtime.tasks import ChildTasks
from tests.unit.node.agent.builders import UID, container, pod, record


class Clock(SystemClock):
    """Time that does not pass in sleeps, which are noted."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


class Recorder:
    """Notes the reasons of events."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def event_for(self, _about: Any, _type: str, reason: str, _message: str) -> None:
        self.reasons.append(reason)


class StatusManager:
    """Writes nothing."""

    def status_changed(self, _worker: Any) -> None:
        pass

    def pod_updated(self, _worker: Any) -> None:
        pass

    def remove(self, _worker: Any) -> None:
        pass


class FailingSetup(SimulatedPodSetup):
    """Cannot read the first termination message."""

    def __init__(self) -> None:
        self.calls = 0

    async def termination_message(self, *_: Any, **__: Any) -> str:
        self.calls += 1
        if self.calls == 1:
            raise ValueError("unreadable")
        return "done"


class PinnedRuntime(SimulatedRuntime):
    """Notes the CPUs of containers."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.cpus: dict[str, str] = {}

    async def set_cpus(self, container_id: str, cpus: str) -> None:
        self.cpus[container_id] = cpus


def make(
    setup: SimulatedPodSetup, cpusets: CpusetLookup | None = None
) -> tuple[PodWorkers, Recorder, Clock, ChildTasks, PinnedRuntime]:
    clock, recorder, tasks = Clock(), Recorder(), ChildTasks("test")
    runtime = PinnedRuntime(clock)
    dependencies = Dependencies(
        clock, tasks, runtime, setup, cast(Any, StatusManager()), recorder, cast(Prober, None), cpusets=cpusets
    )
    node = NodeInfo("n1", allocatable={"cpu": "4", "memory": "1Gi", "pods": "10"})
    return PodWorkers(lambda: node, PodManager(), dependencies), recorder, clock, tasks, runtime


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while True:
            await asyncio.sleep(0)
            if condition():
                return


async def test_an_unexpected_failure_is_recorded_for_its_pod_and_retried() -> None:
    workers, recorder, clock, tasks, runtime = make(FailingSetup())
    await workers.start()
    workers.pod_changed(None, pod(restartPolicy="Never"))
    worker = workers.pods.workers[UID]
    state = worker.machine.containers.by_name["a"]
    await until(lambda: state.running)
    assert state.current is not None
    await runtime.stop_container(state.current.id, 0.0)
    await until(lambda: state.exit_code is not None)
    assert recorder.reasons.count("FailedSync") == 1
    assert RETRY_SECONDS in clock.slept
    assert state.current.exit is not None
    assert state.current.exit.message == "done"
    await workers.stop()
    await tasks.aclose()


async def test_a_failure_that_belongs_to_no_pod_reaches_the_owner() -> None:
    workers, _, _, tasks, _ = make(SimulatedPodSetup())
    await workers.start()

    async def fail() -> None:
        raise ValueError("relist failed")

    supervised = asyncio.ensure_future(tasks.supervise())
    tasks.spawn(fail(), "background")
    with pytest.raises(ValueError, match="relist failed"):
        await supervised
    await workers.stop()


class RestartedRuntime(SimulatedRuntime):
    """Has a container of an earlier agent, which has ended."""

    async def start(self, on_exit: ExitListener, tasks: ChildTasks) -> Sequence[ContainerRecord]:
        await super().start(on_exit, tasks)
        return (record(code=1),)


@pytest.mark.behaviour("DP-47")
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_pod_that_an_earlier_agent_admitted_stays_admitted(restarted: bool) -> None:
    clock, recorder, tasks = Clock(), Recorder(), ChildTasks("test")
    runtime = RestartedRuntime(clock) if restarted else SimulatedRuntime(clock)
    dependencies = Dependencies(
        clock, tasks, runtime, SimulatedPodSetup(), cast(Any, StatusManager()), recorder, cast(Prober, None)
    )
    workers = PodWorkers(lambda: NodeInfo("n1", allocatable={"pods": "1"}), PodManager(), dependencies)
    await workers.start()
    # The node's labels and resources have changed.
    asks = container(resources={"requests": {"memory": "2Gi"}})
    workers.pod_changed(None, pod(asks, nodeSelector={"gone": "true"}))
    machine = workers.pods.workers[UID].machine
    await until(lambda: machine.rejected or machine.containers.by_name["a"].running)
    assert machine.rejected is not restarted
    assert ("NodeAffinity" in recorder.reasons) is not restarted
    await workers.stop()
    await tasks.aclose()


@pytest.mark.parametrize("labelled", [True, False])
async def test_a_pod_is_not_rejected_for_a_label_that_the_node_has_just_got(labelled: bool) -> None:
    """Its controller would create the next one at once, and that would be rejected as well."""
    node = NodeInfo("n1", allocatable={"pods": "1"})

    async def refresh() -> None:
        nonlocal node
        node = NodeInfo("n1", labels={"gpu": "true"} if labelled else {}, allocatable=node.allocatable)

    clock, recorder, tasks = Clock(), Recorder(), ChildTasks("test")
    dependencies = Dependencies(
        clock,
        tasks,
        SimulatedRuntime(clock),
        SimulatedPodSetup(),
        cast(Any, StatusManager()),
        recorder,
        cast(Prober, None),
        refresh_node=refresh,
    )
    workers = PodWorkers(lambda: node, PodManager(), dependencies)
    await workers.start()
    workers.pod_changed(None, pod(nodeSelector={"gpu": "true"}))
    machine = workers.pods.workers[UID].machine
    await until(lambda: machine.rejected or machine.containers.by_name["a"].running)
    assert machine.rejected is not labelled
    await workers.stop()
    await tasks.aclose()


async def test_the_cpus_of_a_removed_pod_are_given_to_others_at_once() -> None:
    pinned, other = pod(restartPolicy="Never"), pod(metadata={"name": "other", "uid": "uid-2"})
    workers, _, _, tasks, runtime = make(SimulatedPodSetup(), lambda _pod, _name: (shared[0], ""))
    shared = ["1-3"]
    await workers.start()
    for item in (pinned, other):
        workers.pod_changed(None, item)
    states = [worker.machine.containers.by_name["a"] for worker in workers.pods.workers.values()]
    await until(lambda: all(state.running for state in states))
    shared[0] = "0-3"
    workers.pod_changed(pinned, None)
    assert states[1].current is not None
    # Only the release sets the CPUs here: the periodic reconciliation is not running.
    identifier = states[1].current.id
    await until(lambda: UID not in workers.pods.workers and runtime.cpus.get(identifier) == "0-3")
    await workers.stop()
    await tasks.aclose()


class SlowManager:
    """Admits one Pod only when it is told to; says whom it waits for."""

    name = "slow"

    def __init__(self, slow: str) -> None:
        self.slow = slow
        self.go = asyncio.Event()

    async def admit(self, item: Pod) -> Rejection | None:
        if item.metadata.name == self.slow:
            await self.go.wait()
        return None

    def waits_for(self, item: Pod) -> str:
        return "waiting for Allocate" if item.metadata.name == self.slow and not self.go.is_set() else ""

    async def nothing(self, *_: Any) -> None:
        pass

    prepare = pre_start = release = nothing

    def container_options(self, *_: Any) -> RunOptions:
        return NO_OPTIONS


@pytest.mark.behaviour("DP-53")
async def test_a_pod_that_waits_for_a_plugin_holds_up_no_other_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dray.node.agent.pod_workers.LONG_WAIT_SECONDS", 0.01)
    clock, recorder, tasks = Clock(), Recorder(), ChildTasks("test")
    manager = SlowManager("slow")
    dependencies = Dependencies(
        *(clock, tasks, SimulatedRuntime(clock), SimulatedPodSetup(), cast(Any, StatusManager()), recorder),
        cast(Prober, None),
        [cast(Any, manager)],
    )
    node = NodeInfo("n1", allocatable={"cpu": "3", "memory": "1Gi", "pods": "10"})
    workers = PodWorkers(lambda: node, PodManager(), dependencies)
    await workers.start()
    asks = container(resources={"requests": {"cpu": "1"}})
    two = container(resources={"requests": {"cpu": "2"}})
    for name, spec in (("slow", asks), ("quick", two), ("late", two)):
        workers.pod_changed(None, pod(spec, metadata={"name": name, "uid": name}))
    slow, quick, late = (workers.pods.workers[name].machine for name in ("slow", "quick", "late"))
    await until(lambda: quick.containers.by_name["a"].running)
    # Said again while it lasts.
    await until(lambda: list(recorder.reasons).count("WaitingForDevices") > 1)
    # The Pod that waits has its CPUs already.
    assert late.rejected
    assert slow.stage is Stage.ADMITTING
    manager.go.set()
    await until(lambda: slow.containers.by_name["a"].running)
    await workers.stop()
    await tasks.aclose()


@pytest.mark.behaviour("PR-26")
async def test_the_devices_of_a_pod_can_be_read_when_its_network_is_set_up() -> None:
    clock, recorder, tasks = Clock(), Recorder(), ChildTasks("test")
    prepared: list[str] = []
    seen: list[tuple[list[str], list[str]]] = []

    class Manager(SlowManager):
        async def prepare(self, item: Pod) -> None:
            await asyncio.sleep(0)
            prepared.append(item.metadata.name or "")

    class NetworkedRuntime(SimulatedRuntime):
        async def ensure_sandbox(self, sandbox: Sandbox) -> tuple[str, ...]:
            seen.append(([item.metadata.name or "" for item in workers.pods.active()], list(prepared)))
            return await super().ensure_sandbox(sandbox)

    dependencies = Dependencies(
        *(clock, tasks, NetworkedRuntime(clock), SimulatedPodSetup(), cast(Any, StatusManager()), recorder),
        cast(Prober, None),
        [cast(Any, Manager("slow"))],
    )
    node = NodeInfo("n1", allocatable={"cpu": "4", "memory": "1Gi", "pods": "10"})
    workers = PodWorkers(lambda: node, PodManager(), dependencies)
    await workers.start()
    workers.pod_changed(None, pod(metadata={"name": "p", "uid": "p"}))
    await until(lambda: workers.pods.workers["p"].machine.containers.by_name["a"].running)
    assert seen == [(["p"], ["p"])]
    await workers.stop()
    await tasks.aclose()


async def test_init_containers_of_simulated_nodes_end_and_sidecars_run_on() -> None:
    """Annotations about the run time of containers concern neither."""
    workers, _, _, tasks, _ = make(SimulatedPodSetup())
    await workers.start()
    given = pod(
        container("main"),
        metadata={"annotations": {"simulation.dray.dev/exit-code": "3"}},
        initContainers=[container("first"), container("sidecar", restartPolicy="Always"), container("last")],
    )
    workers.pod_changed(None, given)
    by_name = workers.pods.workers[UID].machine.containers.by_name
    await until(lambda: by_name["main"].running)
    assert {name: state.exit_code for name, state in by_name.items()} == {
        "first": 0,
        "sidecar": None,
        "last": 0,
        "main": None,
    }
    assert by_name["sidecar"].running
    await workers.stop()
    await tasks.aclose()
