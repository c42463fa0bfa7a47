"""The eviction subresource and disruption budgets, on a whole server."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import (
    AlreadyExistsError,
    APIError,
    BadRequestError,
    ConflictError,
    InvalidError,
    NotFoundError,
    TooManyRequestsError,
)
from dray.apiserver.handlers.subresources import evictions
from dray.store.interface import Entry
from tests.local_server import Local

PODS = "core/v1/pods"
BUDGETS = "policy/v1/poddisruptionbudgets"
BUDGET_KEY = "/registry/policy/poddisruptionbudgets/default/pdb"


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evictions, "RETRY_SECONDS", 0.0)


async def start_pod(api: Local, name: str = "p", *, ready: bool = True, phase: str = "Running") -> Document:
    pod = {
        "metadata": {"name": name, "labels": {"app": "a"}},
        "spec": {"containers": [{"name": "c", "image": "i"}], "serviceAccountName": "default"},
    }
    with suppress(AlreadyExistsError):
        await api.request("create", "core/v1/serviceaccounts@default", {"metadata": {"name": "default"}})
    created = await api.request("create", f"{PODS}@default", pod)
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    created["status"] = {"phase": phase, "conditions": conditions}
    return await api.request("update", f"{PODS}/{name}/status@default", created)


async def add_budget(api: Local, name: str = "pdb", spec: Document | None = None, **status: Any) -> Document:
    body = {"selector": {"matchLabels": {"app": "a"}}, "minAvailable": 1} | (spec or {})
    budget = await api.request("create", f"{BUDGETS}@default", {"metadata": {"name": name}, "spec": body})
    numbers = {"currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2, "disruptionsAllowed": 1}
    budget["status"] = numbers | {"observedGeneration": 1} | status
    return await api.request("update", f"{BUDGETS}/{name}/status@default", budget)


async def evict(api: Local, name: str = "p", query: dict[str, str] | None = None, **options: Any) -> Document:
    body: Document = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    if options:
        body["deleteOptions"] = options
    return await api.request("create", f"{PODS}/{name}/eviction@default", body, query=query)


async def read(api: Local, path: str) -> Document:
    return await api.request("get", f"{path}@default")


async def is_gone(api: Local, name: str = "p") -> bool:
    try:
        return "deletionTimestamp" in (await read(api, f"{PODS}/{name}"))["metadata"]
    except NotFoundError:
        return True


@pytest.mark.behaviour("DB-24")
async def test_a_body_for_another_pod_or_with_a_dangerous_option_is_refused(api: Local) -> None:
    await start_pod(api)
    with pytest.raises(BadRequestError, match="name in URL does not match name in Eviction object"):
        await api.request("create", f"{PODS}/p/eviction@default", {"metadata": {"name": "q"}})
    with pytest.raises(InvalidError, match="ignoreStoreReadErrorWithClusterBreakingPotential"):
        await evict(api, ignoreStoreReadErrorWithClusterBreakingPotential=True)
    assert not await is_gone(api)


@pytest.mark.behaviour("DB-25")
async def test_a_dry_run_asks_the_budget_and_writes_nothing(api: Local) -> None:
    pod = await start_pod(api)
    budget = await add_budget(api)
    await evict(api, query={"dryRun": "All"})
    await evict(api, dryRun=["All"])
    assert await read(api, f"{PODS}/p") == pod
    assert await read(api, f"{BUDGETS}/pdb") == budget
    with pytest.raises(BadRequestError, match="Non-matching dry-run options in request and content"):
        await evict(api, query={"dryRun": "All"}, dryRun=["None"])
    await api.request("update", f"{BUDGETS}/pdb/status@default", _allowing(budget, 0))
    with pytest.raises(TooManyRequestsError):
        await evict(api, dryRun=["All"])


@pytest.mark.behaviour("DB-04", "DB-31", "DB-32")
async def test_an_eviction_charges_the_budget_and_says_why_the_pod_goes(api: Local) -> None:
    await start_pod(api)
    await start_pod(api, "q")
    await add_budget(api)
    versions = []
    store: Any = api.running.store
    update = store.update

    async def noting(key: str, value: bytes, *, expected_revision: int) -> Entry:
        written: Entry = await update(key, value, expected_revision=expected_revision)
        versions.append((key, value))
        return written

    store.update = noting
    answer = await api.request(
        "create", f"{PODS}/p/eviction@default", {"apiVersion": "policy/v1beta1", "kind": "Eviction"}
    )
    assert (answer["status"], answer["kind"]) == ("Success", "Status")
    assert await is_gone(api)
    assert [key for key, _ in versions][:2] == [BUDGET_KEY, "/registry/core/pods/default/p"]
    assert b'"reason":"EvictionByEvictionAPI"' in versions[1][1]
    assert b'"message":"Eviction API: evicting"' in versions[1][1]
    status = (await read(api, f"{BUDGETS}/pdb"))["status"]
    assert (status["disruptionsAllowed"], list(status["disruptedPods"])) == (0, ["p"])
    with pytest.raises(TooManyRequestsError) as refused:
        await evict(api, "q")
    assert refused.value.message == "Cannot evict pod as it would violate the pod's disruption budget."
    assert not await is_gone(api, "q")


@pytest.mark.behaviour("DB-26")
async def test_a_pending_pod_goes_unless_it_becomes_ready_first(api: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    await start_pod(api, ready=False, phase="Pending")
    await add_budget(api, disruptionsAllowed=0)
    change = evictions.EvictionHandler._remove
    raced: list[bool] = []

    async def racing(self: Any, *arguments: Any) -> Any:
        if not raced:
            raced.append(True)
            pod = await read(api, f"{PODS}/p")
            pod["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            await api.request("update", f"{PODS}/p/status@default", pod)
        return await change(self, *arguments)

    monkeypatch.setattr(evictions.EvictionHandler, "_remove", racing)
    with pytest.raises(TooManyRequestsError):
        await evict(api)
    assert raced
    await start_pod(api, "q", ready=False, phase="Pending")
    await evict(api, "q")
    assert await is_gone(api, "q")
    pod = await start_pod(api, "r", ready=False, phase="Pending")
    with pytest.raises(ConflictError):
        await evict(api, "r", preconditions={"resourceVersion": "1"})
    await evict(api, "r", preconditions={"resourceVersion": pod["metadata"]["resourceVersion"]})
    assert await is_gone(api, "r")


@pytest.mark.behaviour("DB-27")
async def test_two_budgets_are_an_error(api: Local) -> None:
    await start_pod(api)
    await add_budget(api)
    await add_budget(api, "other")
    with pytest.raises(APIError, match="more than one PodDisruptionBudget") as refused:
        await evict(api)
    assert refused.value.status()["code"] == 500
    assert "reason" not in refused.value.status()
    assert not await is_gone(api)


@pytest.mark.behaviour("DB-28")
async def test_a_pod_that_is_not_ready_goes_uncharged(api: Local) -> None:
    await start_pod(api, ready=False)
    budget = await add_budget(api, disruptionsAllowed=0, currentHealthy=0)
    with pytest.raises(TooManyRequestsError):
        await evict(api)
    budget["spec"]["unhealthyPodEvictionPolicy"] = "AlwaysAllow"
    budget = await api.request("update", f"{BUDGETS}/pdb@default", budget)
    await evict(api)
    assert await is_gone(api)
    assert (await read(api, f"{BUDGETS}/pdb"))["status"] == budget["status"]


@pytest.mark.behaviour("DB-32")
async def test_preconditions_hold_before_anything_is_charged(api: Local) -> None:
    await start_pod(api)
    budget = await add_budget(api)
    with pytest.raises(ConflictError):
        await evict(api, preconditions={"uid": "other"})
    assert await read(api, f"{BUDGETS}/pdb") == budget
    await evict(api, gracePeriodSeconds=0)
    with pytest.raises(NotFoundError):
        await read(api, f"{PODS}/p")


@pytest.mark.behaviour("DB-31")
async def test_a_budget_that_always_changes_times_out(api: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    await start_pod(api)
    await add_budget(api)
    store: Any = api.running.store
    update, races = store.update, [0]

    async def racing(key: str, value: bytes, *, expected_revision: int) -> Entry:
        if key == BUDGET_KEY and races[0] < evictions.ATTEMPTS:
            races[0] += 1
            entry = await store.get(key)
            await update(key, entry.value, expected_revision=entry.revision)
        written: Entry = await update(key, value, expected_revision=expected_revision)
        return written

    monkeypatch.setattr(store, "update", racing)
    with pytest.raises(APIError, match="due to conflicts") as refused:
        await evict(api)
    assert (refused.value.code, refused.value.retry_after_seconds) == (504, 10)
    assert not await is_gone(api)
    await evict(api)
    assert await is_gone(api)


@pytest.mark.behaviour("DB-31")
async def test_concurrent_evictions_never_take_more_than_allowed(api: Local) -> None:
    names = [f"p{number}" for number in range(8)]
    for name in names:
        await start_pod(api, name)
    await add_budget(api, disruptionsAllowed=3, currentHealthy=8, desiredHealthy=5)
    outcomes = await asyncio.gather(*(evict(api, name) for name in names), return_exceptions=True)
    assert sum(isinstance(item, dict) for item in outcomes) == 3
    assert sum(isinstance(item, TooManyRequestsError) for item in outcomes) == 5
    assert sum([await is_gone(api, name) for name in names]) == 3


def _allowing(budget: Document, number: int) -> Document:
    return {**budget, "status": {**budget["status"], "disruptionsAllowed": number}}
