"""Encodes results as response bodies in the negotiated representation."""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import orjson
import yaml

from dray.api.document import Document
from dray.api.protobuf import encode_object, watch_frame
from dray.api.raw_numbers import RawNumber, fragment
from dray.apiserver.call import DocumentResult, ObjectResult, WatchFrame
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.negotiation import Media, Representation
from dray.apiserver.shown_values import Report, unless_malformed
from dray.apiserver.tables import TableOptions, partial_metadata, table
from dray.lib.processor_time import tick
from dray.store.interface import Entry

CONTENT_TYPES: Final = {
    Media.JSON: "application/json",
    Media.YAML: "application/yaml",
    Media.PROTOBUF: "application/vnd.kubernetes.protobuf",
}
WATCH_CONTENT_TYPES: Final = {
    Media.JSON: "application/json",
    Media.YAML: "application/json",
    Media.PROTOBUF: "application/vnd.kubernetes.protobuf;stream=watch",
}


_TEXT: Final = "tag:yaml.org,2002:str"


def served_document(endpoint: Endpoint, entry: Entry) -> Document:
    """Return a new document of the entry in the endpoint's version."""
    return endpoint.served(endpoint.decode(entry.value, entry.revision))


def dump(document: Document | list[Document], representation: Representation) -> bytes:
    """Serialize one document; in YAML also a list."""
    if representation.media is Media.PROTOBUF:
        assert isinstance(document, dict)
        return encode_object(document)
    if representation.media is Media.YAML:
        return _yaml(document)
    if representation.pretty:
        return orjson.dumps(document, default=fragment, option=orjson.OPT_INDENT_2)
    return orjson.dumps(document, default=fragment) + b"\n"


def _yaml(document: Document | list[Document]) -> bytes:
    """Write YAML event by event: PyYAML's own way through nodes takes twice as long, and cannot be suspended."""
    stream = io.BytesIO()
    dumper = yaml.CSafeDumper(stream, encoding="utf-8", allow_unicode=True)
    try:
        dumper.open()
        dumper.emit(yaml.DocumentStartEvent(explicit=False))
        _emit(dumper, document)
        dumper.emit(yaml.DocumentEndEvent(explicit=False))
        dumper.close()
    finally:
        dumper.dispose()
    return stream.getvalue()


def _emit(dumper: yaml.CSafeDumper, value: Any) -> None:
    tick()
    if isinstance(value, str):
        is_plain = dumper.resolve(yaml.ScalarNode, value, (True, False)) == _TEXT  # type: ignore[no-untyped-call]
        # Double quotes, as Kubernetes writes.
        style = None if is_plain else '"'
        dumper.emit(yaml.ScalarEvent(None, _TEXT, (is_plain, True), value, style=style))
    elif isinstance(value, dict):
        dumper.emit(yaml.MappingStartEvent(None, None, implicit=True, flow_style=False))
        for name in sorted(value):
            _emit(dumper, name)
            _emit(dumper, value[name])
        dumper.emit(yaml.MappingEndEvent())
    elif isinstance(value, list):
        dumper.emit(yaml.SequenceStartEvent(None, None, implicit=True, flow_style=False))
        for item in value:
            _emit(dumper, item)
        dumper.emit(yaml.SequenceEndEvent())
    else:
        # YAML is converted from the values, in Kubernetes as well.
        node = dumper.represent_data(float(value) if isinstance(value, RawNumber) else value)
        dumper.emit(yaml.ScalarEvent(None, node.tag, (True, False), node.value))


def encode_object_result(result: ObjectResult, representation: Representation, *, include: str, now: datetime) -> bytes:
    """Encode a stored object."""
    endpoint, entry = result.endpoint, result.entry
    plain = representation.media is Media.JSON and not representation.transform and not representation.pretty
    if plain and endpoint.is_storage_version and endpoint.is_framed(entry.value):
        return endpoint.splice(entry.value, entry.revision) + b"\n"
    document = served_document(endpoint, entry)
    return encode_document(document, endpoint, representation, include=include, now=now)


