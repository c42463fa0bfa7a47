"""The client interface of all components, and the interface of a server in the same process.

Guarantees of every implementation:

* Failures are `dray.api.errors.APIError`; a server that cannot be reached is a `ServiceUnavailableError`.
* Returned objects are never changed by the client and may be shared: copy before changing one.
* A watch yields events in the server's order and ends without an error when the server ends it; a refused or
  expired watch raises (410 is `ExpiredError` or `GoneError`).
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from dray.api.document import Document, GroupResource, GroupVersion, GroupVersionKind, NamespacedName
from dray.api.errors import ServiceUnavailableError

T = TypeVar("T")


def _present(**values: str) -> dict[str, str]:
    return {key: value for key, value in values.items() if value}


class Resource(msgspec.Struct, Generic[T], frozen=True):
    """A resource at one version, and the Python type its objects have.

    `type` is a msgspec structure, or `dict` for documents as they are on the wire. With `metadata_only`
    (documents only) the server may leave out everything but apiVersion, kind and metadata.
    """

    # A structure and not a dataclass: it is a key of caches that are asked for every batch of a watch.

    group: str
    version: str
    plural: str
    kind: str
    type: type[T]
    namespaced: bool = True
    metadata_only: bool = False

    @property
    def group_version(self) -> GroupVersion:
        """The group and version."""
        return GroupVersion(self.group, self.version)

    @property
    def group_version_kind(self) -> GroupVersionKind:
        """The group, version and kind of one object."""
        return GroupVersionKind(self.group, self.version, self.kind)

    @property
    def group_resource(self) -> GroupResource:
        """The group and resource, as in error messages."""
        return GroupResource(self.group, self.plural)

    @property
    def unstructured(self) -> Resource[Document]:
        """The same resource with plain documents as objects."""
        return Resource(
            group=self.group,
            version=self.version,
            plural=self.plural,
            kind=self.kind,
            type=dict,
            namespaced=self.namespaced,
            metadata_only=self.metadata_only,
        )

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path of the collection or of one object."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root]
        if namespace and self.namespaced:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)


def unstructured(
    group_version: GroupVersion, plural: str, kind: str, *, namespaced: bool = True, metadata_only: bool = False
) -> Resource[Document]:
    """Return a resource whose objects are plain documents."""
    return Resource(
        group=group_version.group,
        version=group_version.version,
        plural=plural,
        kind=kind,
        type=dict,
        namespaced=namespaced,
        metadata_only=metadata_only,
    )


class EventType(enum.StrEnum):
    """The type of a watch event."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class WatchEvent(msgspec.Struct, Generic[T], frozen=True):
    """One change of one object."""

    type: EventType
    object: T
    key: NamespacedName
    resource_version: str


class Deletion(msgspec.Struct, frozen=True):
    """The deletion of an object, without it: a cache has its last state."""

    key: NamespacedName
    resource_version: str


class Undecodable(msgspec.Struct, frozen=True):
    """An object that is skipped because it does not decode as its kind, and why it does not."""

    key: NamespacedName
    uid: str
    resource_version: str
    problem: str


class Bookmark(msgspec.Struct, frozen=True):
    """Everything up to `resource_version` has been delivered; `initial_events_end` closes a streamed list."""

    resource_version: str
    initial_events_end: bool = False


# What a watch for a cache brings.
CacheEvent: TypeAlias = WatchEvent[T] | Deletion | Undecodable | Bookmark


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """Part of a listing; `continue_token` is empty on the last page."""

    items: Sequence[T]
    resource_version: str
    continue_token: str = ""
    remaining_item_count: int | None = None
    # The objects that are not among the items.
    undecodable: Sequence[Undecodable] = ()


