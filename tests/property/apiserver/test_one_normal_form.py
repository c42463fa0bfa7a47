"""An object is stored as the same bytes, whatever the way in, and whatever it has that says nothing."""

from __future__ import annotations

import copy
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeAlias

import orjson
import pytest
import yaml

from dray.api.document import Document
from dray.api.errors import APIError
from dray.apiserver.endpoint import Endpoint
from dray.store.interface import Entry
from tests.local_server import Local, local_server
from tests.objects_of_kinds import Emptiness, endpoint_of, one_of_each_kind

MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
APPLY: Final = "application/apply-patch+yaml"
ROUNDS: Final = 6
KINDS: Final = one_of_each_kind()
# What the server sets, or a manager's name decides.
OF_THE_WRITE: Final = ("uid", "creationTimestamp", "managedFields", "generation")
# The server writes their status at once.
WRITTEN_BY_OTHERS: Final = frozenset({"apiextensions.k8s.io/v1/customresourcedefinitions"})
# IP addresses are the server's own records: it repairs those without a Service.
NOT_UPDATED: Final = frozenset({"networking.k8s.io/v1/ipaddresses"})


Way: TypeAlias = Callable[[Document], Coroutine[Any, Any, None]]


class Ways:
    """Brings an object into the store in every way, and reads what was stored."""

    def __init__(self, api: Local, resource: str, base: Document) -> None:
        self.api = api
        self.base = base
        self.endpoint: Endpoint = endpoint_of(base)
        self._name = base["metadata"]["name"]
        self._place = f"@{base['metadata']['namespace']}" if self.endpoint.definition.namespaced else ""
        self._resource = resource
        self.key = self.endpoint.key(base["metadata"].get("namespace", ""), self._name)

    def _send(self, verb: str, body: Any, content_type: str, *, subresource: str = "", **query: str) -> Any:
        name = "" if verb == "create" else f"/{self._name}"
        path = f"{self._resource}{name}{subresource}{self._place}"
        if content_type == APPLY:
            query = {"fieldManager": "applier", "force": "true"} | query
        return self.api.request(verb, path, body, content_type=content_type, query=query)

    async def create(self, document: Document) -> None:
        await self._send("create", copy.deepcopy(document), "application/json")

    async def create_of_json(self, document: Document) -> None:
        await self._send("create", orjson.dumps(document), "application/json")

    async def create_of_yaml(self, document: Document) -> None:
        await self._send("create", yaml.safe_dump(document).encode(), "application/yaml")

    async def apply_new(self, document: Document) -> None:
        await self._send("patch", yaml.safe_dump(document).encode(), APPLY)

    async def apply_new_in_process(self, document: Document) -> None:
        await self._send("patch", copy.deepcopy(document), APPLY)

    async def apply(self, document: Document) -> None:
        await self.create(self.base)
        await self._send("patch", orjson.dumps(document), APPLY)

    async def apply_twice(self, document: Document) -> None:
        await self.apply_new(document)
        before = await self.stored()
        await self._send("patch", orjson.dumps(document), APPLY)
        # An apply that changes nothing writes nothing.
        assert before == await self.stored()

    async def update(self, document: Document) -> None:
        await self.create(self.base)
        entry = await self._entry()
        metadata = document["metadata"] | {"resourceVersion": str(entry.revision)}
        await self._send("update", orjson.dumps(document | {"metadata": metadata}), "application/json")

    async def merge(self, document: Document) -> None:
        await self.create(self.base)
        await self._send("patch", orjson.dumps(document), MERGE)

    async def strategic(self, document: Document) -> None:
        await self.create(self.base)
        await self._send("patch", orjson.dumps(document), STRATEGIC)

    async def json_patch(self, document: Document) -> None:
        await self.create(self.base)
        members = [(f"/metadata/{name}", value) for name, value in document["metadata"].items()]
        members += [(f"/{name}", value) for name, value in document.items() if name != "metadata"]
        await self._send("patch", [{"op": "add", "path": path, "value": value} for path, value in members], JSON_PATCH)

    async def _entry(self) -> Entry:
        entry = await self.api.running.store.get(self.key)
        assert entry is not None
        return entry

    async def stored(self) -> bytes:
        """What is stored: the order of fields and what every write sets anew aside."""
        value = (await self._entry()).value
        # Jobs have their uid in labels.
        document = orjson.loads(value.replace(orjson.loads(value)["metadata"]["uid"].encode(), b"UID"))
        for name in OF_THE_WRITE:
            document["metadata"].pop(name, None)
        if self._resource in WRITTEN_BY_OTHERS:
            del document["status"]
        # Of volumes: the time of the write, like their creation.
        document.get("status", {}).pop("lastPhaseTransitionTime", None)
        return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)

    async def remove(self) -> None:
        """Remove the object from the store, without a request."""
        entry = await self.api.running.store.get(self.key)
        if entry is not None:
            await self.api.running.store.delete(self.key, expected_revision=entry.revision)

    async def outcome(self, way: Way, document: Document) -> bytes | str:
        """What is stored after a write, or why it was refused."""
        try:
            await way(document)
            return await self.stored()
        except APIError as error:
            return f"{error.code} {error.message}"
        finally:
            await self.remove()

    def new(self) -> tuple[Way, ...]:
        return (self.create, self.create_of_json, self.create_of_yaml, self.apply_new, self.apply_new_in_process)

    def changes(self) -> tuple[Way, ...]:
        if self._resource in NOT_UPDATED:
            return ()
        patches = (self.update, self.merge, self.json_patch, self.strategic)
        return (*patches, self.apply, self.apply_twice)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Local]:
    async with local_server(tmp_path, "AllAlpha=true,AllBeta=true", ("ServiceAccount",)) as local:
        yield local


def noisy_objects(base: Document, endpoint: Endpoint) -> list[Document]:
    """The object with nothing more, with nulls and other empty values in a few places, and in all."""
    rng = random.Random(f"{base['kind']}")
    return [Emptiness(rng, chance).noisy(base, endpoint.struct) for chance in (*[0.15] * (ROUNDS - 1), 1.0)]


@pytest.mark.parametrize("resource", KINDS)
async def test_what_says_nothing_is_not_stored_whatever_the_way_in(api: Local, resource: str) -> None:
    ways = Ways(api, resource, KINDS[resource])
    expected = await ways.outcome(ways.create, ways.base)
    assert isinstance(expected, bytes), expected
    for noisy in noisy_objects(ways.base, ways.endpoint):
        for way in (*ways.new(), *ways.changes()):
            found = await ways.outcome(way, noisy)
            assert found == expected, f"{way.__name__} of {orjson.dumps(noisy).decode()}"
