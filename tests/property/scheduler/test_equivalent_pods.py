"""Cached results of equivalent Pods equal those of a search or a dry run without a cache, whatever changes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dray.framework.cycle_state import CycleState, GroupState
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.status import SUCCESS, Status
from dray.scheduler.cycle import Cycle, Placement, run_pre_filter
from dray.scheduler.filter_runner import runner_of
from dray.scheduler.preemption.dry_run import Candidate, DryRun
from dray.scheduler.preemption.dry_run_cache import DryRunCache
from tests.unit.scheduler.preemption.device_cluster import DeviceCluster, request
from tests.unit.scheduler.test_group_queue import pod_group

NODES = 12
STEPS = 60
KINDS: tuple[tuple[int, int, str], ...] = ((1, 10, "1"), (2, 10, "1"), (1, 100, "1"), (1, 10, "4"), (0, 10, "4"))


class Twins:
    """A cluster at random, with a cycle that remembers and one that does not."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cluster = DeviceCluster()
        for number in range(NODES):
            self.cluster.add_node(f"n{number}", "d0", "d1")
        handle = self.cluster.handle
        self.kept = Cycle(handle.snapshot, handle.nominations)
        self.dry_runs = DryRunCache(handle.snapshot, handle.nominations)
        self.running: dict[str, tuple[str, str]] = {}
        # Pods without a node.
        self.waiting: dict[str, Any] = {}
        self.count = 0
        self.rejected = 0
        # Gangs of which several Pods got a place.
        self.placed_together = 0

    # --- Changes. ---

    def change(self) -> None:
        self.rng.choice((self.add, self.add, self.add, self.remove, self.nominate, self.nominate, self.touch))()

    def fill(self) -> None:
        for number in range(NODES):
            while len([at for at, device in self.running.values() if at == f"n{number}" and device]) < 2:
                self.add(f"n{number}")

    def add(self, node: str = "") -> None:
        node = node or f"n{self.rng.randrange(NODES)}"
        used = {device for at, device in self.running.values() if at == node}
        free = [device for device in ("d0", "d1") if device not in used]
        self.count += 1
        name, priority = f"p{self.count}", self.rng.choice((1, 10, 50))
        if free:
            device = self.rng.choice(free)
            self.cluster.run(name, node, device, priority=priority, requests={"cpu": "1"})
            self.running[name] = node, device
        else:
            self.cluster.run(name, node, priority=priority, requests={"cpu": "1"})
            self.running[name] = node, ""

    def remove(self) -> None:
        if self.running:
            name = self.rng.choice(list(self.running))
            _, device = self.running.pop(name)
            self.cluster.delete(name)
            if device:
                self.cluster.free(name)

    def nominate(self) -> None:
        """Nominate a Pod, or withdraw a nomination."""
        if self.waiting:
            pod = self.waiting[self.rng.choice(list(self.waiting))]
            node = self.rng.choice(("", f"n{self.rng.randrange(NODES)}"))
            self.cluster.handle.nominations.set(PodInfo(pod), node)

    def touch(self) -> None:
        """Change something of a node that no Pod is concerned by."""
        self.cluster.replace_node(f"n{self.rng.randrange(NODES)}", cpu=self.rng.choice(("8", "9")))

    # --- Comparing. ---

    def pod(self) -> Any:
        devices, priority, cpu = self.rng.choice(KINDS)
        self.count += 1
        requests = (request(devices),) if devices else ()
        return self.cluster.pending(f"w{self.count}", *requests, priority=priority, requests={"cpu": cpu})

    def attempt(self) -> None:
        again = self.waiting and self.rng.random() < 0.3
        pod = self.waiting[self.rng.choice(list(self.waiting))] if again else self.pod()
        state, found = self._compare_places(pod)
        if isinstance(found, Placement):
            return
        self.waiting[pod.metadata.name] = pod
        self.rejected += 1
        self.kept.rejected(self.cluster.profile, state, found.statuses)
        self._compare_dry_runs(state)

    def attempt_gang(self) -> None:
        """Place Pods one after the other, each with the earlier ones reserved; they may share a claim. Undo it all."""
        group, devices = GroupState(pod_group()), self.cluster.devices
        self.count += 1
        claims = (f"shared{self.count}",) if self.rng.random() < 0.4 else ()
        for name in claims:
            self.cluster.add_claim(name, request())
        requests, priority, cpu = self.rng.choice(KINDS)
        placed: list[tuple[CycleState, PodInfo]] = []
        for _ in range(self.rng.randrange(1, 6)):
            self.count += 1
            own = (request(requests),) if requests else ()
            words: Any = {"priority": priority, "requests": {"cpu": cpu}, "schedulingGroup": {"podGroupName": "team"}}
            pod = self.cluster.pending(f"g{self.count}", *own, claims=claims, **words)
            state, found = self._compare_places(pod, group)
            if isinstance(found, Placement):
                assumed = state.pod_on(found.node_name)
                self.cluster.assume(assumed, found.node_name)
                assert devices.reserve(state, assumed.pod, found.node_name) is SUCCESS
                group.reserved.add(assumed.uid)
                placed.append((state, assumed))
        self.placed_together += len(placed) > 1
        for state, assumed in reversed(placed):
            node_name = assumed.pod.spec.node_name or ""
            devices.unreserve(state, assumed.pod, node_name)
            self.cluster.forget(assumed, node_name)

    def _compare_places(self, pod: Any, group: GroupState | None = None) -> tuple[CycleState, Any]:
        handle = self.cluster.handle
        fresh = Cycle(handle.snapshot, handle.nominations)
        fresh._start = self.kept._start
        state, found = self._place(self.kept, pod, group)
        _, expected = self._place(fresh, pod, group)
        assert _answer(found) == _answer(expected), pod.metadata.name
        assert fresh._start == self.kept._start
        if isinstance(found, Placement):
            assert found.feasible == self._accepted(pod, group), pod.metadata.name
        return state, found

    def _place(self, cycle: Cycle, pod: Any, group: GroupState | None = None) -> tuple[CycleState, Any]:
        state = CycleState(PodInfo(pod))
        state.group = group
        found = cycle.place(self.cluster.profile, state)
        if not isinstance(found, Placement):
            statuses = dict(found.statuses)
            self.cluster.devices.explain_rejections(state, pod, statuses)
            found = replace(found, statuses=statuses)
        return state, found

    def _accepted(self, pod: Any, group: GroupState | None) -> int:
        """How many nodes the filters accept, one by one; one if the Pod gets the node that is kept for it."""
        profile, nominations = self.cluster.profile, self.cluster.handle.nominations
        state = CycleState(PodInfo(pod))
        state.group = group
        run_pre_filter(profile, state, NODES)
        runner = runner_of(profile, state, nominations)
        accepted = [node.name for node in self.cluster.handle.snapshot if runner.run(state, node) is SUCCESS]
        return 1 if nominations.node_of(pod.metadata.uid) in accepted else len(accepted)

    def _compare_dry_runs(self, state: CycleState) -> None:
        profile, nominations = self.cluster.profile, self.cluster.handle.nominations
        dry_run = DryRun(runner_of(profile, state, nominations), state, (), monotonic=True)
        cached = self.dry_runs.cached(profile, state, 0, dry_run.on)
        assert cached is not None
        for node in self.cluster.handle.snapshot:
            found = cached.known.get(node.name) or cached.on(node)
            assert _victims(found) == _victims(dry_run.on(node)), node.name


