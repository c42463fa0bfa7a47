"""What preemption does in fewer steps equals the plain computation.

A cached candidate that counts as current equals a new dry run, although its claims may have got users elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.api.selectors import LabelSelector
from dray.api.timestamps import format_time
from dray.client.resources import PODS
from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.status import SUCCESS, Status, unschedulable
from dray.scheduler.cycle import run_pre_filter
from dray.scheduler.filter_runner import runner_of
from dray.scheduler.nominations import Nominations
from dray.scheduler.plugins.node_resources_fit import NodeResourcesFit
from dray.scheduler.preemption.budgets import Budget
from dray.scheduler.preemption.candidates import choose, find_candidates
from dray.scheduler.preemption.dry_run import Candidate, DryRun
from dray.scheduler.preemption.dry_run_cache import DryRunCache
from tests.unit.scheduler.builders import handle, node_info, pod_info
from tests.unit.scheduler.builders import pod as pod_object
from tests.unit.scheduler.builders import state as state_of
from tests.unit.scheduler.preemption.device_cluster import DRIVER, DeviceCluster, request
from tests.unit.scheduler.test_cycle import profile as make_profile

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
NODES = 4
DEVICES = 3
STEPS = 40

# --- Cached candidates. ---


class SharedClaims:
    """Nodes whose devices are all in use; at random, the users of claims change, and Pods elsewhere go."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cluster = DeviceCluster()
        self.cache = DryRunCache(self.cluster.handle.snapshot, self.cluster.handle.nominations)
        self.count = 0
        # Claim -> its node, its device, and its users; Pod -> its node and its claims.
        self.claims: dict[str, tuple[str, str, list[str]]] = {}
        self.pods: dict[str, tuple[str, tuple[str, ...]]] = {}
        self.compared = 0
        self.outdated = 0
        for number in range(NODES):
            node = f"n{number}"
            self.cluster.add_node(node, *(f"d{device}" for device in range(DEVICES)))
            for device in range(DEVICES):
                claim = f"{node}-{device}"
                self.cluster.add_claim(claim)
                self.claims[claim] = node, f"d{device}", []
                self.add_user(claim, node)

    def add_user(self, claim: str, node: str, priority: int = 1) -> None:
        self.count += 1
        name = f"p{self.count}"
        others = [other for other, (at, _, _) in self.claims.items() if at == node and other != claim]
        claims = (claim, *self.rng.sample(others, self.rng.randrange(2) if others else 0))
        self.pods[name] = node, claims
        self.cluster.run(name, node, claims=claims, priority=priority)
        for item in claims:
            self.claims[item][2].append(name)
            self.write(item)

    def write(self, claim: str) -> None:
        node, device, users = self.claims[claim]
        self.cluster.allocate(claim, node, device, users=users)

    def change(self) -> None:
        claim = self.rng.choice(list(self.claims))
        users = self.claims[claim][2]
        kind = self.rng.randrange(5)
        if kind == 0:
            # Somewhere else, perhaps with a priority that is too high.
            self.add_user(claim, f"n{self.rng.randrange(NODES)}", self.rng.choice((1, 1, 1000)))
        elif kind == 1 and len(users) > 1:
            users.remove(self.rng.choice(users))
            self.write(claim)
        elif kind == 2:
            users.append(f"unknown{self.rng.randrange(3)}")
            self.write(claim)
        elif kind == 3:
            self.terminate(self.rng.choice(list(self.pods)))
        else:
            self.write(claim)

    def terminate(self, name: str) -> None:
        node, claims = self.pods[name]
        entries = [{"name": f"e{number}", "resourceClaimName": item} for number, item in enumerate(claims)]
        deleted = PodInfo(pod_object(name, node=node, resourceClaims=entries, priority=1, deleted=True))
        self.cluster.informers.informer(PODS).apply(deleted.pod)
        self.cluster.assume(deleted, node)

    def compare(self) -> None:
        self.count += 1
        pod = self.cluster.pending(f"w{self.count}", request(self.rng.choice((1, 2))), priority=100)
        state, _ = self.cluster.place(pod)
        profile, nominations = self.cluster.profile, self.cluster.handle.nominations
        runner = runner_of(profile, state, nominations)
        dry_run, plain = (DryRun(runner, state, (), monotonic=monotonic) for monotonic in (True, False))
        cached = self.cache.cached(profile, state, 0, dry_run.on)
        assert cached is not None
        for node in self.cluster.handle.snapshot:
            known = cached.known.get(node.name)
            found = cached.on(node) if known is None else known
            assert _victims(dry_run.on(node)) == _victims(plain.on(node)), node.name
            if isinstance(found, Candidate):
                is_same = _victims(found) == _victims(dry_run.on(node))
                assert is_same or not cached.is_current(found), node.name
                self.compared += known is not None and cached.is_current(found)
                self.outdated += not is_same


