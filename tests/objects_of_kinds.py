"""One small object of each kind that the API server stores, and the empty values that decoding drops from objects."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson
import yaml

from dray.api.document import Document, GroupVersion
from dray.api.schema.model import Field, ListOf, MapOf, Scalar, StructType, Type
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.registry import builtin

_FILE: Final = Path(__file__).with_name("data") / "one_of_each_kind.yaml"
_METADATA: Final = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
# In an apply, a null version is no version; an empty list of managers removes all.
_SPEAKING_METADATA: Final = ("managedFields", "resourceVersion", "uid")
_EMPTY: Final[dict[Scalar, Any]] = {
    Scalar.STRING: "",
    Scalar.INT32: 0,
    Scalar.INT64: 0,
    Scalar.DOUBLE: 0,
    Scalar.BOOL: False,
    Scalar.BYTES: "",
}


def endpoint_of(document: Document) -> Endpoint:
    """The endpoint of a document's kind and version."""
    gvk = GroupVersion.parse(document["apiVersion"]).kind(document["kind"])
    return next(item for item in builtin.endpoints() if item.gvk == gvk and "create" in item.definition.verbs)


def one_of_each_kind() -> dict[str, Document]:
    """An object of each kind, by `group/version/resource`."""
    found: dict[str, Document] = {}
    for document in yaml.safe_load_all(_FILE.read_text()):
        endpoint = endpoint_of(document)
        if endpoint.definition.namespaced:
            document["metadata"]["namespace"] = "default"
        found[f"{endpoint.resource.group or 'core'}/{endpoint.version}/{endpoint.resource.resource}"] = document
    return found


class Emptiness:
    """Adds values to objects that Go's decoder and encoder drop: null, empty text, zero, empty lists and maps."""

    def __init__(self, rng: random.Random, chance: float) -> None:
        self._rng = rng
        self._chance = chance
        # How many values were added.
        self.added = 0

    def noisy(self, document: Document, struct: StructType) -> Document:
        """A copy of the object with some more members, which say nothing."""
        noisy: Document = orjson.loads(orjson.dumps(document))
        self._struct(noisy, struct, ("apiVersion", "kind", "status"))
        return noisy

    def _struct(self, value: Document, struct: StructType, spared: tuple[str, ...] = ()) -> None:
        if struct.name == _METADATA:
            spared = _SPEAKING_METADATA
        for field in struct.fields.values():
            if field.name in value:
                self._value(value[field.name], field.type)
            elif field.name not in spared and self._rng.random() < self._chance:
                value[field.name] = self._rng.choice([*_nothings(struct, field)])
                self.added += 1

    def _value(self, value: Any, kind: Type, keys: tuple[str, ...] = ()) -> None:
        if isinstance(kind, StructType) and isinstance(value, dict):
            self._struct(value, kind, keys)
        elif isinstance(kind, ListOf) and isinstance(value, list):
            for item in value:
                # To server-side apply, null is a key of its own.
                self._value(item, kind.element, kind.map_keys)
        elif isinstance(kind, MapOf) and isinstance(value, dict):
            for item in value.values():
                self._value(item, kind.element)


def _nothings(struct: StructType, field: Field) -> Iterator[Any]:
    """The values of a field that mean the same as leaving it out."""
    yield None
    if isinstance(field.type, StructType):
        if field.always:
            yield {}
        return
    if field.required or field.pointer or field.default is not None:
        return
    if isinstance(field.type, ListOf):
        yield []
    elif isinstance(field.type, MapOf):
        yield {}
    elif field.type in _EMPTY:
        yield _EMPTY[field.type]