def _answer(found: Any) -> Any:
    """The place and the number of feasible nodes; or the rejections, without their explanations, which are bounded."""
    if isinstance(found, Placement):
        return found
    return {
        name: (status.code, status.plugin, [reason.partition(" (")[0] for reason in status.reasons])
        for name, status in found.statuses.items()
    }


def _victims(found: Candidate | Status) -> Any:
    return [pod.uid for pod in found.victims] if isinstance(found, Candidate) else found


@pytest.mark.behaviour("PE-84")
@pytest.mark.parametrize("seed", range(25))
def test_searches_and_dry_runs_are_the_same_with_and_without_memory(seed: int) -> None:
    twins = Twins(seed)
    twins.fill()
    for _ in range(STEPS):
        for _ in range(twins.rng.randrange(3)):
            twins.change()
        twins.attempt()
    assert twins.rejected >= STEPS // 12


@pytest.mark.behaviour("GW-28")
@pytest.mark.parametrize("seed", range(25))
def test_pods_of_gangs_are_placed_the_same_with_and_without_memory(seed: int) -> None:
    twins = Twins(seed)
    for _ in range(STEPS):
        for _ in range(twins.rng.randrange(3)):
            twins.change()
        twins.rng.choice((twins.attempt, twins.attempt_gang))()
    assert twins.placed_together >= STEPS // 12


