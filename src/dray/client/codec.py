"""Objects as their resource's Python type, and back to documents."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
import orjson

from dray.api.codec import to_document
from dray.api.document import Document, NamespacedName
from dray.api.errors import InternalError
from dray.api.types import Message, PartlyDecoded
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.client.equal_parts import EqualParts
from dray.client.interface import Resource, Undecodable

T = TypeVar("T")

# The events of a group commit; a watcher that is further behind decodes by itself. With 128, one object in ten was
# decoded twice while 3,000 Pods with claims were created.
SHARED_OBJECTS_MAX: Final = 256

# All caches of a process hold the same objects, or similar ones.
_PARTS: Final = EqualParts()
# The types of which there are many objects: the parts of one that are equal to those of others are held only once.
_SHARE_PARTS: Final[Mapping[type, Callable[[Any], None]]] = {
    Pod: _PARTS.share_pod,
    ResourceClaim: _PARTS.share_claim,
}


def decode(resource: Resource[T], document: Document) -> T:
    """The document as the resource's type; documents are passed through, not copied."""
    if resource.type is dict:
        return document  # type: ignore[return-value]
    if issubclass(resource.type, PartlyDecoded):
        return decode_json(resource, orjson.dumps(document))
    try:
        decoded = msgspec.convert(document, resource.type)
    except msgspec.ValidationError as error:
        raise UndecodableError(resource, str(error)) from error
    share_parts = _SHARE_PARTS.get(resource.type)
    if share_parts is not None:
        share_parts(decoded)
    return decoded


def decode_json(resource: Resource[T], body: bytes) -> T:
    """The JSON of an object as the resource's type: several times as fast as by way of a document."""
    try:
        decoded: T = _decoder(resource.type).decode(body)  # type: ignore[arg-type]
    except msgspec.DecodeError as error:
        raise UndecodableError(resource, str(error)) from error
    share_parts = _SHARE_PARTS.get(resource.type)
    if share_parts is not None:
        share_parts(decoded)
    return decoded


@cache
def _decoder(type_: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type_)


class UndecodableError(InternalError):
    """An object that does not decode as its kind."""

    def __init__(self, resource: Resource[Any], problem: str) -> None:
        super().__init__(f"{resource.group_version_kind} does not decode: {problem}")
        self.problem = problem


def undecodable(document: object, problem: str) -> Undecodable:
    """What is known of an object that does not decode, none of whose fields need be of its type."""
    metadata = document.get("metadata") if isinstance(document, dict) else None
    known = metadata if isinstance(metadata, dict) else {}
    texts = [known.get(name) for name in ("namespace", "name", "uid", "resourceVersion")]
    namespace, name, uid, resource_version = (text if isinstance(text, str) else "" for text in texts)
    return Undecodable(NamespacedName(namespace, name), uid, resource_version, problem)


class SharedObjects:
    """Decodes documents that several clients of one process get to see, each once for all of them.

    Neither the documents nor the decoded objects may be modified.
    """

    def __init__(self, size_max: int = SHARED_OBJECTS_MAX) -> None:
        self._size_max = size_max
        # By the document's identity, which it keeps for as long as it is kept here; oldest first. Only the type decoded
        # last is kept: clients need different types of few documents (the dashboard has its own of ResourceSlices).
        self._known: OrderedDict[int, tuple[Document, type, Any]] = OrderedDict()

    def decode(self, resource: Resource[T], document: Document) -> T:
        """The document as the resource's type; documents are passed through."""
        type_ = resource.type
        if type_ is dict:
            return document  # type: ignore[return-value]
        decoded: T
        known = self._known.get(id(document))
        if known is not None and known[1] is type_:
            decoded = known[2]
            return decoded
        decoded = decode(resource, document)
        if known is None and len(self._known) >= self._size_max:
            self._known.popitem(last=False)
        self._known[id(document)] = (document, type_, decoded)
        return decoded


def encode(resource: Resource[Any], obj: Any) -> Document:
    """A fresh document of the object, with its apiVersion and kind."""
    document: Document
    if isinstance(obj, dict):
        document = _copied(obj)
    elif isinstance(obj, Message):
        document = to_document(obj)
    else:
        document = msgspec.to_builtins(obj)
    document["apiVersion"] = f"{resource.group}/{resource.version}" if resource.group else resource.version
    document["kind"] = resource.kind
    return document


# Values of other types than those of JSON are copied as they are, by `copy_json`.
_JSON_ONLY: Final = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


def _copied(document: Document) -> Document:
    """A deep copy through JSON text, which is twice as fast as `copy_json`."""
    try:
        copied: Document = orjson.loads(orjson.dumps(document, option=_JSON_ONLY))
    except TypeError:
        copied = copy_json(document)
    return copied


def copy_json(value: Any) -> Any:
    """A deep copy of JSON data; several times quicker than `copy.deepcopy`."""
    if type(value) is dict:
        return {key: copy_json(item) if type(item) in _NESTED else item for key, item in value.items()}
    if type(value) is list:
        return [copy_json(item) if type(item) in _NESTED else item for item in value]
    if isinstance(value, Mapping):
        return {key: copy_json(item) for key, item in value.items()}
    return value


_NESTED = frozenset({dict, list})
