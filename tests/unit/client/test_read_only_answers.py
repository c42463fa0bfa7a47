"""Who says that an answer is only read: a server in the same process need not copy it then."""

from __future__ import annotations

import pytest

from dray.api.document import Document
from dray.client.event_recorder import CreateEvent, EventRecorder, PatchEvent, Source
from dray.client.in_process import in_process_client
from dray.client.interface import LocalRequest, Patch, PatchType, WatchBatch, WriteOptions
from dray.client.resources import EVENTS
from dray.runtime.system import SystemClock

BODY: Document = {"metadata": {"name": "e", "namespace": "default"}}


class Server:
    """Remembers the requests; implements `LocalServer`."""

    def __init__(self) -> None:
        self.requests: list[LocalRequest] = []

    async def handle(self, request: LocalRequest) -> Document:
        self.requests.append(request)
        return BODY

    async def watch(self, request: LocalRequest) -> WatchBatch:
        raise AssertionError(request)


@pytest.mark.parametrize("read_only", [False, True])
async def test_the_caller_says_whether_it_only_reads_the_answer(*, read_only: bool) -> None:
    server = Server()
    client = in_process_client(server, user="u")  # type: ignore[arg-type]
    options = WriteOptions(read_only=read_only)
    await client.create(EVENTS, BODY, "default", options)
    await client.update(EVENTS, BODY, options)
    await client.patch(EVENTS, "e", "default", Patch(PatchType.MERGE, {}), options)
    assert [request.read_only for request in server.requests] == [read_only] * 3
    # It is no matter of the server's.
    assert all(not request.query for request in server.requests)


async def test_the_event_recorder_only_reads_what_it_wrote() -> None:
    server = Server()
    recorder = EventRecorder(in_process_client(server, user="u"), SystemClock(), Source("test"))  # type: ignore[arg-type]
    create = CreateEvent("default", BODY)
    await recorder._perform(create)
    await recorder._perform(PatchEvent("default", "e", {"count": 2}, create))
    assert [request.verb for request in server.requests if request.read_only] == ["create", "patch"]
