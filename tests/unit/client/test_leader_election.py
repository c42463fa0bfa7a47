"""Leader election: the decision's rows, and that no two lead, whatever fails."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime

import pytest

from dray.api.document import GroupResource, NamespacedName
from dray.api.errors import ForbiddenError, ServiceUnavailableError
from dray.client.in_process import in_process_client
from dray.client.interface import LocalRequest
from dray.client.leader_election import (
    AcquireOrRenew,
    LeaderElector,
    LeadershipLostError,
    ObservedLease,
    Timing,
    Wait,
    observe,
    plan_election,
)
from dray.lib.clock import VirtualClock
from tests.fake_local_server import FakeLocalServer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TIMING = Timing()


def held(by: str, **more: object) -> dict[str, object]:
    return {"holderIdentity": by, "leaseDurationSeconds": 15, "leaseTransitions": 3, **more}


@pytest.mark.parametrize(
    ("spec", "age", "expected"),
    [
        pytest.param(held("other"), 0.0, Wait("other"), id="held"),
        pytest.param(held("other"), 14.9, Wait("other"), id="held, not renewed for almost its duration"),
        pytest.param(held("other"), 15.0, None, id="expired"),
        pytest.param(
            held("other", leaseDurationSeconds=60), 20.0, Wait("other"), id="the holder's longer lease counts"
        ),
        pytest.param(held("other", renewTime="2020-01-01T00:00:00Z"), 1.0, Wait("other"), id="clocks do not matter"),
        pytest.param(held(""), 0.0, None, id="released"),
        pytest.param({}, 0.0, None, id="never held"),
    ],
)
def test_taking(spec: dict[str, object], age: float, expected: Wait | None) -> None:
    decision = plan_election(ObservedLease(spec, 100.0), "me", NOW, 100.0 + age, TIMING)
    if expected is not None:
        assert decision == expected
        return
    assert isinstance(decision, AcquireOrRenew)
    assert decision.spec["holderIdentity"] == "me"
    assert decision.spec["leaseTransitions"] == int(spec.get("leaseTransitions") or 0) + 1  # type: ignore[call-overload]
    assert decision.spec["renewTime"] == decision.spec["acquireTime"] == "2026-01-01T00:00:00.000000Z"


def test_renewing_keeps_the_time_of_acquiring() -> None:
    decision = plan_election(ObservedLease(held("me", acquireTime="then"), 0.0), "me", NOW, 1.0, TIMING)
    assert isinstance(decision, AcquireOrRenew)
    assert (decision.spec["acquireTime"], decision.spec["leaseTransitions"]) == ("then", 3)


def test_a_sighting_is_as_old_as_its_content() -> None:
    first = observe(None, {"spec": held("x")}, 5.0)
    assert observe(first, {"spec": held("x")}, 9.0).since == 5.0
    assert observe(first, {"spec": held("x", renewTime="new")}, 9.0).since == 9.0


@pytest.mark.parametrize("timing", [Timing(10, 10, 2), Timing(15, 2, 2), Timing(15, 10, 0)])
def test_times_with_which_two_could_lead_are_refused(timing: Timing) -> None:
    with pytest.raises(ValueError, match="must be greater than"):
        timing.check()


class Candidates:
    """Candidates on one virtual clock, each able to lose its connection to the server."""

    def __init__(self) -> None:
        self.clock = VirtualClock(asyncio.get_running_loop().create_future)
        self.server = FakeLocalServer()
        self.cut: set[str] = set()
        self.server.before = self._before
        self.leading: set[str] = set()
        self.lost: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def _before(self, request: LocalRequest) -> None:
        if request.user in self.cut:
            raise ServiceUnavailableError("cut off")

    def start(self, name: str) -> LeaderElector:
        elector = LeaderElector(
            in_process_client(self.server, user=name), self.clock, random.Random(name),
            lease=NamespacedName("kube-system", "lock"), identity=name,
        )  # fmt: skip
        self.tasks[name] = asyncio.create_task(self._run(name, elector))
        return elector

    async def _run(self, name: str, elector: LeaderElector) -> None:
        async def lead() -> None:
            self.leading.add(name)
            assert len(self.leading) == 1, f"two leaders: {self.leading}"
            try:
                await asyncio.Event().wait()
            finally:
                self.leading.discard(name)

        try:
            await elector.run(lead)
        except LeadershipLostError:
            self.lost.append(name)

    async def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds * 10)):
            self.clock.advance(0.1)
            for _ in range(15):
                await asyncio.sleep(0)

    async def stop(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


async def test_a_leader_cut_off_stops_before_the_next_begins() -> None:
    candidates = Candidates()
    first = candidates.start("a")
    await candidates.pass_time(1)
    candidates.start("b")
    await candidates.pass_time(30)
    assert candidates.leading == {"a"}
    assert first.is_leader
    candidates.cut.add("a")
    await candidates.pass_time(12)
    assert (candidates.leading, candidates.lost) == (set(), ["a"])
    assert not first.is_leader
    await candidates.pass_time(8)
    assert candidates.leading == {"b"}
    await candidates.stop()


async def test_a_leader_that_stops_releases_the_lease_at_once() -> None:
    candidates = Candidates()
    candidates.start("a")
    await candidates.pass_time(1)
    candidates.start("b")
    await candidates.pass_time(1)
    candidates.tasks["a"].cancel()
    await candidates.pass_time(3)
    assert candidates.leading == {"b"}
    lease = candidates.server.find("leases", "lock", "kube-system", "coordination.k8s.io")
    assert lease is not None
    assert lease["spec"]["leaseTransitions"] == 1
    await candidates.stop()


@pytest.mark.parametrize("seed", range(5))
async def test_never_two_leaders_under_random_cuts(seed: int) -> None:
    candidates, rng = Candidates(), random.Random(seed)
    for _ in range(60):
        name = rng.choice("abc")
        if name not in candidates.tasks or candidates.tasks[name].done():
            candidates.start(name)
        if rng.random() < 0.3:
            candidates.cut ^= {rng.choice("abc")}
        await candidates.pass_time(rng.uniform(0.5, 6))
        assert len(candidates.leading) <= 1
    failed = [task.exception() for task in candidates.tasks.values() if task.done() and not task.cancelled()]
    assert not [error for error in failed if error is not None]
    await candidates.stop()


@pytest.mark.parametrize(("verb", "named"), [("get", "get"), ("create", "create"), ("update", "update")])
async def test_a_forbidden_lease_is_logged_once_and_unhealthy(
    verb: str, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    candidates = Candidates()
    if verb == "update":
        lease = {"metadata": {"name": "lock", "namespace": "kube-system"}, "spec": {}}
        candidates.server.put("coordination.k8s.io", "leases", lease)
    right = f'cannot {named} resource "leases" in API group "coordination.k8s.io" in the namespace "kube-system"'
    refused = ForbiddenError(GroupResource("coordination.k8s.io", "leases"), "lock", f'User "a" {right}')

    def refuse(request: LocalRequest) -> None:
        if request.verb == verb:
            raise refused

    candidates.server.before = refuse
    elector = candidates.start("a")
    assert elector.health() == "lease kube-system/lock has not been read"
    await candidates.pass_time(20)
    assert elector.health() == f'leases.coordination.k8s.io "lock" is forbidden: User "a" {right}'
    assert not candidates.leading
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [f"{verb} failed, will be retried"]
    candidates.server.before = lambda _: None
    await candidates.pass_time(5)
    assert elector.health() is None
    assert candidates.leading == {"a"}
    await candidates.stop()


async def test_a_candidate_that_waits_is_healthy() -> None:
    candidates = Candidates()
    candidates.start("a")
    await candidates.pass_time(1)
    second = candidates.start("b")
    await candidates.pass_time(5)
    assert (candidates.leading, second.health()) == ({"a"}, None)
    await candidates.stop()
