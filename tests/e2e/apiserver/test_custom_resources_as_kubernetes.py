"""Custom resources of random schemas are accepted, refused, stored and owned as by a real kube-apiserver.

Needs `KUBE_APISERVER`, the path of a kube-apiserver. `SCHEMAS` is the number of schemas, `FIRST_SCHEMA` the first seed.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import pytest
import yaml

from dray.api.document import Document
from dray.api.structural.types import object_type
from dray.apiserver.patch.managed_fields.typed_errors import type_errors
from tests.e2e.apiserver.calls import Answer, Caller, calling
from tests.kube_apiserver import needs_kube_apiserver, running_kube_apiserver
from tests.servers import running_server
from tests.structural_objects import Objects, Schemas

pytestmark = needs_kube_apiserver

FIRST: Final = int(os.environ.get("FIRST_SCHEMA", "0"))
SCHEMAS: Final = int(os.environ.get("SCHEMAS", "30"))
OBJECTS: Final = 6
NOISE: Final = (0.0, 0.05, 0.15)
MERGE: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
APPLY: Final = "application/apply-patch+yaml"
DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP: Final = "random.example.com"
SERVED_SECONDS_MAX: Final = 30.0


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Caller, Caller]]:
    folder = tmp_path_factory.mktemp("servers")
    with (
        running_kube_apiserver(folder / "real") as real,
        running_server(folder / "ours", "--disable-admission-plugins=ServiceAccount", command="apiserver") as ours,
        calling(real) as to_real,
        calling(ours) as to_ours,
    ):
        yield to_real, to_ours


def definition(seed: int, schema: Document, other: Document) -> Document:
    """A definition whose storage version is v1, which also has the defaults and rules of another version."""
    parts = {"served": True, "subresources": {"status": {}}}
    versions = [
        {"name": "v1", "storage": True, "schema": {"openAPIV3Schema": schema}, **parts},
        {"name": "v2", "storage": False, "schema": {"openAPIV3Schema": other}, **parts},
    ]
    names = {"plural": f"kind{seed}s", "singular": f"kind{seed}", "kind": f"Kind{seed}", "listKind": f"Kind{seed}List"}
    spec = {"group": GROUP, "scope": "Cluster", "names": names, "versions": versions}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"kind{seed}s.{GROUP}"},
        "spec": spec,
    }


class Writer:
    """Writes objects of one kind to one server."""

    def __init__(self, caller: Caller, seed: int) -> None:
        self.caller = caller
        self._seed = seed

    def _path(self, version: str, name: str = "") -> str:
        return f"/apis/{GROUP}/{version}/kind{self._seed}s" + (f"/{name}" if name else "")

    def _whole(self, parts: Document, version: str = "v1") -> Document:
        head = {"apiVersion": f"{GROUP}/{version}", "kind": f"Kind{self._seed}", "metadata": {"name": "one"}}
        return head | parts

    def post(self, parts: Document, version: str = "v1", query: str = "") -> Answer:
        return self.caller.call(
            "POST", f"{self._path(version)}?fieldManager=creator{query}", self._whole(parts, version)
        )

    def patch(self, body: Any, content_type: str, manager: str = "patcher", place: str = "", query: str = "") -> Answer:
        path = f"{self._path('v1', 'one')}{place}?fieldManager={manager}{query}"
        return self.caller.call("PATCH", path, body, content_type=content_type)

    def applied(self, parts: Document, manager: str = "applier", query: str = "&force=true") -> Answer:
        return self.patch(self._whole(parts), APPLY, manager, query=query)

    # Each brings an object into the store, given another one that may be there before.

    def create(self, _base: Document, parts: Document) -> Answer:
        return self.post(parts)

    def create_strictly(self, _base: Document, parts: Document) -> Answer:
        return self.post(parts, query="&fieldValidation=Strict")

    def create_of_yaml(self, _base: Document, parts: Document) -> Answer:
        path, body = f"{self._path('v1')}?fieldManager=creator", yaml.safe_dump(self._whole(parts)).encode()
        return self.caller.call("POST", path, body, content_type="application/yaml")

    def create_in_other_version(self, _base: Document, parts: Document) -> Answer:
        return self.post(parts, "v2")

    def read_in_other_version(self, _base: Document, parts: Document) -> Answer:
        self.post(parts)
        return self.caller.get(self._path("v2", "one"))

    def replace(self, base: Document, parts: Document) -> Answer:
        found = self.post(base).json()
        metadata = found["metadata"]
        body = self._whole(parts) | {"metadata": {name: metadata.get(name) for name in ("name", "resourceVersion")}}
        return self.caller.call("PUT", f"{self._path('v1', 'one')}?fieldManager=updater", body)

    def replace_status(self, base: Document, parts: Document) -> Answer:
        found = self.post(base).json()
        body = found | {"status": parts.get("status")}
        body.get("metadata", {}).pop("managedFields", None)
        return self.caller.call("PUT", f"{self._path('v1', 'one')}/status?fieldManager=updater", body)

    def merge(self, base: Document, parts: Document) -> Answer:
        self.post(base)
        return self.patch(parts, MERGE)

    def merge_status(self, base: Document, parts: Document) -> Answer:
        self.post(base)
        return self.patch({"status": parts.get("status")}, MERGE, place="/status")

    def patch_json(self, base: Document, parts: Document) -> Answer:
        self.post(base)
        operations = [{"op": "add", "path": f"/{name}", "value": value} for name, value in parts.items()]
        return self.patch(operations, JSON_PATCH)

    def apply(self, _base: Document, parts: Document) -> Answer:
        return self.applied(parts)

    def apply_strictly(self, _base: Document, parts: Document) -> Answer:
        return self.applied(parts, query="&force=true&fieldValidation=Strict")

    def apply_to_other(self, base: Document, parts: Document) -> Answer:
        self.post(base)
        return self.applied(parts)

    def apply_less(self, base: Document, parts: Document) -> Answer:
        self.applied(parts)
        return self.applied(base)

    def apply_twice(self, _base: Document, parts: Document) -> Answer:
        self.applied(parts)
        return self.applied(parts)

    def apply_with_conflicts(self, base: Document, parts: Document) -> Answer:
        self.applied(base)
        return self.applied(parts, "other", "")

    def apply_null_spec(self, base: Document, _parts: Document) -> Answer:
        self.applied(base)
        return self.applied({"spec": None})

    def remove(self) -> None:
        self.caller.call("DELETE", self._path("v1", "one"))


Way: TypeAlias = Callable[[Writer, Document, Document], Answer]
WAYS: Final[tuple[Way, ...]] = (
    Writer.create,
    Writer.create_strictly,
    Writer.create_of_yaml,
    Writer.create_in_other_version,
    Writer.read_in_other_version,
    Writer.replace,
    Writer.replace_status,
    Writer.merge,
    Writer.merge_status,
    Writer.patch_json,
    Writer.apply,
    Writer.apply_strictly,
    Writer.apply_to_other,
    Writer.apply_less,
    Writer.apply_twice,
    Writer.apply_with_conflicts,
    Writer.apply_null_spec,
)


# The object of a patch, a value that cannot be told from another, and the order in which Go finds undeclared fields.
NOT_COMPARED: Final = (
    re.compile(r'(?<=Invalid value: )"\{.*\}"(?=: )'),
    re.compile(r"(?<=Unsupported value: )\{.*\}(?=: )"),
    re.compile(r"(?<=failed to create typed patch object).*", re.DOTALL),
)


def text_of(message: str) -> str:
    for pattern in NOT_COMPARED:
        message = pattern.sub("...", message)
    return message


def shown(answer: Answer) -> Any:
    """An answer without what every server chooses by itself; errors and conflicts have no order in Kubernetes."""
    found = answer.json()
    if found["kind"] == "Status":
        causes = (found.get("details") or {}).get("causes") or ()
        texts = sorted(str((cause["reason"], cause.get("field"), text_of(cause["message"]))) for cause in causes)
        # The message of a Status with causes lists them.
        return answer.status, texts or sorted(re.findall(r"[^\s,\[\]]+", text_of(found["message"])))
    metadata = found["metadata"]
    for name in ("uid", "resourceVersion", "creationTimestamp"):
        metadata.pop(name, None)
    for entry in metadata.get("managedFields", ()):
        entry.pop("time", None)
    metadata.get("managedFields", []).sort(key=lambda entry: json.dumps(entry, sort_keys=True))
    warnings = sorted(answer.headers.get_all("Warning") or ())
    return answer.status, found, warnings


def outcome(writer: Writer, way: Way, base: Document, parts: Document) -> Any:
    try:
        return shown(way(writer, base, parts))
    finally:
        writer.remove()


def without_owners(outcome: Any) -> Any:
    """The outcome of a write, for objects with a status that is no value of its type.

    Kubernetes then records no owner of anything, although the status is ignored.
    """
    if isinstance(outcome[1], dict):
        outcome[1]["metadata"].pop("managedFields", None)
    return outcome


def define(servers: tuple[Caller, Caller], seed: int, schemas: tuple[Document, Document]) -> bool:
    """Write the definition to both servers; tell whether both serve it, or both refuse it for the same reasons."""
    document = definition(seed, *schemas)
    answers = [server.call("POST", DEFINITIONS, document) for server in servers]
    if answers[0].status != 201:
        assert shown(answers[1]) == shown(answers[0]), json.dumps(document)
        return False
    assert answers[1].status == 201, answers[1].body
    deadline = time.monotonic() + SERVED_SECONDS_MAX
    for server in servers:
        while server.get(f"/apis/{GROUP}/v2/kind{seed}s").status != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    return True


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SCHEMAS))
def test_custom_resources_of_random_schemas(
    servers: tuple[Caller, Caller], seed: int, record_property: Callable[[str, object], None]
) -> None:
    rng = random.Random(seed)
    schema, other = Schemas(rng).root(), Schemas(rng).root()
    compared = 0
    if define(servers, seed, (schema, other)):
        writers = [Writer(server, seed) for server in servers]
        structs = [object_type(each, "custom.Kind") for each in (schema, other)]
        for number in range(OBJECTS):
            objects = Objects(rng, NOISE[number % len(NOISE)])
            base = Objects(rng, 0).one(schema)
            parts = objects.one(schema) if number % 2 else objects.variant(base, schema)
            for way in WAYS:
                outcomes = [outcome(writer, way, base, parts) for writer in writers]
                if any(type_errors({"status": parts.get("status")}, struct) for struct in structs):
                    outcomes = [without_owners(each) for each in outcomes]
                expected, found = outcomes
                said = f"{way.__name__} of {json.dumps(parts)} after {json.dumps(base)} with {json.dumps(schema)}"
                assert found == expected, said
                compared += 1
    record_property("writes compared", compared)
