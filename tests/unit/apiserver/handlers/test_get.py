"""Lists and watches while other servers write to the same store."""

from __future__ import annotations

import random

import orjson

from dray.apiserver.composition import running_server
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.handlers.get import GetHandler
from dray.apiserver.in_process import in_process_config
from dray.apiserver.local_transport import LocalTransport
from dray.apiserver.options import ListOptions
from dray.apiserver.registry import builtin
from dray.client.interface import LocalRequest
from dray.runtime.system import SystemClock
from dray.store.buffered_watch import BufferedWatch
from dray.store.interface import Entry, Event, StoreUnavailableError
from dray.store.memory import MemoryStore

DEFINITION = next(item for item in builtin.definitions() if (item.group, item.resource) == ("", "configmaps"))
ENDPOINT: Endpoint = builtin.endpoint(DEFINITION, "v1")
KEY = ENDPOINT.key("default", "a")
VALUE = orjson.dumps({"metadata": {"name": "a", "namespace": "default"}})


class _SharedStore(MemoryStore):
    """Another server writes between any two reads."""

    async def get(self, key: str) -> Entry | None:
        entry = await super().get(key)
        await self._write()
        return entry

    async def revision(self) -> int:
        await self._write()
        return await super().revision()

    async def _write(self) -> None:
        if await super().get(KEY) is None:
            await self.create(KEY, VALUE)


async def test_the_list_of_one_name_has_the_revision_of_what_it_shows() -> None:
    """A watch from a later revision would never tell of the object."""
    store = _SharedStore()
    await store.create(KEY + "b", VALUE)
    listed = await GetHandler(store).list_selected(ENDPOINT, "default", ListOptions(), name="a")
    assert (list(listed.entries), listed.revision) == ([], 2)
    created = await store.create(KEY, VALUE)
    listed = await GetHandler(store).list_selected(ENDPOINT, "default", ListOptions(), name="a")
    assert (list(listed.entries), listed.revision) == ([created], created.revision)
    await store.close()


class _FailingWatch(BufferedWatch):
    async def __anext__(self) -> tuple[Event, ...]:
        raise StoreUnavailableError("history could not be read")


class _FailingStore(MemoryStore):
    async def watch(self, prefix: str, *, after_revision: int) -> BufferedWatch:
        if not prefix.startswith("/registry/core/configmaps/"):
            return await super().watch(prefix, after_revision=after_revision)
        return _FailingWatch(self._state.hub, prefix, after_revision=after_revision, read_past=self._read_past)


async def test_a_watch_that_the_store_breaks_off_ends_with_a_status() -> None:
    store = _FailingStore()
    request = LocalRequest(
        user="tester",
        groups=("system:masters",),
        verb="watch",
        version="v1",
        resource="configmaps",
        namespace="default",
        query={"watch": "true", "resourceVersion": "1"},
    )
    async with running_server(in_process_config(store, SystemClock(), random.Random(1))) as server:
        batches = [list(batch) async for batch in await LocalTransport(server).watch(request)]
    assert [(kind, status["code"], status["reason"]) for kind, status in batches[0]] == [
        ("ERROR", 503, "ServiceUnavailable")
    ]
    assert len(batches) == 1
    await store.close()
