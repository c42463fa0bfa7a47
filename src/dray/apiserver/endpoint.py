"""A resource at one served version, with everything precomputed that a request to it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final, Protocol

import orjson

from dray.api.defaults import OF_SPEC_ALONE, Defaulter
from dray.api.document import Document, GroupResource, GroupVersion, GroupVersionKind, copy_document
from dray.api.go_json import escape_html
from dray.api.protobuf import has_protobuf
from dray.api.raw_numbers import MARK, dump_stored, load_stored
from dray.api.schema.load import kind_type
from dray.api.schema.model import StructType, has_raw_values
from dray.api.strict import check_fields
from dray.apiserver.registry.strategy import ResourceDefinition, Subresource
from dray.store.interface import Store, StoreError

KEY_ROOT: Final = "/registry/"


class Converter(Protocol):
    """Translates documents of a kind between its versions and the hub."""

    def to_hub(self, version: str, kind: str, document: Document) -> Document:
        """Convert a served version to the hub version."""

    def from_hub(self, version: str, kind: str, document: Document) -> Document:
        """Convert the hub version to a served version."""


class ScaleSource(Protocol):
    """Reads and writes the number of replicas of an object."""

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint of the Scale kind itself."""

    @property
    def replicas_path(self) -> tuple[str, ...]:
        """The field of the object with the replicas."""

    def scale_of(self, document: Document) -> Document:
        """Return the Scale of a served object."""

    def set_replicas(self, document: Document, scale: Document, name: str) -> None:
        """Set the replicas of a served object."""


class ConversionFailedError(StoreError):
    """A webhook did not convert an object; the text is what the client gets."""


class Conversion(Protocol):
    """Converts the objects of a custom resource by a webhook; raises `ConversionFailedError`."""

    @property
    def storage(self) -> GroupVersion:
        """The group version in which objects are stored."""

    async def convert(self, documents: Sequence[Document], api_version: str) -> list[Document]:
        """Return the documents in a version."""

    def on(self, store: Store, api_version: str) -> Store:
        """Return the store for requests in a version: all that it reads and writes has that version."""


class SameVersion:
    """The converter of groups with one version."""

    def to_hub(self, _version: str, _kind: str, document: Document) -> Document:
        """Nothing to do."""
        return document

    def from_hub(self, _version: str, _kind: str, document: Document) -> Document:
        """Nothing to do."""
        return document


# Of an object, marked or not.
_ENDS: Final = (b"}", b"}" + MARK)


