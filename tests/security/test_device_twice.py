"""Attacks on the rule that a device is in one allocation at most: writers of claims that do not know each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import ConflictError, DeviceInUseError
from dray.api.pod_claims import EXTENDED_RESOURCE_ANNOTATION
from dray.apiserver.device_ledger import IN_DOUBT_SECONDS
from dray.cmd import apiserver
from dray.store.interface import Entry, StoreUnavailableError
from tests.local_server import Local, until
from tests.security.claims import CLAIMS, DRIVER, give, new_claim, result, settings

SLICES = "resource.k8s.io/v1/resourceslices"


@pytest.fixture(params=["memory", "sqlite"])
async def api(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Local]:
    async with apiserver.running(settings(tmp_path, request.param)) as running:
        yield Local(running)


async def publish(api: Local, *devices: Document, counters: Sequence[Document] = ()) -> None:
    """Publish a pool; counters go into a slice of their own."""
    specs: list[Document] = [{"devices": list(devices)}]
    if counters:
        specs.append({"sharedCounters": list(counters)})
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": len(specs)}
    for number, spec in enumerate(specs):
        whole = {"driver": DRIVER, "nodeName": "node-1", "pool": pool, **spec}
        await api.request("create", SLICES, {"metadata": {"name": f"slice-{number}"}, "spec": whole})
    ledger = api.running.server.cache.devices
    await until(lambda: len(ledger._slices) == len(specs))


async def test_a_device_of_another_claim_is_refused_with_its_name_and_its_holder(api: Local) -> None:
    mine, theirs = await new_claim(api, "mine"), await new_claim(api, "theirs")
    await give(api, theirs, result("gpu-0"))
    with pytest.raises(DeviceInUseError) as refused:
        await give(api, mine, result("gpu-0"))
    status = refused.value.status()
    held = "device gpu.example.com/node-1/gpu-0 is allocated to claim default/theirs"
    assert (status["code"], status["reason"]) == (409, "Conflict")
    assert status["message"] == f'Operation cannot be fulfilled on resourceclaims.resource.k8s.io "mine": {held}'
    assert status["details"]["causes"] == [
        {"reason": "DeviceInUse", "message": held, "field": "status.allocation.devices.results"}
    ]
    assert not (await api.request("get", f"{CLAIMS}/mine@default")).get("status")
    await give(api, mine, result("gpu-1"))


@pytest.mark.parametrize(
    ("verb", "content_type", "query"),
    [
        pytest.param("update", "application/json", {}, id="put-without-a-version"),
        pytest.param("update", "application/json", {"dryRun": "All"}, id="dry-run"),
        pytest.param("patch", "application/json-patch+json", {}, id="json-patch"),
        pytest.param("patch", "application/merge-patch+json", {}, id="merge-patch"),
        pytest.param("patch", "application/strategic-merge-patch+json", {}, id="strategic-merge-patch"),
        pytest.param("patch", "application/apply-patch+yaml", {"fieldManager": "x", "force": "true"}, id="apply"),
    ],
)
async def test_no_verb_gets_around_the_check(api: Local, verb: str, content_type: str, query: dict[str, str]) -> None:
    mine = await new_claim(api, "mine")
    await give(api, await new_claim(api, "theirs"), result("gpu-0"))
    status = {"allocation": {"devices": {"results": [result("gpu-0")]}}}
    body: Any = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "mine"}}
    body |= {"status": status}
    if verb == "update":
        body["spec"] = mine["spec"]
    elif content_type.startswith("application/json-patch"):
        body = [{"op": "add", "path": "/status", "value": status}]
    with pytest.raises(DeviceInUseError):
        await api.request(verb, f"{CLAIMS}/mine/status@default", body, content_type=content_type, query=query)


async def test_of_a_hundred_claims_that_take_one_device_at_once_one_gets_it(api: Local) -> None:
    claims = [await new_claim(api, f"claim-{number}") for number in range(100)]
    outcomes = await asyncio.gather(*(give(api, claim, result("gpu-0")) for claim in claims), return_exceptions=True)
    assert len([item for item in outcomes if isinstance(item, dict)]) == 1
    assert len([item for item in outcomes if isinstance(item, DeviceInUseError)]) == len(claims) - 1


async def test_two_writes_of_one_claim_at_once_hold_what_the_winner_takes(api: Local) -> None:
    claim, other = await new_claim(api, "claim"), await new_claim(api, "other")
    outcomes = await asyncio.gather(
        give(api, claim, result("gpu-0")),
        give(api, claim, result("gpu-1")),
        return_exceptions=True,
    )
    won = [item for item in outcomes if isinstance(item, dict)]
    assert len(won) == 1
    taken = won[0]["status"]["allocation"]["devices"]["results"][0]["device"]
    with pytest.raises(DeviceInUseError):
        await give(api, other, result(taken))
    await give(api, other, result("gpu-1" if taken == "gpu-0" else "gpu-0"))


async def test_claims_for_extended_resources_hold_and_need_their_devices_too(api: Local) -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": True, "blockOwnerDeletion": True}
    metadata = {
        "name": "extended",
        "annotations": {EXTENDED_RESOURCE_ANNOTATION: "true"},
        "ownerReferences": [owner],
    }
    requests = [{"name": "container-0-request-0", "exactly": {"deviceClassName": "gpu"}}]
    body = {"metadata": metadata, "spec": {"devices": {"requests": requests}}}
    extended = await api.request("create", f"{CLAIMS}@default", body)
    mine, theirs = await new_claim(api, "mine"), await new_claim(api, "theirs")
    taken = {**result("gpu-0"), "request": "container-0-request-0"}
    await give(api, theirs, result("gpu-0"))
    with pytest.raises(DeviceInUseError, match="default/theirs"):
        await give(api, extended, taken)
    await give(api, extended, {**taken, "device": "gpu-1"})
    with pytest.raises(DeviceInUseError, match="default/extended"):
        await give(api, mine, result("gpu-1"))


async def test_deallocation_and_deletion_free_the_device_at_once(api: Local) -> None:
    first, second, third = [await new_claim(api, name) for name in ("first", "second", "third")]
    freed = await give(api, await give(api, first, result("gpu-0")))
    assert "allocation" not in (freed.get("status") or {})
    await give(api, second, result("gpu-0"))
    await api.request("delete", f"{CLAIMS}/second@default")
    await give(api, third, result("gpu-0"))


async def test_the_holder_may_write_its_claim_again(api: Local) -> None:
    claim = await give(api, await new_claim(api, "claim"), result("gpu-0"))
    claim["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "u"}]
    claim = await api.request("update", f"{CLAIMS}/claim/status@default", claim)
    claim["metadata"]["labels"] = {"a": "b"}
    await api.request("update", f"{CLAIMS}/claim@default", claim)


async def test_admin_access_neither_takes_a_device_nor_needs_it_free(api: Local) -> None:
    label = {"resource.kubernetes.io/admin-access": "true"}
    await api.request("create", "core/v1/namespaces", {"metadata": {"name": "admins", "labels": label}})
    await until(lambda: "admins" in api.running.server.cache.namespaces)
    watcher = await new_claim(api, "watcher", "admins", adminAccess=True)
    second = await new_claim(api, "second", "admins", adminAccess=True)
    await give(api, watcher, result("gpu-0", adminAccess=True))
    await give(api, await new_claim(api, "user"), result("gpu-0"))
    await give(api, second, result("gpu-0", adminAccess=True))


def share(number: int, memory: str) -> Document:
    return result("gpu-0", shareID=f"00000000-0000-4000-8000-{number:012}", consumedCapacity={"memory": memory})


async def test_shares_beyond_the_capacity_of_a_device_are_refused(api: Local) -> None:
    await publish(api, {"name": "gpu-0", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}})
    claims = [await new_claim(api, f"claim-{number}") for number in range(4)]
    await give(api, claims[0], share(0, "40Gi"))
    await give(api, claims[1], share(1, "30Gi"))
    with pytest.raises(DeviceInUseError, match="has not enough capacity memory, of which claim default/claim-0, def"):
        await give(api, claims[2], share(2, "20Gi"))
    with pytest.raises(DeviceInUseError, match="is allocated to claim default/claim-0, default/claim-1"):
        # Without a share: the whole device.
        await give(api, claims[2], result("gpu-0"))
    await give(api, claims[2], share(2, "10Gi"))
    with pytest.raises(DeviceInUseError, match="has not enough capacity memory"):
        await give(api, claims[3], share(3, "1Mi"))


async def test_a_share_of_a_device_that_is_not_shareable_is_the_whole_device(api: Local) -> None:
    await publish(api, {"name": "gpu-0", "capacity": {"memory": {"value": "80Gi"}}})
    first, second = await new_claim(api, "first"), await new_claim(api, "second")
    await give(api, first, share(0, "1Gi"))
    with pytest.raises(DeviceInUseError, match="is allocated to claim default/first"):
        await give(api, second, share(1, "1Gi"))


async def test_partitions_beyond_the_counters_of_a_device_are_refused(api: Local) -> None:
    def partition(name: str, memory: str) -> Document:
        consumed = {"counterSet": "gpu", "counters": {"memory": {"value": memory}}}
        return {"name": name, "consumesCounters": [consumed]}

    counters = [{"name": "gpu", "counters": {"memory": {"value": "80Gi"}}}]
    await publish(
        api, partition("half-0", "40Gi"), partition("half-1", "40Gi"), partition("whole", "80Gi"), counters=counters
    )
    first, second, third = [await new_claim(api, name) for name in ("first", "second", "third")]
    await give(api, first, result("half-0"))
    with pytest.raises(DeviceInUseError, match="whole has not enough counter memory of gpu, of which claim"):
        await give(api, third, result("whole"))
    second = await give(api, second, result("half-1"))
    await give(api, second)
    with pytest.raises(DeviceInUseError):
        await give(api, third, result("half-1"), result("whole"))
    await give(api, third, result("half-1"))


async def test_a_restart_of_the_server_forgets_no_holder(tmp_path: Path) -> None:
    async with apiserver.running(settings(tmp_path, "sqlite")) as running:
        api = Local(running)
        await give(api, await new_claim(api, "theirs"), result("gpu-0"))
        mine = await new_claim(api, "mine")
    async with apiserver.running(settings(tmp_path, "sqlite")) as running:
        with pytest.raises(DeviceInUseError, match="default/theirs"):
            await give(Local(running), mine, result("gpu-0"))


@pytest.mark.parametrize("committed", [True, False])
async def test_a_write_without_an_answer_keeps_its_device(
    api: Local, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    store: Any = api.running.store
    update = store.update

    async def lost_answer(key: str, value: bytes, *, expected_revision: int) -> Entry:
        if committed:
            await update(key, value, expected_revision=expected_revision)
        raise StoreUnavailableError("no answer")

    mine, theirs = await new_claim(api, "mine"), await new_claim(api, "theirs")
    monkeypatch.setattr(store, "update", lost_answer)
    with pytest.raises(Exception, match="no answer"):
        await give(api, theirs, result("gpu-0"))
    monkeypatch.setattr(store, "update", update)
    with pytest.raises(DeviceInUseError, match="default/theirs"):
        await give(api, mine, result("gpu-0"))
    ledger = api.running.server.cache.devices
    if committed:
        await until(lambda: not ledger._in_doubt)
        with pytest.raises(DeviceInUseError, match="default/theirs"):
            await give(api, mine, result("gpu-0"))
    else:
        # Late enough, it cannot be committed any more.
        for reservation in ledger._in_doubt:
            assert reservation.doubted_at is not None
            reservation.doubted_at -= IN_DOUBT_SECONDS
        await give(api, mine, result("gpu-0"))


async def test_a_stale_version_is_a_conflict_of_the_claim_not_of_its_device(api: Local) -> None:
    claim = await new_claim(api, "claim")
    await give(api, claim, result("gpu-0"))
    with pytest.raises(ConflictError) as refused:
        await give(api, claim, result("gpu-0"))
    assert not isinstance(refused.value, DeviceInUseError)
