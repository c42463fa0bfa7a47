"""Watches that are not read: bounded in bytes, ended with 410, and gone with their client."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from dray.apiserver.handlers import watch_fanout
from dray.store import watch_hub
from tests.local_server import Local, local_server

BUFFER_BYTES: Final = 1_000_000
PODS: Final = "core/v1/pods"


async def write_maps(api: Local, count: int) -> None:
    for number in range(count):
        body = {"metadata": {"name": f"map-{number}"}, "data": {"text": "x" * 100_000}}
        await api.request("create", "core/v1/configmaps@default", body)


async def test_an_unread_watch_of_large_objects_ends_with_410(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_hub, "WATCH_BUFFER_BYTES_MAX", BUFFER_BYTES)
    async with local_server(tmp_path) as api:
        await api.request("create", "core/v1/configmaps@default", {"metadata": {"name": "first"}})
        events = await api.watch("core/v1/configmaps@default")
        quick = await api.watch("core/v1/configmaps@default")
        # The initial objects: the watches have started.
        await anext(events)
        await anext(quick)
        await write_maps(api, 9)
        seen = [(await anext(quick))[0] for _ in range(9)]
        assert seen == ["ADDED"] * 9
        await write_maps_again(api, 3)
        (kind, status) = await anext(events)
        assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
        assert str(status["message"]).startswith("too old resource version: ")
        with pytest.raises(StopAsyncIteration):
            await anext(events)
        assert [(await anext(quick))[0] for _ in range(3)] == ["MODIFIED"] * 3


async def write_maps_again(api: Local, count: int) -> None:
    for number in range(count):
        body = {"metadata": {"name": f"map-{number}"}, "data": {"text": "y" * 100_000}}
        await api.request("update", f"core/v1/configmaps/map-{number}@default", body)


async def test_an_unread_watch_of_one_nodes_pods_is_bounded_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_fanout, "BUFFER_BYTES_MAX", BUFFER_BYTES)
    async with local_server(tmp_path) as api:
        await api.request("create", "core/v1/serviceaccounts@default", {"metadata": {"name": "default"}})
        await create_pod(api, "first", "")
        events = await api.watch(PODS, fieldSelector="spec.nodeName=n1")
        assert (await anext(events))[0] == "ADDED"
        for number in range(12):
            await create_pod(api, f"pod-{number}", "x" * 100_000)
        kind, status = await anext(events)
        assert (kind, status["code"]) == ("ERROR", 410)


async def create_pod(api: Local, name: str, text: str) -> None:
    body = {
        "metadata": {"name": name, "annotations": {"text": text}},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]},
    }
    await api.request("create", f"{PODS}@default", body)
