"""Documents shared by all who hear of a write: the right one, at the right revision, and not too many of them."""

from __future__ import annotations

import orjson

from dray.api.raw_numbers import MARK, RawNumber, dump_stored
from dray.apiserver.document_cache import DocumentCache
from dray.store.interface import Entry


def value(name: str, size: int = 0) -> bytes:
    return orjson.dumps({"kind": "ConfigMap", "metadata": {"name": name}, "data": {"text": "x" * size}})


def entry(content: bytes, revision: int) -> Entry:
    return Entry("/registry/core/configmaps/default/a", content, revision, 1)


def test_an_entry_is_parsed_once() -> None:
    documents, content = DocumentCache(), value("a")
    first = documents.document(entry(content, 7))
    assert first["metadata"] == {"name": "a", "resourceVersion": "7"}
    assert documents.document(entry(content, 7)) is first


def test_the_same_value_at_another_revision_is_another_document() -> None:
    documents, content = DocumentCache(), value("a")
    put = documents.document(entry(content, 7))
    gone = documents.document(entry(content, 8))
    assert (put["metadata"]["resourceVersion"], gone["metadata"]["resourceVersion"]) == ("7", "8")
    assert gone["data"] is put["data"]


def test_what_was_written_is_not_parsed_at_all() -> None:
    documents, content = DocumentCache(), value("a")
    data = {"text": ""}
    documents.add(content, {"kind": "ConfigMap", "metadata": {"name": "a"}, "data": data})
    found = documents.document(entry(content, 9))
    assert found["data"] is data
    assert found["metadata"]["resourceVersion"] == "9"


def test_it_is_bounded_by_number_and_by_size() -> None:
    documents = DocumentCache(size_max=3, bytes_max=2_000)
    small = [value(str(number)) for number in range(4)]
    before = [documents.document(entry(content, 5)) for content in small]
    assert documents.document(entry(small[3], 5)) is before[3]
    assert documents.document(entry(small[0], 5)) is not before[0]
    large = [value(str(number), 1_500) for number in range(2)]
    kept = [documents.document(entry(content, 6)) for content in large]
    assert documents.document(entry(large[1], 6)) is kept[1]
    assert documents.document(entry(large[0], 6)) is not kept[0]


def test_a_document_with_raw_numbers_is_not_plain() -> None:
    documents, content = DocumentCache(), dump_stored({"metadata": {"name": "a"}, "data": {"n": RawNumber("1e400")}})
    assert content.endswith(MARK)
    assert documents.plain_document(entry(content, 5)) is None
    documents.document(entry(content, 5))
    assert documents.plain_document(entry(content, 5)) is None
    documents.add(written := bytes(bytearray(content)), {"metadata": {"name": "a"}})
    assert documents.plain_document(entry(written, 6)) is None


def test_a_plain_document_is_the_shared_one() -> None:
    documents, content = DocumentCache(), value("a")
    put = documents.plain_document(entry(content, 7))
    assert put is documents.document(entry(content, 7))
    gone = documents.plain_document(entry(content, 8))
    assert gone is documents.document(entry(content, 8))
    assert gone is not None
    assert gone["metadata"]["resourceVersion"] == "8"
