"""Allocations whose write had no response, and informers that have not observed them yet."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from dray.allocator import Allocations
from dray.api.errors import (
    ConflictError,
    ForbiddenError,
    InsufficientStorageError,
    NotFoundError,
    ServiceUnavailableError,
    TooManyRequestsError,
)
from dray.api.features import FeatureGates
from dray.api.pod_claims import FINALIZER, reservation_of
from dray.api.types.resource_v1 import ResourceClaim
from dray.client.informer import Informer, Selection
from dray.client.interface import ListPage
from dray.client.resources import RESOURCE_CLAIMS
from dray.framework.cycle_state import CycleState
from dray.framework.pod_info import PodInfo
from dray.framework.snapshot import Snapshot
from dray.framework.status import Code, Status
from dray.runtime.metrics import Metrics
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.dynamic_resources.claim_writer import RETRY_SECONDS, SETTLE_SECONDS, ClaimWriter
from dray.scheduler.plugins.dynamic_resources.pod_state import ClaimsOfPod, PodState
from dray.scheduler.plugins.dynamic_resources.pre_binder import PreBinder
from dray.scheduler.plugins.dynamic_resources.tracker import ClaimTracker
from dray.scheduler.plugins.dynamic_resources.writes import ClaimChangedError, InDoubtError
from dray.sim.replica.virtual_time import LoopClock, run_virtually
from tests.unit.scheduler.plugins.dynamic_resources.test_dynamic_resources_parts import claim, pod

CLAIMS = RESOURCE_CLAIMS.group_resource


class Server:
    """Answers each request for the claim with the next of the given answers; the last one for ever."""

    def __init__(self, *answers: ResourceClaim | Exception) -> None:
        self._answers = list(answers)
        self.calls: list[str] = []

    async def _answer(self, verb: str) -> ResourceClaim:
        self.calls.append(verb)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def get(self, *_: Any) -> ResourceClaim:
        return await self._answer("get")

    async def update(self, *_: Any) -> ResourceClaim:
        return await self._answer("update")

    async def update_status(self, *_: Any) -> ResourceClaim:
        return await self._answer("update_status")


class Scheduler:
    """The parts of the plugin that write claims, and the informer that they follow."""

    def __init__(self, *answers: ResourceClaim | Exception) -> None:
        self.server = Server(*answers)
        self.informer: Informer[ResourceClaim] = Informer(Selection(), random.Random(1))
        self.allocations = Allocations()
        self.tracker = ClaimTracker(self.allocations, self.informer.lister.get_key)
        self.informer.add_handler(self.tracker.changed)
        self.writer = ClaimWriter(cast(Any, self.server), LoopClock(), self.tracker)

    def observe(self, version: int, *claims: ResourceClaim) -> None:
        """Have the informer list these claims."""
        self.informer.start()
        self.informer.page_received(ListPage(items=list(claims), resource_version=str(version), continue_token=""))

    async def pre_bind(self, own: ResourceClaim) -> Status:
        nothing = cast(Any, None)
        handle = Handle(nothing, nothing, LoopClock(), Metrics(), FeatureGates(), Snapshot(()), nothing)
        extended = SimpleNamespace(needs_status=lambda *_: False)
        cluster = SimpleNamespace(tracker=self.tracker, writer=self.writer, extended_claims=extended)
        user = pod("mine")
        binder = PreBinder(handle, cast(Any, cluster), 600.0)
        return await binder.pre_bind(CycleState(PodInfo(user)), PodState(ClaimsOfPod.of(user, [own])), user, "worker")


def _with_metadata(claim: ResourceClaim, **fields: Any) -> ResourceClaim:
    return msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, **fields))


@pytest.mark.behaviour("SP-104")
@pytest.mark.parametrize("names", [("mine", "theirs"), ("theirs", "mine")], ids=["mine_first", "theirs_first"])
def test_an_earlier_allocation_is_found_wherever_it_stands_in_a_list(names: tuple[str, str]) -> None:
    """A list is handled object by object: the claim may be observed before the earlier allocation of its device."""

    async def scenario() -> tuple[str, ...]:
        scheduler = Scheduler()
        scheduler.observe(1, claim("mine", version=1))
        written = claim("mine", version=5, devices=("gpu-0",))
        scheduler.tracker.assume(written)
        searching = asyncio.ensure_future(scheduler.writer.conflicting_claims(written))
        await asyncio.sleep(0)
        listed = {"mine": written, "theirs": claim("theirs", version=4, devices=("gpu-0",))}
        scheduler.observe(6, *(listed[name] for name in names))
        return await searching

    assert run_virtually(scenario()) == ("team/theirs",)


@pytest.mark.behaviour("SP-104")
@pytest.mark.parametrize("users", [("pod",), ()], ids=["reserved", "not_reserved"])
@pytest.mark.parametrize("observed_before_prebind", [False, True])
def test_an_allocation_of_an_earlier_attempt_is_not_used_before_it_was_observed(
    users: tuple[str, ...], observed_before_prebind: bool
) -> None:
    """Its write was in doubt and came after another scheduler's: only the informer can tell."""

    async def scenario() -> Status:
        scheduler = Scheduler(ServiceUnavailableError("nothing is written"))
        scheduler.observe(1, claim("mine", version=1))
        settled = claim("mine", version=5, devices=("gpu-0",), users=users)
        scheduler.tracker.assume(settled)
        arrived = (settled, claim("theirs", version=4, devices=("gpu-0",)))
        if observed_before_prebind:
            # After PreFilter looked.
            scheduler.observe(6, *arrived)
        binding = asyncio.ensure_future(scheduler.pre_bind(settled))
        await asyncio.sleep(1)
        if not observed_before_prebind:
            assert not binding.done()
            scheduler.observe(6, *arrived)
        status = await binding
        assert scheduler.server.calls == []
        return status

    status = run_virtually(scenario())
    assert status.code is Code.ERROR
    assert status.message == "devices for claim team/mine were allocated to team/theirs at the same time"