def _victims(found: Candidate | Status) -> Any:
    return [pod.uid for pod in found.victims] if isinstance(found, Candidate) else found


@pytest.mark.behaviour("PE-75", "PE-84")
def test_a_cached_candidate_that_is_current_is_what_a_dry_run_finds() -> None:
    """What a dry run finds in few steps is also what it finds if Pods are put back one by one."""
    compared = outdated = 0
    for seed in range(20):
        world = SharedClaims(seed)
        for _ in range(STEPS):
            for _ in range(world.rng.randrange(2)):
                world.change()
            world.compare()
        compared += world.compared
        outdated += world.outdated
    # Otherwise this shows nothing.
    assert compared > 100
    assert outdated > 10


# --- Several Pods at once. ---


def device_state(state: CycleState) -> Any:
    own = state["DynamicResources"]
    if own.dry_run.overlay is None:
        return own.dry_run.removed, own.dry_run.released, None
    keys = [f"{DRIVER}/n{number}/d{device}" for number in range(NODES) for device in range(DEVICES)]
    in_use = [own.dry_run.overlay.in_use(key, shareable=False) for key in keys]
    return own.dry_run.removed, own.dry_run.released, (own.dry_run.overlay.out, in_use)


@pytest.mark.behaviour("PE-56")
@pytest.mark.parametrize("seed", range(20))
def test_removing_and_adding_several_pods_is_the_same_as_one_by_one(seed: int) -> None:
    world = SharedClaims(seed)
    for _ in range(10):
        world.change()
    devices, rng = world.cluster.devices, world.rng
    pod = world.cluster.pending("urgent", request(), priority=100)
    state, _ = world.cluster.place(pod)
    released = 0
    for node in world.cluster.handle.snapshot:
        single, several = state.clone(), state.clone()
        present, removed = list(node.pods.values()), list[PodInfo]()
        for _ in range(6):
            source, target = (present, removed) if rng.random() < 0.6 else (removed, present)
            chosen = rng.sample(source, rng.randint(0, len(source)))
            for other in chosen:
                source.remove(other)
                change = devices.remove_pod if target is removed else devices.add_pod
                assert change(single, pod, other, node) is SUCCESS
            target += chosen
            change_all = devices.remove_pods if target is removed else devices.add_pods
            assert change_all(several, pod, chosen, node) is SUCCESS
            assert device_state(several) == device_state(single)
            released += len(several["DynamicResources"].dry_run.released)
    assert released


# --- The least important Pod first. ---

# Of each Pod: processors, priority, minutes since its start, and whether a budget covers it.
POD = st.tuples(st.integers(1, 3), st.integers(0, 3), st.none() | st.integers(-1, 3), st.booleans())


@pytest.mark.behaviour("PE-19", "PE-21", "PE-23")
@given(
    st.lists(st.lists(POD, max_size=5), min_size=1, max_size=4),
    st.integers(1, 6),
    st.integers(0, 2),
    st.none() | st.integers(0, 3),
)
def test_a_dry_run_in_fewer_steps_is_one_that_puts_back_one_pod_after_the_other(
    nodes: list[list[tuple[int, int, int | None, bool]]], cpu: int, allowed: int, nominated: int | None
) -> None:
    infos = [
        node_info(
            f"n{number}",
            allocatable={"cpu": "6", "memory": "8Gi", "pods": "9"},
            pods=[
                pod_info(
                    f"p{number}-{index}",
                    requests={"cpu": str(amount)},
                    priority=priority,
                    status=started(minutes),
                    labels={"app": "web"} if is_covered else {},
                )
                for index, (amount, priority, minutes, is_covered) in enumerate(pods)
            ],
        )
        for number, pods in enumerate(nodes)
    ]
    framework = handle(*infos)
    used = make_profile(NodeResourcesFit({}, framework))
    nominations = Nominations()
    if nominated is not None:
        nominations.set(pod_info("nominated", requests={"cpu": "2"}, priority=nominated), "n0")
    attempt = state_of(pod_info("urgent", requests={"cpu": str(cpu)}, priority=2))
    run_pre_filter(used, attempt, len(infos))
    budgets = [Budget("default", LabelSelector.from_labels({"app": "web"}), allowed)]
    plain, fewer = (
        DryRun(runner_of(used, attempt, nominations), attempt, budgets, monotonic=monotonic)
        for monotonic in (False, True)
    )
    # The same dry run for all nodes: what was enough on one is tried first on the next.
    for node in infos:
        expected, found = plain.on(node), fewer.on(node)
        assert found == expected
        if isinstance(found, Candidate):
            assert set(found.victims) <= set(found.decisive)


