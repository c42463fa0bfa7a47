"""A resource at one served version, with everything precomputed that a request to it needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import orjson

from dray.api.defaults import Defaulter
from dray.api.document import Document, GroupResource, GroupVersion, GroupVersionKind, copy_document
from dray.api.schema.model import StructType
from dray.apiserver.registry.strategy import ResourceDefinition

KEY_ROOT: Final = "/registry/"


class Converter(Protocol):
    """Translates documents of a kind between its versions and the hub."""

    def to_hub(self, version: str, kind: str, document: Document) -> Document:
        """From a served version to the hub version."""

    def from_hub(self, version: str, kind: str, document: Document) -> Document:
        """From the hub version to a served one."""


class ScaleSource(Protocol):
    """Reads and writes the number of replicas of an object."""

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint of the Scale kind itself."""

    def scale_of(self, document: Document) -> Document:
        """The Scale of a served object."""

    def set_replicas(self, document: Document, scale: Document, name: str) -> None:
        """Write the wanted number into a served object."""


class SameVersion:
    """The converter of groups with one version."""

    def to_hub(self, _version: str, _kind: str, document: Document) -> Document:
        """Nothing to do."""
        return document

    def from_hub(self, _version: str, _kind: str, document: Document) -> Document:
        """Nothing to do."""
        return document


class Endpoint:
    """One resource at one version; immutable once built.

    Stored values are JSON in the storage version, beginning with `head` and without a resourceVersion, so
    that an answer in that version is made by splicing bytes instead of parsing.
    """

    def __init__(  # noqa: PLR0913 - the parts of an endpoint, by name
        self,
        definition: ResourceDefinition,
        version: str,
        struct: StructType,
        *,
        default: Defaulter | None = None,
        converter: Converter | None = None,
        custom: bool = False,
        deprecation: str = "",
        scaler: ScaleSource | None = None,
        structs: Mapping[str, StructType] | None = None,
        home: GroupVersion | None = None,
    ) -> None:
        self.definition: Final = definition
        self.version: Final = version
        self.struct: Final = struct
        self.default: Final = default
        self.custom: Final = custom
        self.deprecation: Final = deprecation
        # Where a custom resource keeps its replicas; None for the usual place.
        self.scaler: Final = scaler
        self.group_version: Final = GroupVersion(definition.group, version)
        # The types of all served versions, this one included.
        self._structs: Final = structs or {version: struct}
        self.gvk: Final = GroupVersionKind(definition.group, version, definition.kind)
        self.api_version: Final = self.group_version.api_version
        self.resource: Final = GroupResource(definition.group, definition.resource)
        # Another group may keep the objects (events.k8s.io shows those of the core group).
        stored = home or GroupVersion(definition.group, definition.storage_version)
        self.is_storage_version: Final = stored == self.group_version
        self.storage_api_version: Final = stored.api_version
        self._converter: Final[Converter] = converter or SameVersion()
        kind, api_version = orjson.dumps(definition.kind), orjson.dumps(self.storage_api_version)
        self.type_head: Final = b'{"kind":' + kind + b',"apiVersion":' + api_version + b","
        self.head: Final = self.type_head + b'"metadata":{'
        self.prefix: Final = f"{KEY_ROOT}{stored.group or 'core'}/{definition.resource}/"

    def key(self, namespace: str, name: str) -> str:
        """Where the store keeps the object."""
        if self.definition.namespaced:
            return f"{self.prefix}{namespace}/{name}"
        return self.prefix + name

    def scope_prefix(self, namespace: str) -> str:
        """The prefix of a collection; an empty namespace means all of them."""
        return f"{self.prefix}{namespace}/" if namespace else self.prefix

    def content(self, hub: Document) -> Document:
        """A hub document as it is stored: in order, and without its resourceVersion."""
        metadata = dict(hub["metadata"])
        metadata.pop("resourceVersion", None)
        first = {"kind": self.definition.kind, "apiVersion": self.storage_api_version, "metadata": metadata}
        # The left side sets the order, the right side the values.
        return first | hub | first

    def dump(self, content: Document) -> bytes:
        """The stored value of a content."""
        # orjson's result keeps the buffer it was written into, several times its size; a copy does not.
        return bytes(memoryview(orjson.dumps(content)))

    def decode(self, value: bytes, revision: int) -> Document:
        """A fresh hub document of a stored value, with its resourceVersion."""
        document: Document = orjson.loads(value)
        document["metadata"]["resourceVersion"] = str(revision)
        return document

    def splice(self, value: bytes, revision: int) -> bytes:
        """The stored value as JSON in the storage version, with its resourceVersion."""
        return b'%b"resourceVersion":"%d",%b' % (self.head, revision, value[len(self.head) :])

    def splice_item(self, value: bytes, revision: int) -> bytes:
        """Like `splice`, without kind and apiVersion, as items of a list are written."""
        return b'{"metadata":{"resourceVersion":"%d",%b' % (revision, value[len(self.head) :])

    def to_hub(self, document: Document) -> Document:
        """From this endpoint's version to the hub's."""
        if self.is_storage_version:
            return document
        return self._converter.to_hub(self.version, self.definition.kind, document)

    def from_hub(self, document: Document) -> Document:
        """From the hub's version to this endpoint's."""
        if self.is_storage_version:
            return document
        return self._converter.from_hub(self.version, self.definition.kind, document)

    def from_hub_copy(self, document: Document) -> Document:
        """Like `from_hub`, leaving the given document as it is."""
        return document if self.is_storage_version else self.from_hub(copy_document(document))

    def convert_served(self, document: Document, api_version: str) -> tuple[Document, StructType] | None:
        """From this endpoint's version to another one of the same kind, with its type; None when it is not served."""
        place = GroupVersion.parse(api_version)
        struct = self._structs.get(place.version) if place.group == self.definition.group else None
        if struct is None or place.version == self.version:
            return None if struct is None else (document, struct)
        hub = self.to_hub(copy_document(document))
        if place.version != self.definition.storage_version:
            hub = self._converter.from_hub(place.version, self.definition.kind, hub)
        return hub, struct

    def served(self, document: Document) -> Document:
        """A hub document in this version, with kind and apiVersion first."""
        document = self.from_hub(document)
        first: Document = {"kind": self.definition.kind, "apiVersion": self.api_version}
        # The left side sets the order, the right side the values.
        return first | document | first

    def served_of_shared(self, document: Document) -> Document:
        """Like `served`, of a document whose parts others share; so are then those of the result."""
        return self.served(document if self.is_storage_version else copy_document(document))
