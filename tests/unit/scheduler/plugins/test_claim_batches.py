"""Changes of one claim are written together, and each gets its own result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from dray.api.errors import APIError, BadRequestError, ServiceUnavailableError
from dray.api.types.cdi_v1alpha1 import ResourceClaim, ResourceClaimStatus
from dray.api.types.meta_v1 import ObjectMeta, OwnerReference
from dray.scheduler.plugins.claim_batches import BATCH_MAX, Change, ClaimBatches

CLAIM = ResourceClaim(metadata=ObjectMeta(name="c", uid="1"), status=ResourceClaimStatus())


class ImpossibleError(Exception):
    """One change cannot be made."""


def users(claim: ResourceClaim) -> list[str]:
    assert claim.status is not None
    return [user.uid for user in claim.status.reserved_for]


def adding(uid: str, limit: int = 1000) -> Change[ResourceClaim]:
    def change(claim: ResourceClaim) -> ResourceClaim | None:
        assert claim.status is not None
        if uid in users(claim):
            return None
        if len(users(claim)) >= limit:
            raise ImpossibleError(uid)
        user = OwnerReference(api_version="v1", kind="Pod", name=uid, uid=uid)
        status = msgspec.structs.replace(claim.status, reserved_for=(*claim.status.reserved_for, user))
        return msgspec.structs.replace(claim, status=status)

    return change


class Server:
    """Keeps one claim; a write takes two turns of the event loop."""

    def __init__(self) -> None:
        self.claim = CLAIM
        self.writes: list[list[str]] = []
        self.fail: Callable[[ResourceClaim], APIError | None] = lambda _: None
        self.batches = ClaimBatches(self.write, ImpossibleError)

    async def write(self, _claim: ResourceClaim, change: Change[ResourceClaim]) -> ResourceClaim:
        wanted = change(self.claim)
        await asyncio.sleep(0)
        if wanted is None:
            return self.claim
        failure = self.fail(wanted)
        if failure is not None:
            raise failure
        await asyncio.sleep(0)
        before, self.claim = users(self.claim), wanted
        self.writes.append([uid for uid in users(wanted) if uid not in before])
        return wanted


async def _all(server: Server, changes: list[Change[ResourceClaim]]) -> list[ResourceClaim | BaseException]:
    return await asyncio.gather(*(server.batches.submit(CLAIM, item) for item in changes), return_exceptions=True)


@pytest.mark.behaviour("CL-55")
def test_what_arrives_during_a_write_is_one_write() -> None:
    server = Server()
    results = asyncio.run(_all(server, [adding(f"p{number}") for number in range(100)]))
    assert server.writes[0] == ["p0"]
    assert server.writes[1] == [f"p{number}" for number in range(1, 100)]
    assert len(server.writes) == 2
    assert all(isinstance(item, ResourceClaim) and f"p{index}" in users(item) for index, item in enumerate(results))
    assert not server.batches._queues


@pytest.mark.behaviour("CL-55")
def test_a_change_that_is_impossible_fails_alone() -> None:
    server = Server()
    results = asyncio.run(_all(server, [adding(f"p{number}", limit=3) for number in range(5)]))
    assert users(server.claim) == ["p0", "p1", "p2"]
    assert [type(item) for item in results] == [*[ResourceClaim] * 3, *[ImpossibleError] * 2]
    assert [str(item) for item in results[3:]] == ["p3", "p4"]


@pytest.mark.behaviour("CL-55")
def test_a_rejected_write_is_repeated_change_by_change() -> None:
    server = Server()
    server.fail = lambda wanted: BadRequestError("p2 is bad") if "p2" in users(wanted) else None
    results = asyncio.run(_all(server, [adding(f"p{number}") for number in range(5)]))
    assert users(server.claim) == ["p0", "p1", "p3", "p4"]
    assert isinstance(results[2], BadRequestError)
    assert sum(isinstance(item, ResourceClaim) for item in results) == 4


@pytest.mark.behaviour("CL-55")
def test_a_failure_of_the_server_is_everybodys() -> None:
    server = Server()
    server.fail = lambda wanted: ServiceUnavailableError("down") if len(users(wanted)) > 1 else None
    results = asyncio.run(_all(server, [adding(f"p{number}") for number in range(5)]))
    assert isinstance(results[0], ResourceClaim)
    assert all(isinstance(item, ServiceUnavailableError) for item in results[1:])


@pytest.mark.behaviour("CL-55")
def test_the_others_are_written_when_the_writer_is_cancelled() -> None:
    async def run() -> None:
        server = Server()
        tasks = [asyncio.ensure_future(server.batches.submit(CLAIM, adding(f"p{number}"))) for number in range(4)]
        # The first has written itself; the second is about to write for the rest.
        await tasks[0]
        await asyncio.sleep(0)
        tasks[1].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[1], asyncio.CancelledError)
        assert {"p0", "p2", "p3"} <= set(users(server.claim))
        assert not server.batches._queues

    asyncio.run(run())


@pytest.mark.behaviour("CL-55")
def test_one_write_has_a_bounded_number_of_changes() -> None:
    server = Server()
    asyncio.run(_all(server, [adding(f"p{number}") for number in range(2 * BATCH_MAX)]))
    assert max(map(len, server.writes)) == BATCH_MAX
    assert len(users(server.claim)) == 2 * BATCH_MAX


@pytest.mark.behaviour("CL-55")
def test_nothing_is_written_for_a_change_that_was_made() -> None:
    server = Server()
    asyncio.run(_all(server, [adding("p"), adding("p")]))
    assert server.writes == [["p"]]
