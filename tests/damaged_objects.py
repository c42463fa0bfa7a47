"""Objects that no server would store, and that a store may have: of every kind, in several forms."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import orjson

from dray.api.document import Document
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.registry import builtin
from dray.store.interface import Store
from tests.objects_of_kinds import endpoint_of, one_of_each_kind

CREATED = "2026-01-01T00:00:00Z"
# In the name of each object.
FORMS = ("null-labels", "other-types", "other-owners", "text", "list", "no-metadata")


def storage_endpoints() -> dict[str, Endpoint]:
    """The endpoints at the version in which objects are stored, by the prefix of their keys."""
    return {endpoint.prefix: endpoint for endpoint in builtin.endpoints() if endpoint.is_storage_version}


def damaged(document: Document, form: str) -> bytes:
    """The stored value of an object in one of the `FORMS`."""
    document = copy.deepcopy(document)
    metadata = document["metadata"]
    if form == "null-labels":
        metadata["labels"] = None
    elif form == "other-types":
        document = dict.fromkeys(document, 5) | {"spec": 5} | _header(document)
    elif form == "other-owners":
        metadata |= {"ownerReferences": [5]}
    elif form == "no-metadata":
        document["metadata"] = 5
    elif form == "list":
        return b"[]"
    elif form == "text":
        return b"{not JSON"
    return orjson.dumps(document)


def _header(document: Document) -> Document:
    return {name: document[name] for name in ("kind", "apiVersion", "metadata")}


def damaged_objects() -> Iterator[tuple[Endpoint, str, str, bytes]]:
    """The endpoint, namespace, name and stored value of an object of every kind in every form."""
    stored = storage_endpoints()
    for resource, document in one_of_each_kind().items():
        endpoint = stored[endpoint_of(document).prefix]
        namespace = document["metadata"].get("namespace", "") if endpoint.definition.namespaced else ""
        for form in FORMS:
            name = f"bad-{form}"
            own = {"name": name, "uid": f"uid of {resource} {form}", "creationTimestamp": CREATED}
            first = {"kind": document["kind"], "apiVersion": endpoint.storage_api_version}
            whole = first | {"metadata": document["metadata"] | own} | document | first
            whole["metadata"] = document["metadata"] | own
            yield endpoint, namespace, name, damaged(whole, form)


async def plant(store: Store) -> int:
    """Put all of them into a store; return how many there are."""
    count = 0
    for endpoint, namespace, name, value in damaged_objects():
        await store.create(endpoint.key(namespace, name), value)
        count += 1
    return count