@dataclass(frozen=True, slots=True)
class ListOptions:
    """What to list; limit 0 asks for everything in one page."""

    label_selector: str = ""
    field_selector: str = ""
    limit: int = 0
    continue_token: str = ""
    resource_version: str = ""
    # "Exact", "NotOlderThan" or empty.
    resource_version_match: str = ""

    def query(self) -> dict[str, str]:
        """Return the URL query."""
        return _present(
            labelSelector=self.label_selector,
            fieldSelector=self.field_selector,
            limit=str(self.limit) if self.limit else "",
            resourceVersion=self.resource_version,
            resourceVersionMatch=self.resource_version_match,
        ) | ({"continue": self.continue_token} if self.continue_token else {})


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What to watch, and from which resource version."""

    label_selector: str = ""
    field_selector: str = ""
    resource_version: str = ""
    resource_version_match: str = ""
    # The server ends the watch after this long; 0 leaves it to the server.
    timeout_seconds: int = 0
    allow_bookmarks: bool = True
    # Streams the list as ADDED events first, then an `initial_events_end` bookmark.
    send_initial_events: bool = False

    def query(self) -> dict[str, str]:
        """Return the URL query."""
        return _present(
            watch="true",
            labelSelector=self.label_selector,
            fieldSelector=self.field_selector,
            resourceVersion=self.resource_version,
            resourceVersionMatch=self.resource_version_match,
            timeoutSeconds=str(self.timeout_seconds) if self.timeout_seconds else "",
            allowWatchBookmarks="true" if self.allow_bookmarks else "",
            sendInitialEvents="true" if self.send_initial_events else "",
        )


class WriteOptions(msgspec.Struct, frozen=True, gc=False):
    """How to write; `subresource` directs an update or patch to e.g. `status` or `finalize`."""

    field_manager: str = ""
    dry_run: bool = False
    subresource: str = ""
    # "Strict", "Warn" or "Ignore"; empty leaves it to the server.
    field_validation: str = ""
    # Takes over fields of other managers; apply patches only.
    force: bool = False
    # The caller does not change the answer, which a server in the same process then need not copy.
    read_only: bool = False
    # How long to wait for a server to respond; 0 leaves it to the transport.
    timeout_seconds: float = 0.0

    def query(self) -> Mapping[str, str]:
        """Return the URL query, which must not be changed."""
        return _write_query(self)


# A component writes with few different options, which are constants.
_WRITE_QUERIES_MAX: Final = 256


@lru_cache(_WRITE_QUERIES_MAX)
def _write_query(options: WriteOptions) -> Mapping[str, str]:
    return _present(
        # Not a member of an enumeration: in the same process it becomes part of the stored object.
        fieldManager=str(options.field_manager),
        dryRun="All" if options.dry_run else "",
        fieldValidation=options.field_validation,
        force="true" if options.force else "",
    )


class PatchType(enum.StrEnum):
    """The type of a patch; the value is its media type."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class Patch:
    """A change to an object: a list of operations for JSON, a document for the others."""

    type: PatchType
    body: Document | list[Document]


class PropagationPolicy(enum.StrEnum):
    """What happens to an object's dependents when it is deleted."""

    ORPHAN = "Orphan"
    BACKGROUND = "Background"
    FOREGROUND = "Foreground"


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """How to delete; preconditions that no longer hold are a `ConflictError`."""

    uid: str = ""
    resource_version: str = ""
    propagation_policy: PropagationPolicy | None = None
    grace_period_seconds: int | None = None
    dry_run: bool = False

    def document(self) -> Document:
        """Return the `DeleteOptions` body."""
        body: Document = {"kind": "DeleteOptions", "apiVersion": "v1"}
        preconditions = _present(uid=self.uid, resourceVersion=self.resource_version)
        if preconditions:
            body["preconditions"] = preconditions
        if self.propagation_policy is not None:
            body["propagationPolicy"] = self.propagation_policy.value
        if self.grace_period_seconds is not None:
            body["gracePeriodSeconds"] = self.grace_period_seconds
        if self.dry_run:
            body["dryRun"] = ["All"]
        return body


LIST_ALL = ListOptions()
WATCH_ALL = WatchOptions()
WRITE = WriteOptions()
DELETE = DeleteOptions()


