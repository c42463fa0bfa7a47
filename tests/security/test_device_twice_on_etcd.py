"""Attacks on the rule that a device is in one allocation at most, through several API servers on one etcd."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import DeviceInUseError
from dray.cmd import apiserver
from dray.store.interface import Entry, GuardConflictError
from tests.conformance.store.conftest import EtcdProcess
from tests.local_server import Local, until
from tests.security.claims import CLAIMS, DRIVER, give, new_claim, result, settings

_prefixes = itertools.count()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    process = EtcdProcess(tmp_path_factory.mktemp("etcd") / "data")
    process.start()
    yield process
    process.stop()


@pytest.fixture
async def servers(etcd: EtcdProcess, tmp_path: Path) -> AsyncIterator[tuple[Local, Local]]:
    prefix = f"/twice-{next(_prefixes)}"
    async with AsyncExitStack() as stack:
        started = []
        for name in ("one", "two"):
            chosen = settings(tmp_path / name, "etcd", etcd_servers=(f"http://{etcd.endpoint}",), etcd_prefix=prefix)
            started.append(Local(await stack.enter_async_context(apiserver.running(chosen))))
        yield started[0], started[1]


def won(outcomes: list[Document | BaseException]) -> list[Document]:
    """Return the writes that succeeded; all others must have been refused for their device."""
    assert all(isinstance(item, dict | DeviceInUseError) for item in outcomes), outcomes
    return [item for item in outcomes if isinstance(item, dict)]


async def test_of_two_servers_that_give_one_device_at_once_one_is_refused(servers: tuple[Local, Local]) -> None:
    for number in range(20):
        claims = [await new_claim(servers[0], f"claim-{number}-{index}") for index in range(6)]
        device = result(f"gpu-{number}")
        outcomes = await asyncio.gather(
            *(give(servers[index % 2], claim, device) for index, claim in enumerate(claims)), return_exceptions=True
        )
        assert len(won(outcomes)) == 1


async def test_a_server_that_has_not_observed_the_holder_yet_still_refuses(
    servers: tuple[Local, Local], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check before the write passes; the compare in the write's own transaction does not."""
    ahead, behind = servers
    theirs, mine = await new_claim(ahead, "theirs"), await new_claim(ahead, "mine")
    store: Any = behind.running.store
    update = store.update
    conflicts: list[GuardConflictError] = []

    async def late_update(key: str, value: bytes, **arguments: Any) -> Entry:
        if not conflicts:
            # Now the check has passed.
            await give(ahead, theirs, result("gpu-0"))
        try:
            written: Entry = await update(key, value, **arguments)
        except GuardConflictError as error:
            conflicts.append(error)
            raise
        return written

    monkeypatch.setattr(store, "update", late_update)
    with pytest.raises(DeviceInUseError, match="is allocated to claim default/theirs"):
        await give(behind, mine, result("gpu-0"))
    assert len(conflicts) == 1


async def test_partitions_given_by_two_servers_at_once_stay_within_their_counters(
    servers: tuple[Local, Local],
) -> None:
    consumed = [{"counterSet": "gpu", "counters": {"slots": {"value": "1"}}}]
    specs: list[Document] = [
        {"devices": [{"name": f"part-{index}", "consumesCounters": consumed} for index in range(12)]},
        {"sharedCounters": [{"name": "gpu", "counters": {"slots": {"value": "5"}}}]},
    ]
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 2}
    for number, spec in enumerate(specs):
        whole = {"driver": DRIVER, "nodeName": "node-1", "pool": pool, **spec}
        body = {"metadata": {"name": f"slice-{number}"}, "spec": whole}
        await servers[0].request("create", "resource.k8s.io/v1/resourceslices", body)
    ledgers = [server.running.server.cache.devices for server in servers]
    await until(lambda: all(len(ledger._slices) == len(specs) for ledger in ledgers))
    claims = [await new_claim(servers[0], f"claim-{index}") for index in range(12)]
    outcomes = await asyncio.gather(
        *(give(servers[index % 2], claim, result(f"part-{index}")) for index, claim in enumerate(claims)),
        return_exceptions=True,
    )
    assert len(won(outcomes)) == 5


async def test_a_device_freed_through_one_server_is_free_for_the_other_at_once(servers: tuple[Local, Local]) -> None:
    one, two = servers
    for number in range(5):
        first, second = await new_claim(one, f"first-{number}"), await new_claim(one, f"second-{number}")
        held = await give(one, first, result("gpu-0"))
        with pytest.raises(DeviceInUseError):
            await give(two, second, result("gpu-0"))
        await give(one, held)
        given = await give(two, second, result("gpu-0"))
        await give(two, given)


async def test_a_server_that_starts_later_knows_the_holders(
    servers: tuple[Local, Local], etcd: EtcdProcess, tmp_path: Path
) -> None:
    theirs, mine = await new_claim(servers[0], "theirs"), await new_claim(servers[0], "mine")
    await give(servers[0], theirs, result("gpu-0"))
    prefix = f"/twice-{next(_prefixes) - 1}"
    chosen = settings(tmp_path / "three", "etcd", etcd_servers=(f"http://{etcd.endpoint}",), etcd_prefix=prefix)
    async with apiserver.running(chosen) as running:
        with pytest.raises(DeviceInUseError, match="default/theirs"):
            await give(Local(running), mine, result("gpu-0"))
    assert not (await servers[0].request("get", f"{CLAIMS}/mine@default")).get("status")
