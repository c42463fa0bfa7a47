"""The change stream: objects, changes, and an error line when watching fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import orjson
import pytest

from dray.api.document import GroupResource, GroupVersion
from dray.api.errors import ForbiddenError, InternalError
from dray.client.in_process import in_process_client
from dray.client.interface import Client, unstructured
from dray.dashboard import change_stream
from dray.dashboard.change_stream import LineBuffer, SharedFeeds, synced_line
from dray.runtime.system import SystemClock
from dray.runtime.tasks import ChildTasks
from tests.fake_local_server import FakeLocalServer, served

SECONDS_MAX = 10.0
PODS = unstructured(GroupVersion("", "v1"), "pods", "Pod")
SLICES = unstructured(GroupVersion("resource.k8s.io", "v1"), "resourceslices", "ResourceSlice", namespaced=False)
CLAIMS = unstructured(GroupVersion("resource.k8s.io", "v1"), "resourceclaims", "ResourceClaim")
FORBIDDEN = ForbiddenError(GroupResource("", "pods"), "", "no")
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"}}


def lines(chunk: bytes) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in chunk.splitlines()]


class Failing:
    """A client whose informers fail in a way that they do not retry."""

    def __init__(self, client: Client, error: Exception) -> None:
        self._client = client
        self.error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def watch_batches(self, *_arguments: Any) -> Any:
        raise self.error


@asynccontextmanager
async def feeds() -> AsyncIterator[tuple[SharedFeeds, ChildTasks]]:
    tasks = ChildTasks("test")
    try:
        async with asyncio.timeout(SECONDS_MAX):
            yield SharedFeeds(SystemClock()), tasks
    finally:
        await tasks.aclose()


async def read_all(client: Client) -> list[dict[str, Any]]:
    """Every line until the stream ends."""
    async with feeds() as (shared, tasks), aclosing(shared.stream(client, client, tasks)) as stream:
        return [line async for chunk in stream for line in lines(chunk)]


async def read_until(stream: AsyncIterator[bytes], kind: str) -> list[dict[str, Any]]:
    """The lines until a kind is synced."""
    seen: list[dict[str, Any]] = []
    async for chunk in stream:
        seen += lines(chunk)
        if any((line["type"], line.get("kind")) == ("SYNCED", kind) for line in seen):
            break
    return seen


async def test_rows_come_before_the_kind_is_synced_and_changes_after() -> None:
    client = in_process_client(FakeLocalServer(), user="admin")
    await client.create(PODS, POD)
    seen: list[dict[str, Any]] = []
    async with feeds() as (shared, tasks), aclosing(shared.stream(client, client, tasks)) as stream:
        deleted = False
        async for chunk in stream:
            seen += lines(chunk)
            if any(line.get("removed") for line in seen):
                break
            if not deleted and any(line.get("kind") == "Pod" and line["type"] == "SYNCED" for line in seen):
                deleted = True
                await client.delete(PODS, "web", "default")
    assert seen[0]["type"] == "COLUMNS"
    pods = [line for line in seen if "pods" in (line.get("table"), line.get("kind", "").lower() + "s")]
    assert [line["type"] for line in pods] == ["ROWS", "SYNCED", "ROWS"]
    assert pods[0]["rows"]["default/web"][seen[0]["tables"]["pods"].index("state")] == "pending"
    assert pods[2]["removed"] == ["default/web"]
    unavailable = {line["kind"]: line["message"] for line in seen if line["type"] == "UNAVAILABLE"}
    assert unavailable["ResourceSlice"] == "not served"


async def test_a_crash_while_watching_ends_the_stream_with_an_error() -> None:
    client = Failing(in_process_client(FakeLocalServer(), user="admin"), RuntimeError("bug"))
    seen = await read_all(client)
    assert seen[-1] == {"type": "ERROR", "message": "internal error"}
    assert [line["type"] for line in seen].count("ERROR") == 1


async def test_an_api_error_before_watching_reaches_the_page() -> None:
    class Unreachable(Failing):
        async def resources(self, **_: Any) -> Any:
            raise self.error

    seen = await read_all(Unreachable(in_process_client(FakeLocalServer(), user="admin"), InternalError("no route")))
    assert [line["type"] for line in seen] == ["ERROR"]
    assert "no route" in seen[0]["message"]


def watches() -> int:
    return sum(task.get_name() == "dashboard watch" for task in asyncio.all_tasks())


async def test_closing_the_tasks_stops_watching() -> None:
    before = asyncio.all_tasks()
    client = in_process_client(FakeLocalServer(), user="admin")
    async with feeds() as (shared, tasks):
        async with aclosing(shared.stream(client, client, tasks)) as stream:
            await anext(stream)
        assert watches() == 1, "kept for the next reader"
    assert asyncio.all_tasks() == before


async def test_a_feed_without_readers_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_stream, "UNUSED_SECONDS_MAX", 0.0)
    client = in_process_client(FakeLocalServer(), user="admin")
    async with feeds() as (shared, tasks):
        async with aclosing(shared.stream(client, client, tasks)) as stream:
            await anext(stream)
        (task,) = (task for task in asyncio.all_tasks() if task.get_name() == "dashboard watch")
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_readers_share_one_watch_whoever_they_are() -> None:
    server = FakeLocalServer()
    client = in_process_client(server, user="admin")
    await client.create(PODS, POD)
    async with feeds() as (shared, tasks):
        async with aclosing(shared.stream(client, client, tasks)) as first:
            await read_until(first, "Pod")
            other = in_process_client(server, user="other")
            async with aclosing(shared.stream(other, client, tasks)) as second:
                seen = await read_until(second, "Pod")
                assert watches() == 1
        assert [line["rows"].keys() for line in seen if line.get("table") == "pods"] == [{"default/web"}]


class Restricted(Failing):
    """A client of a user who may not list Pods once `is_forbidden` is set."""

    is_forbidden = False

    async def list(self, resource: Any, *arguments: Any, **more: Any) -> Any:
        if self.is_forbidden and resource.kind == "Pod":
            raise self.error
        return await self._client.list(resource, *arguments, **more)


async def test_a_reader_gets_only_what_the_user_may_list() -> None:
    client = in_process_client(FakeLocalServer(), user="admin")
    await client.create(PODS, POD)
    user = Restricted(client, FORBIDDEN)
    user.is_forbidden = True
    async with feeds() as (shared, tasks):
        async with aclosing(shared.stream(client, client, tasks)) as stream:
            await read_until(stream, "Pod")
        async with aclosing(shared.stream(user, client, tasks)) as stream:
            seen = await read_until(stream, "Namespace")
    assert not [line for line in seen if line.get("table") == "pods"]
    assert ("UNAVAILABLE", "Pod", "pods is forbidden: no") in [
        (line["type"], line.get("kind"), line.get("message")) for line in seen
    ]


async def test_a_reader_whose_rights_are_withdrawn_gets_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_stream, "RIGHTS_CHECK_SECONDS", 0.0)
    client = in_process_client(FakeLocalServer(), user="admin")
    user = Restricted(client, FORBIDDEN)
    seen: list[dict[str, Any]] = []
    async with feeds() as (shared, tasks), aclosing(shared.stream(user, client, tasks)) as stream:
        seen += await read_until(stream, "Pod")
        user.is_forbidden = True
        seen += [line async for chunk in stream for line in lines(chunk)]
    assert seen[-1] == {"type": "ERROR", "message": "what you may read has changed"}


async def test_a_prepared_feed_is_there_before_its_first_reader() -> None:
    client = in_process_client(FakeLocalServer(), user="admin")
    async with feeds() as (shared, tasks):
        await shared.prepare(client, tasks)
        assert watches() == 1
        async with aclosing(shared.stream(client, client, tasks)) as stream:
            await read_until(stream, "Pod")
        assert watches() == 1


DEVICE_RESOURCES = (
    served("deviceclasses", "DeviceClass", "resource.k8s.io", namespaced=False),
    served("devicetaintrules", "DeviceTaintRule", "resource.k8s.io", namespaced=False),
    served("resourceslices", "ResourceSlice", "resource.k8s.io", namespaced=False),
    served("resourceclaims", "ResourceClaim", "resource.k8s.io"),
)
SLICE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "s"},
    "spec": {
        "driver": "d",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0"}, {"name": "gpu-1"}],
    },
}
CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "c", "namespace": "default"},
    "spec": {},
    "status": {
        "allocation": {"devices": {"results": [{"request": "r", "driver": "d", "pool": "n", "device": "gpu-1"}]}}
    },
}


class Slow(Failing):
    """A client that lists claims only when `go_on` is set."""

    def __init__(self, client: Client) -> None:
        super().__init__(client, RuntimeError())
        self.go_on = asyncio.Event()

    async def list(self, resource: Any, *arguments: Any, **more: Any) -> Any:
        if resource.kind == "ResourceClaim":
            await self.go_on.wait()
        return await self._client.list(resource, *arguments, **more)

    def watch_batches(self, *arguments: Any) -> Any:
        return self._client.watch_batches(*arguments)


async def cluster_with_devices() -> Client:
    client = in_process_client(FakeLocalServer(*DEVICE_RESOURCES), user="admin")
    await client.create(SLICES, SLICE)
    await client.create(CLAIMS, CLAIM)
    return client


def pool_states(seen: list[dict[str, Any]]) -> list[str]:
    """The states of the devices, as often as the row of the pool came."""
    column = seen[0]["tables"]["pools"].index("states")
    return [row[column] for line in seen if line.get("table") == "pools" for row in line["rows"].values()]


async def test_devices_come_once_with_their_states() -> None:
    client = await cluster_with_devices()
    async with feeds() as (shared, tasks), aclosing(shared.stream(client, client, tasks)) as stream:
        seen = await read_until(stream, "ResourceClaim")
    assert pool_states(seen) == ["fu"]


async def test_devices_come_without_their_states_while_claims_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_stream, "OUTLINE_AFTER_SECONDS", 0.0)
    client = await cluster_with_devices()
    slow = Slow(client)
    async with feeds() as (shared, tasks), aclosing(shared.stream(client, slow, tasks)) as stream:
        seen = await read_until(stream, "ResourceSlice")
        assert pool_states(seen) == ["ll"]
        slow.go_on.set()
        seen += await read_until(stream, "ResourceClaim")
    assert pool_states(seen) == ["ll", "fu"]


async def test_an_idle_stream_sends_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_stream, "HEARTBEAT_SECONDS", 0.0)
    assert lines(await LineBuffer().next_chunk()) == [{"type": "HEARTBEAT"}]


async def test_a_reader_that_falls_behind_gets_an_error_instead_of_a_gap() -> None:
    buffer = LineBuffer(lines_max=2)
    for kind in ("Node", "Pod", "Event"):
        buffer.add(synced_line(kind))
    (line,) = lines(await buffer.next_chunk())
    assert line["type"] == "ERROR"
    assert await buffer.next_chunk() == b"", "nothing follows an error"


async def test_slices_are_read_from_lists_and_from_watches() -> None:
    def resource_slice(name: str) -> dict[str, Any]:
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "gpu.example.com", "nodeName": name, "pool": pool, "devices": [{"name": "gpu-0"}]}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": spec,
        }

    client = in_process_client(FakeLocalServer(*DEVICE_RESOURCES), user="admin")
    await client.create(SLICES, resource_slice("listed"))
    async with feeds() as (shared, tasks), aclosing(shared.stream(client, client, tasks)) as stream:
        seen = await read_until(stream, "ResourceSlice")
        await client.create(SLICES, resource_slice("watched"))
        async for chunk in stream:
            seen += lines(chunk)
            if "watched" in str(seen):
                break
    pools = {key: row for line in seen if line.get("table") == "pools" for key, row in line["rows"].items()}
    assert {key: row[5] for key, row in pools.items()} == {
        "gpu.example.com/listed": "f",
        "gpu.example.com/watched": "f",
    }