@dataclass(frozen=True, slots=True)
class ServedResource:
    """A resource of the server, from discovery."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    verbs: frozenset[str]
    # Whether the group prefers this version; one served kind has one such entry.
    preferred: bool = True
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()

    def resource(self, *, metadata_only: bool = False) -> Resource[Document]:
        """Return the resource with plain documents as objects."""
        return unstructured(
            GroupVersion(self.group, self.version),
            self.plural,
            self.kind,
            namespaced=self.namespaced,
            metadata_only=metadata_only,
        )


class IncompleteDiscoveryError(ServiceUnavailableError):
    """Some group versions could not be read; `found` has the resources of the others."""

    def __init__(self, failures: Mapping[str, str], found: tuple[ServedResource, ...]) -> None:
        listed = ", ".join(f"{name}: {text}" for name, text in sorted(failures.items()))
        super().__init__(f"unable to retrieve the complete list of server APIs: {listed}")
        self.failures = failures
        self.found = found


class Client(Protocol):
    """A connection to one API server as one user; all calls may be made concurrently."""

    async def get(self, resource: Resource[T], name: str, namespace: str = "", *, resource_version: str = "") -> T:
        """Read one object; `resource_version` "0" allows a cached answer."""

    async def list(self, resource: Resource[T], namespace: str = "", options: ListOptions = LIST_ALL) -> ListPage[T]:
        """Read one page; the empty namespace means all of them."""

    def watch(
        self, resource: Resource[T], namespace: str = "", options: WatchOptions = WATCH_ALL
    ) -> AsyncGenerator[WatchEvent[T] | Bookmark, None]:
        """Follow changes; close it with `aclose` (or `contextlib.aclosing`) when leaving early.

        Objects that do not decode are left out and logged.
        """

    def watch_batches(
        self, resource: Resource[T], namespace: str = "", options: WatchOptions = WATCH_ALL
    ) -> AsyncGenerator[Sequence[CacheEvent[T]], None]:
        """As `watch`, for caches: with everything that came at once, and deletions as `Deletion` without the object.

        An empty batch comes first, when the server has opened the watch. A batch may be shared and is not to be
        changed.
        """

    async def create(self, resource: Resource[T], obj: T, namespace: str = "", options: WriteOptions = WRITE) -> T:
        """Create; the namespace may also be in the object."""

    async def update(self, resource: Resource[T], obj: T, options: WriteOptions = WRITE) -> T:
        """Replace the object that has its namespace and name."""

    async def update_status(self, resource: Resource[T], obj: T, options: WriteOptions = WRITE) -> T:
        """Replace the object's status."""

    async def patch(
        self, resource: Resource[T], name: str, namespace: str, patch: Patch, options: WriteOptions = WRITE
    ) -> T:
        """Change an object by a patch."""

    async def delete(
        self, resource: Resource[Any], name: str, namespace: str = "", options: DeleteOptions = DELETE
    ) -> Document:
        """Delete; return the object while finalizers or a grace period delay its removal, else a `Status`."""

    async def delete_collection(
        self,
        resource: Resource[Any],
        namespace: str = "",
        selection: ListOptions = LIST_ALL,
        options: DeleteOptions = DELETE,
    ) -> Document:
        """Delete everything selected in the namespace."""

    async def create_subresource(
        self, resource: Resource[Any], name: str, namespace: str, subresource: str, body: Document
    ) -> Document:
        """Post to a subresource such as pods/binding, pods/eviction or serviceaccounts/token."""

    async def get_subresource(self, resource: Resource[Any], name: str, namespace: str, subresource: str) -> Document:
        """Read a subresource such as status or scale."""

    async def get_path(self, path: str, query: Mapping[str, str] | None = None) -> Document:
        """Read a path that is not an object: discovery, version, openapi."""

    async def resources(self, *, complete: bool = False) -> tuple[ServedResource, ...]:
        """Return every served resource in all versions, in the server's order.

        A group that cannot be read is left out, or raises `IncompleteDiscoveryError` if it must be `complete`:
        for callers that take a missing kind for one without objects.
        """

    async def close(self) -> None:
        """Release connections; may be called twice."""


# --- The interface of a server in the same process. ---

LocalBody: TypeAlias = "Document | list[Document] | bytes | None"
# The events that a watch received at once as (type, object): ADDED MODIFIED DELETED BOOKMARK, or ERROR with a `Status`.
WatchBatch: TypeAlias = Sequence[tuple[str, Document]]


class LocalRequest(msgspec.Struct, frozen=True):
    """One request without transport.

    `verb` is the request verb that authorization sees: get list watch create update patch delete
    deletecollection. `path` is set instead of `resource` for paths that are not objects (discovery).
    `query` has the URL query's keys (`labelSelector`, `limit`, `continue`, `fieldManager` …). A document in
    `body` is the server's to change. What a watch brings is shared: neither side changes it.
    """

    user: str
    groups: tuple[str, ...]
    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    path: str = ""
    query: Mapping[str, str] = msgspec.field(default_factory=dict)
    body: LocalBody = None
    content_type: str = "application/json"
    # Requests metadata only; the server may return whole objects.
    metadata_only: bool = False
    # The caller does not change the response, which may then be shared.
    read_only: bool = False
    user_agent: str = ""


class LocalServer(Protocol):
    """An API server in this process; raises `APIError` subclasses."""

    async def handle(self, request: LocalRequest) -> Document:
        """Handle any request but a watch; lists are `…List` documents, whose items may be JSON if `read_only`."""

    async def watch(self, request: LocalRequest) -> AsyncIterator[WatchBatch]:
        """Start a watch; no event is missed once this has returned. The client calls `aclose` when it leaves early.

        Watches of the same objects may yield identical batches, which must not be changed.
        """