def encode_document_result(
    result: DocumentResult, representation: Representation, *, include: str, now: datetime
) -> bytes:
    """Encode a document that is not stored."""
    if result.endpoint is None:
        return dump(result.document, Representation(representation.media, pretty=representation.pretty))
    return encode_document(result.document, result.endpoint, representation, include=include, now=now)


def encode_document(
    document: Document, endpoint: Endpoint, representation: Representation, *, include: str, now: datetime
) -> bytes:
    """Encode a served document, transformed if the client asked for a Table or PartialObjectMetadata."""
    return dump(transform(document, endpoint, representation, include=include, now=now), representation)


def transform(
    document: Document, endpoint: Endpoint, representation: Representation, *, include: str, now: datetime
) -> Document:
    """Apply the representation's transformation to one document."""
    if representation.transform == "Table":
        metadata = {"resourceVersion": (document.get("metadata") or {}).get("resourceVersion", "")}
        options = TableOptions(representation.api_version, include, now)
        return table(endpoint, [document], options, list_metadata=metadata)
    if representation.transform:
        return partial_metadata(document, representation.api_version)
    return document


def list_document(endpoint: Endpoint, documents: Sequence[Document], metadata: Document) -> Document:
    """Return a typed list; items of built-in kinds have no kind and apiVersion."""
    items = list(documents)
    if not endpoint.custom:
        for item in items:
            item.pop("kind", None)
            item.pop("apiVersion", None)
    return {
        "kind": endpoint.definition.list_kind,
        "apiVersion": endpoint.api_version,
        "metadata": metadata,
        "items": items,
    }


class FrameEncoder:
    """Encodes the frames of one watch; only the first Table has column definitions."""

    def __init__(self, endpoint: Endpoint, representation: Representation, include: str, on_malformed: Report) -> None:
        self._endpoint = endpoint
        self._on_malformed = on_malformed
        self._representation = representation
        self._include = include
        self._header = True

    def encode(self, frame: WatchFrame, now: datetime) -> bytes:
        """Encode one event in the framing of the media type; nothing of an object that cannot be shown."""
        if frame.entry is None:
            return self._encode(frame, now)
        return unless_malformed(lambda _entry: self._encode(frame, now), frame.entry, self._on_malformed) or b""

    def _encode(self, frame: WatchFrame, now: datetime) -> bytes:
        representation = self._representation
        plain = representation.media is not Media.PROTOBUF and not representation.transform
        is_stored_version = plain and self._endpoint.is_storage_version
        if is_stored_version and frame.entry is not None and self._endpoint.is_framed(frame.entry.value):
            value = self._endpoint.splice(frame.entry.value, frame.entry.revision)
            return b'{"type":"%b","object":%b}\n' % (frame.type.encode(), value)
        document = self._document(frame, now)
        if representation.media is Media.PROTOBUF:
            return watch_frame(frame.type, encode_object(document))
        return b'{"type":"%b","object":%b}\n' % (frame.type.encode(), orjson.dumps(document, default=fragment))

    def _document(self, frame: WatchFrame, now: datetime) -> Document:
        if frame.type == "ERROR":
            assert frame.document is not None
            return frame.document
        if frame.entry is not None:
            document = served_document(self._endpoint, frame.entry)
        else:
            assert frame.document is not None
            document = frame.document
        if frame.type == "BOOKMARK" and self._representation.transform == "Table":
            return self._bookmark_table(document, now)
        if self._representation.transform == "Table":
            return self._table(document, now)
        return transform(document, self._endpoint, self._representation, include=self._include, now=now)

    def _table(self, document: Document, now: datetime) -> Document:
        header, self._header = self._header, False
        options = TableOptions(self._representation.api_version, self._include, now)
        metadata = {"resourceVersion": document["metadata"]["resourceVersion"]}
        return table(self._endpoint, [document], options, list_metadata=metadata, header=header)

    def _bookmark_table(self, document: Document, now: datetime) -> Document:
        bookmark = self._table(document, now)
        bookmark["metadata"] = document["metadata"]
        bookmark["rows"] = []
        return bookmark
