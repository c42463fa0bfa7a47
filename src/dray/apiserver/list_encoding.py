"""Encodes lists item by item, so that the encoding of a long one can be interrupted. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final

import orjson

from dray.api.document import Document, GroupVersionKind
from dray.api.protobuf import encode_list as encode_protobuf_list
from dray.api.protobuf import encode_message
from dray.api.raw_numbers import fragment
from dray.apiserver.call import ListResult
from dray.apiserver.encoding import dump, served_document
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.negotiation import Media, Representation
from dray.apiserver.shown_values import Report, each_shown, fail
from dray.apiserver.tables import TableOptions, partial_metadata, table, table_row
from dray.store.interface import Entry

# Items between two interruptions; the largest take some 100 microseconds each.
_STEP_ITEMS: Final = 8


def encode_list(result: ListResult, representation: Representation, *, include: str, now: datetime) -> bytes:
    """Encode a list without interruption."""
    encoder = ListEncoder(result, representation, include=include, now=now)
    for _ in encoder.steps():
        pass
    return encoder.body()


class ListEncoder:
    """Encodes one list; `body` is complete after the last of the `steps`."""

    def __init__(
        self,
        result: ListResult,
        representation: Representation,
        *,
        include: str,
        now: datetime,
        on_malformed: Report = fail,
    ) -> None:
        self._result = result
        self._on_malformed = on_malformed
        self._endpoint = result.endpoint
        self._representation = representation
        self._options = TableOptions(representation.api_version, include, now)
        self._items: list[Any] = []

    def steps(self) -> Iterator[None]:
        """Encode some items in each step."""
        entries, encode, items = self._result.entries, self._item_encoder(), self._items
        for start in range(0, len(entries), _STEP_ITEMS):
            items += each_shown(encode, entries[start : start + _STEP_ITEMS], self._on_malformed)
            yield

    def body(self) -> bytes:
        """Return the response body."""
        representation, items = self._representation, self._items
        shell, key = self._shell()
        if representation.media is Media.PROTOBUF and not representation.transform:
            return encode_protobuf_list(self._list_kind(), self._result.metadata(), items)
        if representation.media is Media.JSON:
            if representation.pretty:
                shown = dump({**shell, key: []}, representation)
                rows = b"[\n    %b\n  ]" % b",\n    ".join(items) if items else b"[]"
                return b"%b%b\n}" % (shown.removesuffix(b"[]\n}"), rows)
            return b'%b,"%b":[%b]}\n' % (orjson.dumps(shell)[:-1], key.encode(), b",".join(items))
        if representation.media is Media.YAML and items:
            before = {name: value for name, value in shell.items() if name < key}
            after = {name: value for name, value in shell.items() if name > key}
            parts = (before, after)
            first, last = (dump(part, representation) if part else b"" for part in parts)
            return b"%b%b:\n%b%b" % (first, key.encode(), b"".join(items), last)
        return dump({**shell, key: items}, representation)

    def _item_encoder(self) -> Callable[[Entry], Any]:
        representation, endpoint = self._representation, self._endpoint
        if representation.media is Media.JSON:
            if representation.pretty:
                # Within JSON, line breaks stand only between values.
                return lambda entry: dump(self._item(entry), representation).replace(b"\n", b"\n    ")
            if not representation.transform:
                return lambda entry: _json_item(endpoint, entry)
            return lambda entry: orjson.dumps(self._item(entry), default=fragment)
        if representation.media is Media.PROTOBUF and not representation.transform:
            return lambda entry: encode_message(self._item(entry), endpoint.struct)
        if representation.media is Media.YAML:
            # The elements of a list in a mapping are not indented.
            return lambda entry: dump([self._item(entry)], representation)
        return self._item

    def _item(self, entry: Entry) -> Document:
        document, transform = served_document(self._endpoint, entry), self._representation.transform
        if transform == "Table":
            return table_row(self._endpoint, document, self._options)
        if transform:
            return partial_metadata(document, self._representation.api_version)
        return list_item(self._endpoint, document)

    def _shell(self) -> tuple[Document, str]:
        """Return the list without its items, and the field of the items."""
        transform, metadata = self._representation.transform, self._result.metadata()
        if transform == "Table":
            shell = table(self._endpoint, (), self._options, list_metadata=metadata)
            del shell["rows"]
            return shell, "rows"
        kind, api_version = self._endpoint.definition.list_kind, self._endpoint.api_version
        if transform:
            kind, api_version = "PartialObjectMetadataList", self._representation.api_version
        return {"kind": kind, "apiVersion": api_version, "metadata": metadata}, "items"

    def _list_kind(self) -> GroupVersionKind:
        return self._endpoint.group_version.kind(self._endpoint.definition.list_kind)


def list_item(endpoint: Endpoint, document: Document) -> Document:
    """Return a served document as the item of a list; those of built-in kinds have no kind and apiVersion."""
    if not endpoint.custom:
        document.pop("kind", None)
        document.pop("apiVersion", None)
    return document


def _json_item(endpoint: Endpoint, entry: Entry) -> bytes:
    if endpoint.is_storage_version and endpoint.is_framed(entry.value):
        if endpoint.custom:
            return endpoint.splice(entry.value, entry.revision)
        return endpoint.splice_item(entry.value, entry.revision)
    return orjson.dumps(list_item(endpoint, served_document(endpoint, entry)), default=fragment)
