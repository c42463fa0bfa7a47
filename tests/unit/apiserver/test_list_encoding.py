"""Lists that are encoded item by item equal lists that are encoded as one document."""

from __future__ import annotations

from datetime import UTC, datetime

import orjson
import pytest
import yaml

from dray.api.document import Document
from dray.api.protobuf import decode_object, encode_object
from dray.apiserver.call import ListResult
from dray.apiserver.encoding import dump, list_document, served_document
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.list_encoding import ListEncoder, encode_list
from dray.apiserver.negotiation import Media, Representation
from dray.apiserver.registry import builtin
from dray.apiserver.tables import TableOptions, partial_metadata, table
from dray.store.interface import Entry

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ENDPOINTS = {
    f"{endpoint.resource.resource}.{endpoint.version}": endpoint
    for endpoint in builtin.endpoints()
    if endpoint.resource.resource in ("configmaps", "pods", "resourceclaims", "events")
}


def result(endpoint: Endpoint, count: int) -> ListResult:
    entries = []
    for number in range(count):
        document: Document = {
            "kind": endpoint.definition.kind,
            "apiVersion": endpoint.storage_api_version,
            "metadata": {
                "name": f"object-{number}",
                "namespace": "default",
                "uid": f"uid-{number}",
                "creationTimestamp": "2025-12-31T00:00:00Z",
                "labels": {"text": "a: b\n- c", "empty": ""},
            },
        }
        value = orjson.dumps(document)
        entries.append(Entry(f"{endpoint.prefix}default/object-{number}", value, 10 + number, 10 + number))
    return ListResult(endpoint, entries, 100, "token" if count else "", 3 if count else None)


def whole(listing: ListResult, representation: Representation) -> bytes:
    """The list as one document."""
    endpoint = listing.endpoint
    documents = [served_document(endpoint, entry) for entry in listing.entries]
    if representation.transform == "Table":
        options = TableOptions(representation.api_version, "Metadata", NOW)
        return dump(table(endpoint, documents, options, list_metadata=listing.metadata()), representation)
    if representation.transform:
        items = [partial_metadata(document, representation.api_version) for document in documents]
        document = {"kind": "PartialObjectMetadataList", "apiVersion": representation.api_version}
        return dump({**document, "metadata": listing.metadata(), "items": items}, representation)
    return dump(list_document(endpoint, documents, listing.metadata()), representation)


@pytest.mark.parametrize("count", [0, 1, 20])
@pytest.mark.parametrize("transform", ["", "Table", "PartialObjectMetadataList"])
@pytest.mark.parametrize("form", ["json", "pretty", "yaml", "protobuf"])
@pytest.mark.parametrize("name", ENDPOINTS)
def test_parts_make_the_whole(name: str, form: str, transform: str, count: int) -> None:
    media = {"yaml": Media.YAML, "protobuf": Media.PROTOBUF}.get(form, Media.JSON)
    api_version = "meta.k8s.io/v1" if transform else ""
    representation = Representation(media, transform, api_version, pretty=form == "pretty")
    if media is Media.PROTOBUF and (transform == "Table" or name == "resourceclaims.v1alpha1"):
        pytest.skip("there is no such message")
    listing = result(ENDPOINTS[name], count)
    body = encode_list(listing, representation, include="Metadata", now=NOW)
    expected = whole(listing, representation)
    if form == "json":
        # Spliced from stored bytes: the resourceVersion comes first.
        assert orjson.loads(body) == orjson.loads(expected)
        assert body.endswith(b"\n")
    elif form == "yaml":
        assert body == expected
        assert yaml.safe_load(body) == yaml.safe_load(expected)
    else:
        assert body == expected


def test_a_long_list_takes_many_steps() -> None:
    listing = result(ENDPOINTS["pods.v1"], 100)
    encoder = ListEncoder(listing, Representation(Media.PROTOBUF), include="Metadata", now=NOW)
    assert len(list(encoder.steps())) > 10
    assert len(decode_object(encoder.body())[1]["items"]) == 100
    assert encode_object(decode_object(encoder.body())[1]) == encoder.body()