def test_an_allocation_of_an_earlier_attempt_that_is_alone_is_used() -> None:
    async def scenario() -> Status:
        scheduler = Scheduler()
        mine = claim("mine", version=5, devices=("gpu-0",), users=("pod",))
        scheduler.observe(6, mine, claim("theirs", version=4, devices=("gpu-1",)))
        return await scheduler.pre_bind(mine)

    assert run_virtually(scenario()).is_success


@pytest.mark.behaviour("SP-100")
def test_a_write_that_arrived_is_assumed_although_the_claim_is_being_deleted() -> None:
    """The devices stay in use until the informer has observed what became of the claim."""

    async def scenario() -> None:
        arrived = _with_metadata(
            claim("mine", version=9, devices=("gpu-0",), users=("pod",)), deletion_timestamp=LoopClock().now()
        )
        base = _with_metadata(claim("mine", version=5), finalizers=(FINALIZER,))
        scheduler = Scheduler(ServiceUnavailableError("no response"), arrived)
        scheduler.observe(6, base)
        allocation = arrived.status.allocation
        with pytest.raises(ClaimChangedError):
            await scheduler.writer.take(base, allocation, reservation_of(pod("mine")))
        assert scheduler.server.calls == ["update_status", "get"]
        assert list(scheduler.allocations.keys_in_use("gpu.example.com/pool")) == ["gpu.example.com/pool/gpu-0"]

    run_virtually(scenario())


@pytest.mark.behaviour("SP-100")
@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        pytest.param(("full",), InsufficientStorageError, id="full"),
        pytest.param(("full", "base", "unavailable", "base", "full"), InDoubtError, id="unanswered_before"),
        pytest.param(("unavailable", "unavailable"), InDoubtError, id="unanswered"),
    ],
)
def test_a_write_that_a_full_store_refused_is_not_in_doubt(answers: tuple[str, ...], expected: type[Exception]) -> None:
    base = _with_metadata(claim("mine", version=5), finalizers=(FINALIZER,))
    meaning: dict[str, ResourceClaim | Exception] = {
        "full": InsufficientStorageError("full"),
        "unavailable": ServiceUnavailableError("?"),
        "base": base,
    }

    async def scenario() -> None:
        scheduler = Scheduler(*(meaning[answer] for answer in answers))
        scheduler.observe(6, base)
        with pytest.raises(expected):
            await scheduler.writer.take(
                base, claim("mine", devices=("gpu-0",)).status.allocation, reservation_of(pod("mine"))
            )

    run_virtually(scenario())


def test_a_deallocation_that_a_full_store_refused_is_not_settled() -> None:
    async def scenario() -> list[str]:
        scheduler = Scheduler(InsufficientStorageError("full"))
        with pytest.raises(InsufficientStorageError):
            await scheduler.writer.free(claim("mine", version=5, devices=("gpu-0",)))
        return scheduler.server.calls

    assert run_virtually(scenario()) == ["update_status"]


@pytest.mark.behaviour("SP-102")
@pytest.mark.parametrize(
    ("answers", "calls"),
    [
        pytest.param((NotFoundError(CLAIMS, "mine"),), ["get"], id="deleted"),
        pytest.param(
            (claim("mine", version=5), NotFoundError(CLAIMS, "mine")),
            ["get", "update"],
            id="deleted_in_the_meantime",
        ),
        pytest.param(
            (claim("mine", version=5), ConflictError(CLAIMS, "mine", "changed"), claim("mine", version=6)),
            ["get", "update", "get"],
            id="arrived_in_the_meantime",
        ),
        pytest.param((TooManyRequestsError("later"), claim("mine", version=6)), ["get", "get"], id="too_many_requests"),
        pytest.param(
            (claim("mine", version=5), ForbiddenError(CLAIMS, "mine", "no"), claim("mine", version=6)),
            ["get", "update", "get"],
            id="forbidden",
        ),
    ],
)
def test_a_write_in_doubt_is_settled_whatever_the_server_answers(answers: tuple[Any, ...], calls: list[str]) -> None:
    async def scenario() -> list[str]:
        scheduler = Scheduler(*answers)
        scheduler.observe(5, claim("mine", version=5))
        await scheduler.writer.settle(claim("mine", version=5))
        return scheduler.server.calls

    assert run_virtually(scenario()) == calls


@pytest.mark.behaviour("SP-104")
def test_a_server_without_a_response_is_not_asked_again_at_once() -> None:
    async def scenario() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        down = ServiceUnavailableError("down")
        scheduler = Scheduler(down, down, claim("mine", version=2))
        start = loop.time()
        await scheduler.writer.until_answered(claim("mine"), lambda _: scheduler.server.update_status())
        settled = loop.time() - start
        mine = claim("mine", version=1, devices=("gpu-0",))
        retrying = Scheduler(down, mine, claim("mine", version=2, devices=("gpu-0",), users=("pod",)))
        retrying.observe(1, mine)
        start = loop.time()
        await retrying.writer.take(mine, None, reservation_of(pod("mine")))
        assert retrying.server.calls == ["update_status", "get", "update_status"]
        return settled, loop.time() - start

    assert run_virtually(scenario()) == pytest.approx((2 * SETTLE_SECONDS, RETRY_SECONDS))