class Endpoint:
    """One resource at one version; immutable.

    Stored values are JSON in the storage version. They begin with `head` and have no resourceVersion, which is spliced
    into a response in that version without parsing.
    """

    # If a webhook converts the objects. The endpoint then works on `conversion.on(store, ...)`, in which they have its
    # own version.
    conversion: Conversion | None = None
    # Whether `decode` changes stored objects, which may have been written with another schema.
    completes_stored: bool = False

    def __init__(  # noqa: PLR0913 - the parts of an endpoint, by name
        self,
        definition: ResourceDefinition,
        version: str,
        struct: StructType | None = None,
        *,
        default: Defaulter | None = None,
        converter: Converter | None = None,
        custom: bool = False,
        deprecation: str = "",
        creation_warning: str = "",
        scaler: ScaleSource | None = None,
        structs: Mapping[str, StructType] | None = None,
        home: GroupVersion | None = None,
    ) -> None:
        self.definition: Final = definition
        self.version: Final = version
        self.default: Final = default
        self.custom: Final = custom
        self.deprecation: Final = deprecation
        # The answer to a create has this warning; empty for none.
        self.creation_warning: Final = creation_warning
        # The paths of a custom resource's scale subresource; None for the default paths.
        self.scaler: Final = scaler
        self.group_version: Final = GroupVersion(definition.group, version)
        # The types of all served versions, this one included; built-in ones are loaded when they are needed.
        self._structs: Final = structs or ({} if struct is None else {version: struct})
        self.gvk: Final = GroupVersionKind(definition.group, version, definition.kind)
        self.api_version: Final = self.group_version.api_version
        self.resource: Final = GroupResource(definition.group, definition.resource)
        # Objects may be stored by another group (events.k8s.io serves those of the core group).
        stored = home or GroupVersion(definition.group, definition.storage_version)
        self.is_storage_version: Final = stored == self.group_version
        self.storage_api_version: Final = stored.api_version
        # Whether an update needs a resourceVersion, and a delete returns a Status, because of the version.
        self.is_conditional: Final = version in definition.conditional_versions
        # Whether nothing but the spec has defaults, so that a write of the status needs none.
        self.defaults_spec_alone: Final = self.gvk in OF_SPEC_ALONE and self.is_storage_version
        self.subresources: Final[Mapping[str, Subresource]] = {row.name: row for row in definition.all_subresources()}
        self._converter: Final[Converter] = converter or SameVersion()
        kind, api_version = orjson.dumps(definition.kind), orjson.dumps(self.storage_api_version)
        self.type_head: Final = b'{"kind":' + kind + b',"apiVersion":' + api_version + b","
        self.head: Final = self.type_head + b'"metadata":{'
        self.prefix: Final = f"{KEY_ROOT}{stored.group or 'core'}/{definition.resource}/"

    @property
    def stored(self) -> GroupVersion:
        """The group version in which objects are stored."""
        storage = GroupVersion(self.definition.group, self.definition.storage_version)
        return storage if self.conversion is None else self.conversion.storage

    @cached_property
    def struct(self) -> StructType:
        """The type of the resource at this version."""
        found = self._struct_at(self.version)
        assert found is not None, f"no schema for {self.gvk}"
        return found

    @property
    def stored_struct(self) -> StructType | None:
        """The type of stored objects; None if it is not known."""
        if self.is_storage_version:
            return self.struct
        return self._struct_at(self.definition.storage_version)

    @cached_property
    def has_protobuf(self) -> bool:
        """Whether objects have a protobuf encoding; custom resources and kinds without field numbers do not."""
        return not self.custom and has_protobuf(self.gvk)

    @cached_property
    def _has_raw_values(self) -> bool:
        return not self.custom and has_raw_values(self.struct)

    def _struct_at(self, version: str) -> StructType | None:
        if self._structs or version not in self.definition.versions:
            return self._structs.get(version)
        return kind_type(GroupVersionKind(self.definition.group, version, self.definition.kind))

    def key(self, namespace: str, name: str) -> str:
        """Return the key of the object in the store."""
        if self.definition.namespaced:
            return f"{self.prefix}{namespace}/{name}"
        return self.prefix + name

    def scope_prefix(self, namespace: str) -> str:
        """Return the key prefix of a namespace; an empty namespace means all of them."""
        return f"{self.prefix}{namespace}/" if namespace else self.prefix

    def content(self, hub: Document) -> Document:
        """Return a hub document in its stored form: fields in order, without the resourceVersion."""
        metadata = dict(hub["metadata"])
        metadata.pop("resourceVersion", None)
        first = {"kind": self.definition.kind, "apiVersion": self.storage_api_version, "metadata": metadata}
        # The left side sets the order, the right side the values.
        return first | hub | first

    def dump(self, content: Document) -> bytes:
        """Encode the stored form of a document."""
        # orjson's result keeps the buffer it was written into, several times its size; a copy does not.
        if self._has_raw_values:
            return escape_html(bytes(memoryview(dump_stored(content))))
        return bytes(memoryview(orjson.dumps(content)))

    def decode(self, value: bytes, revision: int) -> Document:
        """Return a new hub document of a stored value, with its resourceVersion."""
        document = load_stored(value)
        document["metadata"]["resourceVersion"] = str(revision)
        return document

    def is_framed(self, value: bytes) -> bool:
        """Return whether a stored value begins and ends as all that this server writes, so that it can be spliced."""
        return value.startswith(self.head) and value.endswith(_ENDS)

    def splice(self, value: bytes, revision: int) -> bytes:
        """Return the stored value as JSON in the storage version, with its resourceVersion."""
        return b'%b"resourceVersion":"%d",%b' % (self.head, revision, value[len(self.head) :])

    def splice_item(self, value: bytes, revision: int) -> bytes:
        """Like `splice`, without kind and apiVersion, for items of a list."""
        return b'{"metadata":{"resourceVersion":"%d",%b' % (revision, value[len(self.head) :])

    def normalize(self, document: Document) -> list[str]:
        """Bring what a client or webhook made of an object of this version into the form of stored objects, in place.

        Whatever enters the store has passed here, or is made by the server of what has. Returns the errors of unknown
        fields, which are dropped; raises `DecodeError` for a value of another type.
        """
        return check_fields(document, self.struct)

    def to_hub(self, document: Document) -> Document:
        """Convert a document of this endpoint's version to the hub version."""
        if self.is_storage_version:
            return document
        return self._converter.to_hub(self.version, self.definition.kind, document)

    def from_hub(self, document: Document) -> Document:
        """Convert a hub document to this endpoint's version."""
        if self.is_storage_version:
            return document
        return self._converter.from_hub(self.version, self.definition.kind, document)

    def from_hub_copy(self, document: Document) -> Document:
        """Like `from_hub`, without modifying the given document."""
        return document if self.is_storage_version else self.from_hub(copy_document(document))

    def convert_served(self, document: Document, api_version: str) -> tuple[Document, StructType] | None:
        """Convert a document to another served version; return it with its type, or None if that is not served."""
        place = GroupVersion.parse(api_version)
        struct = self._struct_at(place.version) if place.group == self.definition.group else None
        if struct is None or place.version == self.version:
            return None if struct is None else (document, struct)
        hub = self.to_hub(copy_document(document))
        if place.version != self.definition.storage_version:
            hub = self._converter.from_hub(place.version, self.definition.kind, hub)
        return hub, struct

    def served(self, document: Document) -> Document:
        """Return a hub document in this version, with kind and apiVersion first."""
        document = self.from_hub(document)
        first: Document = {"kind": self.definition.kind, "apiVersion": self.api_version}
        # The left side sets the order, the right side the values.
        return first | document | first

    def with_kind(self, document: Document) -> Document:
        """Return a document of this version with kind and apiVersion first; the result shares its parts."""
        first: Document = {"kind": self.definition.kind, "apiVersion": self.api_version}
        return first | document | first

    def served_of_shared(self, document: Document) -> Document:
        """Like `served`, for a shared document; the result may share its parts and must not be modified."""
        return self.served(document if self.is_storage_version else copy_document(document))
