"""The endpoint of a custom resource, whose stored objects may have been written with another schema."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import orjson

from dray.api.document import Document, GroupVersion
from dray.apiserver.custom.schema import CompiledSchema
from dray.apiserver.endpoint import Conversion, Endpoint, ScaleSource
from dray.apiserver.registry.strategy import ResourceDefinition


class SameShape:
    """Conversion between versions that differ only in their name: strategy None."""

    def __init__(self, group: str, storage_version: str) -> None:
        self._group = group
        self._storage_version = storage_version

    def to_hub(self, _version: str, _kind: str, document: Document) -> Document:
        """Convert to the storage version."""
        document["apiVersion"] = GroupVersion(self._group, self._storage_version).api_version
        return document

    def from_hub(self, version: str, _kind: str, document: Document) -> Document:
        """Convert to a served version."""
        document["apiVersion"] = GroupVersion(self._group, version).api_version
        return document


class CustomEndpoint(Endpoint):
    """A custom resource at one version.

    With `exact`, every stored object was written with this schema, so that responses are spliced from the stored bytes;
    otherwise each object is pruned and defaulted when it is read. Its defaults are those of the storage version.
    """

    def __init__(  # noqa: PLR0913 - what the definition says of one version, by name
        self,
        definition: ResourceDefinition,
        version: str,
        schemas: dict[str, CompiledSchema],
        *,
        deprecation: str,
        scaler: ScaleSource | None,
        exact: bool,
        conversion: Conversion | None,
    ) -> None:
        schema = schemas[version]

        def default(document: Document, _now: datetime) -> None:
            schema.default(document)

        super().__init__(
            definition,
            version,
            schema.struct,
            default=default,
            converter=SameShape(definition.group, definition.storage_version),
            custom=True,
            deprecation=deprecation,
            scaler=scaler,
            structs={name: item.struct for name, item in schemas.items()},
        )
        self.schema: Final = schema
        self._stored_schema: Final = schemas[definition.storage_version]
        self.completes_stored = not exact
        self.conversion = conversion

    def normalize(self, document: Document) -> list[str]:
        """Prune what a client or webhook made of an object by the schema of this version, in place."""
        return self.schema.pruner.normalize(document)

    def content(self, hub: Document) -> Document:
        """Return a hub document in its stored form, which has what the storage version has."""
        content = super().content(hub)
        self._stored_schema.pruner.prune(content)
        return content

    def decode(self, value: bytes, revision: int) -> Document:
        """Return a document of a stored value, completed by the schema of the storage version."""
        document = super().decode(value, revision)
        if self.completes_stored:
            document["apiVersion"] = self.storage_api_version
            if self.conversion is not None and self.group_version != self.conversion.storage:
                # It had its defaults before it was converted.
                return document
            self._stored_schema.complete_stored(document)
            if self._stored_schema is not self.schema:
                self.schema.pruner.prune(document)
        return document

    def splice(self, value: bytes, revision: int) -> bytes:
        """Return the stored value as JSON, with its resourceVersion."""
        if self.completes_stored:
            return orjson.dumps(self.served(self.decode(value, revision)))
        return super().splice(value, revision)
