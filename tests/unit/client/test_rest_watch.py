"""Watches as the client reads them: batches of events, each in its place, and a failure after what came before it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dray.api.document import Document, NamespacedName
from dray.api.errors import ExpiredError
from dray.api.types.core_v1 import Node, Pod
from dray.client.codec import SharedObjects
from dray.client.interface import Bookmark, Deletion, Resource, WatchBatch, WatchEvent
from dray.client.responses import read_event
from dray.client.rest import Call, RestClient

PODS = Resource("", "v1", "pods", "Pod", Pod)


class Told:
    """A transport whose watches bring what it was given."""

    def __init__(self, *batches: WatchBatch) -> None:
        self._batches = batches

    async def send(self, call: Call) -> Document:
        raise NotImplementedError(call)

    async def stream(self, _call: Call) -> AsyncIterator[WatchBatch]:
        for batch in self._batches:
            yield batch

    async def close(self) -> None:
        """Nothing is held."""


def pod(name: str, version: str, **more: object) -> Document:
    return {"metadata": {"name": name, "namespace": "team", "resourceVersion": version}, **more}


async def test_events_come_one_by_one_and_together() -> None:
    bookmark = ("BOOKMARK", {"metadata": {"resourceVersion": "7"}})
    first, second = [("ADDED", pod("a", "5")), ("DELETED", pod("b", "6"))], [bookmark]
    got: list[Any] = [event async for event in RestClient(Told(first, second)).watch(PODS)]
    assert [(event.type, event.key, event.resource_version) for event in got[:2]] == [
        ("ADDED", NamespacedName("team", "a"), "5"),
        ("DELETED", NamespacedName("team", "b"), "6"),
    ]
    assert (got[0].object.metadata.name, got[1].object.metadata.name, got[2]) == ("a", "b", Bookmark("7"))
    batches = [batch async for batch in RestClient(Told(first, second)).watch_batches(PODS)]
    assert [len(batch) for batch in batches] == [2, 1]
    # A cache has the deleted object.
    assert batches[0][1] == Deletion(NamespacedName("team", "b"), "6")


async def test_a_failure_comes_after_what_came_with_it() -> None:
    failure = ("ERROR", ExpiredError("too old").status())
    stream = RestClient(Told([("ADDED", pod("a", "5")), failure, ("ADDED", pod("c", "8"))])).watch(PODS)
    event = await anext(stream)
    assert isinstance(event, WatchEvent)
    assert event.key.name == "a"
    with pytest.raises(ExpiredError):
        await anext(stream)


async def test_an_object_that_cannot_be_read_does_not_keep_others_from_being_read() -> None:
    unreadable = pod("b", "6", spec="none")
    stream = RestClient(Told([("ADDED", pod("a", "5")), ("MODIFIED", unreadable), ("ADDED", pod("c", "8"))])).watch(
        PODS
    )
    events = [event async for event in stream]
    assert [event.key.name for event in events if isinstance(event, WatchEvent)] == ["a", "c"]


@pytest.mark.parametrize(
    "metadata",
    [
        {"name": "a", "namespace": "team", "resourceVersion": "5"},
        {"name": "a", "namespace": None, "resourceVersion": None},
        {"name": "a"},
        {},
    ],
)
@pytest.mark.parametrize("event_type", ["ADDED", "MODIFIED", "DELETED"])
@pytest.mark.parametrize("for_cache", [False, True])
def test_key_and_version_are_the_same_for_objects_and_documents(
    metadata: Document, event_type: str, *, for_cache: bool
) -> None:
    document = {"metadata": metadata}
    typed, plain = (
        read_event(resource, event_type, document, for_cache=for_cache) for resource in (PODS, PODS.unstructured)
    )
    assert isinstance(typed, WatchEvent | Deletion)
    assert isinstance(plain, WatchEvent | Deletion)
    key = NamespacedName(metadata.get("namespace") or "", metadata.get("name") or "")
    assert (typed.key, typed.resource_version) == (plain.key, plain.resource_version)
    assert (typed.key, typed.resource_version) == (key, metadata.get("resourceVersion") or "")


def test_a_document_is_decoded_once_for_each_type() -> None:
    shared, document = SharedObjects(), pod("a", "5")
    first = shared.decode(PODS, document)
    assert shared.decode(PODS, document) is first
    assert shared.decode(PODS, dict(document)) is not first
    node = Resource("", "v1", "nodes", "Node", Node)
    assert isinstance(shared.decode(node, document), Node)
    assert isinstance(shared.decode(PODS, document), Pod)


def test_shared_objects_are_bounded() -> None:
    shared, documents = SharedObjects(size_max=2), [pod(name, "5") for name in "abc"]
    decoded = [shared.decode(PODS, document) for document in documents]
    assert shared.decode(PODS, documents[2]) is decoded[2]
    assert shared.decode(PODS, documents[1]) is decoded[1]
    assert shared.decode(PODS, documents[0]) is not decoded[0]
