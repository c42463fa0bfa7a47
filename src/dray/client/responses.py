"""What a server's answers mean: lists, watch events, discovery documents; shared by all transports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, Protocol, TypeVar

import orjson

from dray.api.document import Document, GroupVersion, NamespacedName
from dray.api.errors import APIError, InternalError, error_from_status
from dray.client.codec import UndecodableError, decode, decode_json, undecodable
from dray.client.interface import (
    Bookmark,
    CacheEvent,
    Deletion,
    EventType,
    ListPage,
    Resource,
    ServedResource,
    Undecodable,
    WatchBatch,
    WatchEvent,
)
from dray.client.objects import key_of

T = TypeVar("T")


class Decode(Protocol):
    """Makes an object of the resource's type of a document."""

    def __call__(self, resource: Resource[T], document: Document, /) -> T:
        """The object; may be shared, and is not to be changed."""


# Looking a member up by its value costs several times as much.
_EVENT_TYPES: Final = {each.value: each for each in EventType}

INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"


def read_list(resource: Resource[T], document: Document) -> ListPage[T]:
    """A `…List` document as a page; items are given the apiVersion and kind that lists leave out."""
    metadata = document.get("metadata") or {}
    header = {"apiVersion": resource.group_version.api_version, "kind": resource.kind}

    def read(item: Document | bytes) -> T:
        if isinstance(item, bytes):
            return decode_json(resource, item)
        return decode(resource, item if "kind" in item else header | item)

    items: list[T] = []
    skipped: list[Undecodable] = []
    for item in document.get("items") or ():
        try:
            items.append(read(item))
        except UndecodableError as error:
            skipped.append(undecodable(_item_document(item), error.problem))
    return ListPage(
        items,
        metadata.get("resourceVersion") or "",
        metadata.get("continue") or "",
        metadata.get("remainingItemCount"),
        skipped,
    )


def _item_document(item: Document | bytes) -> object:
    try:
        return orjson.loads(item) if isinstance(item, bytes) else item
    except orjson.JSONDecodeError:
        return None


def read_event(
    resource: Resource[T], event_type: str, document: Document, decode: Decode = decode, *, for_cache: bool = False
) -> CacheEvent[T]:
    """One watch event; ERROR raises what it reports. The object of a deletion is not decoded `for_cache`."""
    kind = _EVENT_TYPES.get(event_type)
    if kind is None:
        return _read_bookmark(event_type, document)
    if for_cache and kind is EventType.DELETED:
        return Deletion(*_key_and_version(document))
    try:
        obj = decode(resource, document)
    except UndecodableError as error:
        return undecodable(document, error.problem)
    if resource.type is dict:
        return WatchEvent(kind, obj, *_key_and_version(document))
    # Read from the object: another client may have decoded it, and then the document is not touched.
    return WatchEvent(kind, obj, key_of(obj), obj.metadata.resource_version or "")  # type: ignore[attr-defined]


def _key_and_version(document: Document) -> tuple[NamespacedName, str]:
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        return NamespacedName("", ""), ""
    return key_of(document), metadata.get("resourceVersion") or ""


def _read_bookmark(event_type: str, document: Document) -> Bookmark:
    if event_type == "ERROR":
        raise error_from_status(document)
    if event_type != "BOOKMARK":
        raise InternalError(f"unknown type of watch event: {event_type!r}")
    metadata = document.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    return Bookmark(metadata.get("resourceVersion") or "", annotations.get(INITIAL_EVENTS_END) == "true")


def read_batch(
    resource: Resource[T], batch: WatchBatch, decode: Decode = decode, *, for_cache: bool = False
) -> tuple[Sequence[CacheEvent[T]], APIError | None]:
    """The events of a batch up to the first that is a failure, and that failure."""
    events: list[CacheEvent[T]] = []
    try:
        for event_type, document in batch:
            events.append(read_event(resource, event_type, document, decode, for_cache=for_cache))
    except APIError as error:
        return events, error
    return events, None


def group_versions(core: Document, groups: Document) -> tuple[tuple[GroupVersion, bool], ...]:
    """All group-versions of the legacy `/api` and `/apis` answers, each with whether its group prefers it."""
    core_versions = core.get("versions") or ()
    found = [(GroupVersion("", version), position == 0) for position, version in enumerate(core_versions)]
    for group in groups.get("groups") or ():
        preferred = (group.get("preferredVersion") or {}).get("groupVersion")
        for version in group.get("versions") or ():
            text = version["groupVersion"]
            found.append((GroupVersion.parse(text), text == preferred))
    return tuple(found)


def discovery_path(group_version: GroupVersion) -> str:
    """Where the group-version's resources are listed."""
    return f"/apis/{group_version.api_version}" if group_version.group else f"/api/{group_version.version}"


def read_resources(group_version: GroupVersion, document: Document, *, preferred: bool) -> Iterable[ServedResource]:
    """The resources of one `APIResourceList`, subresources folded into their parents."""
    entries = document.get("resources") or ()
    subresources: dict[str, list[str]] = {}
    for entry in entries:
        parent, separator, child = entry["name"].partition("/")
        if separator:
            subresources.setdefault(parent, []).append(child)
    for entry in entries:
        if "/" not in entry["name"]:
            yield _served(group_version, entry, tuple(subresources.get(entry["name"], ())), preferred=preferred)


def with_preferred_versions(found: Iterable[ServedResource]) -> tuple[ServedResource, ...]:
    """Return the resources with one preferred entry each: that of the group's version, or the first that has them."""
    listed = tuple(found)
    known = {(item.group, item.plural) for item in listed if item.preferred}
    chosen: list[ServedResource] = []
    for item in listed:
        key = item.group, item.plural
        chosen.append(item if key in known else replace(item, preferred=True))
        known.add(key)
    return tuple(chosen)


def _served(
    group_version: GroupVersion, entry: Document, subresources: tuple[str, ...], *, preferred: bool
) -> ServedResource:
    return ServedResource(
        group=group_version.group,
        version=group_version.version,
        plural=entry["name"],
        kind=entry["kind"],
        namespaced=bool(entry.get("namespaced")),
        verbs=frozenset(entry.get("verbs") or ()),
        preferred=preferred,
        singular=entry.get("singularName") or "",
        short_names=tuple(entry.get("shortNames") or ()),
        categories=tuple(entry.get("categories") or ()),
        subresources=subresources,
    )


def is_retriable(error: APIError) -> bool:
    """Whether the same read may succeed shortly: overload, an unavailable or failing server."""
    return error.code in (429, 500, 502, 503, 504)