# --- The search and the choice. ---

WANTED_MAX = 6
RESULT = st.sampled_from(("candidate", "violating", "rejected"))


def plain_search(
    nodes: Sequence[NodeInfo], start: int, wanted: int, results: dict[str, Any], priority: int
) -> tuple[list[Candidate], list[str]]:
    """The candidates, and the nodes that are rejected."""
    order = [node for node in (*nodes[start:], *nodes[:start]) if node.priority_floor < priority]
    respecting: list[Candidate] = []
    violating: list[Candidate] = []
    rejected: list[str] = []
    for node in order:
        if respecting and len(respecting) + len(violating) >= wanted:
            break
        found = results[node.name]
        if isinstance(found, Status):
            rejected.append(node.name)
        elif len(kept := violating if found.violations else respecting) < wanted:
            kept.append(found)
    return respecting + violating, rejected


@pytest.mark.behaviour("PE-17")
@given(
    st.lists(st.tuples(RESULT, st.integers(0, 3), st.booleans()), min_size=1, max_size=12),
    st.integers(0, 11),
    st.integers(1, WANTED_MAX),
    st.integers(0, 4),
)
def test_a_search_with_known_results_is_one_without(
    items: list[tuple[str, int, bool]], start: int, wanted: int, priority: int
) -> None:
    victim = pod_info("victim")
    nodes = [node_info(f"n{n}", pods=[pod_info(f"p{n}", priority=item[1])]) for n, item in enumerate(items)]
    results: dict[str, Candidate | Status] = {
        f"n{n}": unschedulable("no")
        if item[0] == "rejected"
        else Candidate(f"n{n}", (victim,), int(item[0] == "violating"))
        for n, item in enumerate(items)
    }
    known = {f"n{n}": results[f"n{n}"] for n, item in enumerate(items) if item[2]}
    tried: list[str] = []

    def dry_run(node: NodeInfo) -> Candidate | Status:
        tried.append(node.name)
        return results[node.name]

    start %= len(nodes)
    search = find_candidates(nodes, start, wanted, dry_run, known=known, priority=priority)
    candidates, rejected = plain_search(nodes, start, wanted, results, priority)
    assert (search.candidates, list(search.statuses)) == (candidates, rejected)
    assert known.keys().isdisjoint(tried)
    if not candidates:
        assert search.without_victims == sum(node.priority_floor >= priority for node in nodes)


def plain_choice(candidates: Sequence[Candidate]) -> Candidate:
    least = min(item.harm for item in candidates)
    equal = [item for item in candidates if item.harm == least]
    return max(equal, key=lambda item: item.earliest_start)


@pytest.mark.behaviour("PE-25")
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 2), st.none() | st.integers(-1, 3)), min_size=1, max_size=2),
            st.integers(0, 1),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_the_choice_is_that_by_one_criterion_after_the_other(
    items: list[tuple[list[tuple[int, int | None]], int]],
) -> None:
    candidates = []
    for number, (victims, violations) in enumerate(items):
        pods = [pod_info(priority=priority, status=started(minutes)) for priority, minutes in victims]
        pods.sort(key=lambda pod: -pod.priority)
        candidates.append(Candidate(f"n{number}", tuple(pods), violations))
    assert choose(candidates) is plain_choice(candidates)


def started(minutes: int | None) -> dict[str, Any]:
    return {} if minutes is None else {"startTime": format_time(NOW - timedelta(minutes=minutes))}
