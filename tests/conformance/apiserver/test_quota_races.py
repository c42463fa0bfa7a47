"""Quotas and lost races: what was charged for a write that was not stored is released."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import AlreadyExistsError, ConflictError
from dray.store.interface import Entry
from tests.local_server import Local, until

PODS = "core/v1/pods"
POD_KEY = "/registry/core/pods/default/p"


async def charge_terminating_pods(api: Local) -> None:
    """Create a Pod, and a quota that counts Pods with a deadline."""
    await api.request("create", "core/v1/serviceaccounts@default", {"metadata": {"name": "default"}})
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    await api.request("create", f"{PODS}@default", pod)
    spec = {"hard": {"pods": "5"}, "scopes": ["Terminating"]}
    quota = await api.request("create", "core/v1/resourcequotas@default", {"metadata": {"name": "q"}, "spec": spec})
    quota["status"] = {"hard": {"pods": "5"}, "used": {"pods": "0"}}
    await api.request("update", "core/v1/resourcequotas/q/status@default", quota)
    quotas = api.running.server.cache.quotas
    await until(lambda: "used" in (quotas.get("default", {}).get("q", {}).get("status") or {}))


async def used(api: Local) -> str:
    quota = await api.request("get", "core/v1/resourcequotas/q@default")
    return str(quota["status"]["used"]["pods"])


async def pod_with_deadline(api: Local) -> Document:
    pod = await api.request("get", f"{PODS}/p@default")
    pod["spec"]["activeDeadlineSeconds"] = 60
    return pod


def lose_races(api: Local, monkeypatch: pytest.MonkeyPatch, races: int) -> None:
    """Let another writer change the Pod before each of the next updates."""
    store: Any = api.running.store
    update, left = store.update, [races]

    async def racing_update(key: str, value: bytes, *, expected_revision: int) -> Entry:
        if key == POD_KEY and left[0]:
            left[0] -= 1
            entry = await store.get(key)
            await update(key, entry.value, expected_revision=entry.revision)
        written: Entry = await update(key, value, expected_revision=expected_revision)
        return written

    monkeypatch.setattr(store, "update", racing_update)


async def test_quota_is_released_after_a_lost_update_race(api: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    await charge_terminating_pods(api)
    pod = await pod_with_deadline(api)
    lose_races(api, monkeypatch, 1)
    with pytest.raises(ConflictError):
        await api.request("update", f"{PODS}/p@default", pod)
    assert await used(api) == "0"


async def test_quota_is_charged_once_if_the_update_is_retried(api: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    await charge_terminating_pods(api)
    pod = await pod_with_deadline(api)
    del pod["metadata"]["resourceVersion"]
    lose_races(api, monkeypatch, 3)
    await api.request("update", f"{PODS}/p@default", pod)
    assert await used(api) == "1"


async def test_quota_is_released_if_the_object_exists_already(api: Local) -> None:
    await charge_terminating_pods(api)
    pod = {
        "metadata": {"name": "p"},
        "spec": {"activeDeadlineSeconds": 60, "containers": [{"name": "c", "image": "i"}]},
    }
    with pytest.raises(AlreadyExistsError):
        await api.request("create", f"{PODS}@default", pod)
    assert await used(api) == "0"