def test_only_changed_nodes_are_filtered_for_the_next_pod_of_a_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    twins = Twins(0)
    cluster, devices = twins.cluster, twins.cluster.devices
    filtered: list[str] = []
    plain = devices.filter_all

    def counted(state: CycleState, pod: Any, nodes: Sequence[NodeInfo]) -> Sequence[Status]:
        filtered.extend(node.name for node in nodes)
        return plain(state, pod, nodes)

    monkeypatch.setattr(devices, "filter_all", counted)
    group, last = GroupState(pod_group()), ""
    for number in range(4):
        pod = cluster.pending(f"g{number}", request(), schedulingGroup={"podGroupName": "team"})
        filtered.clear()
        state, found = twins._place(twins.kept, pod, group)
        assert filtered == ([last] if number else [f"n{index}" for index in range(NODES)])
        last = found.node_name
        assumed = state.pod_on(last)
        cluster.assume(assumed, last)
        devices.reserve(state, assumed.pod, last)
        group.reserved.add(assumed.uid)


def test_only_what_has_changed_is_filtered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the other test shows nothing."""
    twins = Twins(0)
    for number in range(NODES):
        twins.cluster.run(f"a{number}", f"n{number}", "d0", "d1", priority=1)
    twins.rng = random.Random(1)
    devices = twins.cluster.devices
    filtered: list[str] = []
    plain, plain_all = devices.filter, devices.filter_all

    def counted(state: CycleState, pod: Any, node: NodeInfo) -> Status:
        filtered.append(node.name)
        return plain(state, pod, node)

    def counted_all(state: CycleState, pod: Any, nodes: Sequence[NodeInfo]) -> Sequence[Status]:
        filtered.extend(node.name for node in nodes)
        return plain_all(state, pod, nodes)

    # A node with nominated Pods is filtered alone.
    monkeypatch.setattr(devices, "filter", counted)
    monkeypatch.setattr(devices, "filter_all", counted_all)

    def rejected() -> list[str]:
        filtered.clear()
        pod = twins.cluster.pending(f"q{twins.count}", request(), priority=100)
        twins.count += 1
        state, found = twins._place(twins.kept, pod)
        twins.kept.rejected(twins.cluster.profile, state, found.statuses)
        assert len(found.statuses) == NODES
        return list(filtered)

    assert len(rejected()) == NODES
    assert rejected() == []
    twins.cluster.run("more", "n3", priority=1)
    assert rejected() == ["n3"]
    twins.cluster.allocate("a5", "n5", "d0", users=["a5"])
    twins.cluster.allocate("a5", "n5", "d0", "d1", users=["a5"])
    assert rejected() == ["n5"]
    twins.cluster.handle.nominations.set(PodInfo(twins.cluster.pending("nominee", request(), priority=200)), "n7")
    assert rejected() == ["n7"]
    twins.cluster.add_class("other")
    assert len(rejected()) == NODES
