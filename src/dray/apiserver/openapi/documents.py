"""The OpenAPI documents of the server: an index with hashes, one v3 document per group-version, one v2 for all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import orjson

from dray.api.document import Document, GroupVersion, GroupVersionKind
from dray.api.features import KUBERNETES_RELEASE
from dray.api.schema import load
from dray.apiserver.catalog import Catalog
from dray.apiserver.openapi.custom import add_custom, custom_name
from dray.apiserver.openapi.descriptions import source_version
from dray.apiserver.openapi.gnostic import encode_v2
from dray.apiserver.openapi.paths import DELETE_OPTIONS, STATUS, Operations, Resource
from dray.apiserver.openapi.schemas import PATCH, V2, V3, Definitions, Dialect
from dray.apiserver.registry.strategy import Content, ResourceDefinition, Subresource
from dray.lib.processor_time import check

# Incremented when the format of the documents changes, so that clients discard cached ones.
_FORM: Final = 1

_INFO: Final = {"title": "Kubernetes", "version": KUBERNETES_RELEASE}
_SECURITY: Final[list[Document]] = [{"BearerToken": []}]
_SECURITY_SCHEME: Final = {
    "BearerToken": {"type": "apiKey", "in": "header", "name": "authorization", "description": "Bearer token"}
}

# Cache key of the v2 document in protobuf form; not a path of a group-version.
_V2_PROTOBUF: Final = "protobuf"

_META_GROUP: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"


@dataclass(frozen=True, slots=True)
class Served:
    """A resource at one version; `schema` is the structural schema of a custom one."""

    definition: ResourceDefinition
    version: str
    custom: bool = False
    schema: Document | None = None
    list_kind: str = ""

    @property
    def gvk(self) -> GroupVersionKind:
        """Return the served kind."""
        return GroupVersionKind(self.definition.group, self.version, self.definition.kind)

    @property
    def list_gvk(self) -> GroupVersionKind:
        """Return the kind of its lists."""
        return GroupVersionKind(self.definition.group, self.version, self.list_kind or self.definition.list_kind)


class Documents:
    """Documents by path, built on first use and cached until `generation` changes."""

    def __init__(self, served: Callable[[], Iterable[Served]], generation: Callable[[], int] = lambda: 0) -> None:
        self._served = served
        self._generation = generation
        self._seen: int | None = None
        self._by_path: dict[str, list[Served]] = {}
        self._hashes: dict[str, str] = {}
        # Document bytes by path, each with its hash.
        self._documents: dict[str, tuple[str, bytes]] = {}
        self._index = b""

    def index(self) -> bytes:
        """Return the v3 index of the documents of all group-versions."""
        self._refresh()
        return self._index

    def document(self, path: str) -> tuple[bytes, str] | None:
        """Return the v3 document of a path such as `apis/apps/v1` and its hash; None when nothing is served there."""
        self._refresh()
        digest = self._hashes.get(path)
        if digest is None:
            return None
        return self._kept(path, digest, lambda: _document(self._by_path[path], V3)), digest

    def v2(self) -> bytes:
        """Return the v2 document."""
        self._refresh()
        digest = _digest(orjson.dumps(self._hashes))
        everything = [served for group in self._by_path.values() for served in group]
        return self._kept("", digest, lambda: _document(everything, V2))

    def v2_protobuf(self) -> bytes:
        """Return the v2 document in protobuf form, for old clients."""
        document = self.v2()
        return self._kept(_V2_PROTOBUF, self._documents[""][0], lambda: encode_v2(orjson.loads(document)))

    def _kept(self, path: str, digest: str, make: Callable[[], bytes]) -> bytes:
        kept = self._documents.get(path)
        if kept is None or kept[0] != digest:
            kept = self._documents[path] = digest, make()
        return kept[1]

    def _refresh(self) -> None:
        generation = self._generation()
        if generation == self._seen:
            return
        by_path: dict[str, list[Served]] = {}
        for served in self._served():
            by_path.setdefault(_path(served.gvk.group_version), []).append(served)
        hashes = {}
        for path, group in sorted(by_path.items()):
            check()
            hashes[path] = _fingerprint(group)
        # An older generation may be kept over a newer one, and is replaced at the next request.
        self._seen, self._by_path, self._hashes = generation, by_path, hashes
        for path in self._documents.keys() - self._hashes.keys() - {"", _V2_PROTOBUF}:
            del self._documents[path]
        paths = {
            path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"} for path, digest in self._hashes.items()
        }
        self._index = orjson.dumps({"paths": paths})


def _path(group_version: GroupVersion) -> str:
    return f"apis/{group_version.api_version}" if group_version.group else f"api/{group_version.version}"


def _digest(content: bytes) -> str:
    return hashlib.sha512(content).hexdigest().upper()


def _fingerprint(group: list[Served]) -> str:
    """Return a hash of a document's inputs, so that the document itself is built only when it is read."""
    parts = [
        [
            *(str(served.gvk), served.definition.resource, served.definition.namespaced, served.custom),
            *(served.definition.verbs, [(row.name, row.verbs) for row in served.definition.all_subresources()]),
            *(served.list_kind, served.schema, *served.definition.selectable_fields),
        ]
        for served in group
    ]
    return _digest(orjson.dumps([_FORM, source_version(), load.digest(), parts]))


def _document(group: list[Served], dialect: Dialect) -> bytes:
    definitions = Definitions(dialect)
    operations = Operations(dialect)
    paths: Document = {}
    for served in group:
        check()
        _define(definitions, served)
        for resource in _resources(definitions, served):
            paths |= operations.paths(resource)
    for name in (STATUS, DELETE_OPTIONS):
        definitions.add(load.struct(name), (GroupVersionKind("", "v1", name.rpartition(".")[2]),))
    definitions.reference(PATCH)
    schemas = dict(sorted(definitions.found.items()))
    if dialect.v3:
        components = {"schemas": schemas, "securitySchemes": _SECURITY_SCHEME}
        return orjson.dumps({"openapi": "3.0.0", "info": _INFO, "paths": paths, "components": components})
    return orjson.dumps(
        {
            "swagger": "2.0",
            "info": _INFO,
            "paths": paths,
            "definitions": schemas,
            "securityDefinitions": _SECURITY_SCHEME,
            "security": _SECURITY,
        }
    )


def _define(definitions: Definitions, served: Served) -> None:
    if served.custom:
        add_custom(definitions, served.gvk, served.definition, served.schema)
        return
    for gvk in (served.gvk, served.list_gvk):
        struct_type = load.kind_type(gvk)
        if struct_type is not None:
            definitions.add(struct_type, (gvk,))


def _resources(definitions: Definitions, served: Served) -> Iterator[Resource]:
    definition = served.definition
    own = _definition_name(served.gvk, custom=served.custom)
    yield Resource(
        group_version=served.gvk.group_version,
        gvk=served.gvk,
        resource=definition.resource,
        namespaced=definition.namespaced,
        verbs=definition.verbs,
        definition=own,
        list_definition=_definition_name(served.list_gvk, custom=served.custom),
        custom=served.custom,
    )
    for row in definition.all_subresources():
        # Text and streams are not described.
        if row.content is Content.OBJECT:
            yield _subresource(definitions, served, row, own)


def _subresource(definitions: Definitions, served: Served, row: Subresource, own: str) -> Resource:
    target = own
    if row.kind is not None:
        target = _definition_name(row.kind, custom=False)
        definitions.add(load.struct(target), (row.kind,))
    return Resource(
        served.gvk.group_version,
        row.kind or served.gvk,
        f"{served.definition.resource}/{{name}}/{row.name}",
        served.definition.namespaced,
        row.verbs,
        target,
        subresource=row.name,
        custom=served.custom,
        parent_kind=served.definition.kind,
    )


def _definition_name(gvk: GroupVersionKind, *, custom: bool) -> str:
    if custom:
        return custom_name(gvk)
    struct_type = load.kind_type(gvk)
    return struct_type.name if struct_type is not None else f"{_META_GROUP}.Status"


# Returns the `openAPIV3Schema` of a custom kind.
CustomSchema = Callable[[GroupVersionKind], Document | None]


class OpenAPI(Documents):
    """Documents of everything that a catalog serves."""

    def __init__(self, catalog: Catalog, custom_schema: CustomSchema = lambda _gvk: None) -> None:
        def served() -> Iterator[Served]:
            for endpoint in catalog.endpoints():
                schema = custom_schema(endpoint.gvk) if endpoint.custom else None
                yield Served(endpoint.definition, endpoint.version, custom=endpoint.custom, schema=schema)

        super().__init__(served, lambda: catalog.generation)
