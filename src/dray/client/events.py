"""What becomes of an event before it is written: counting the same, combining the similar, dropping spam.

Pure; `client.recorder` writes. The numbers are client-go's: the same event again raises its count; after 10 that
differ only in their message within 10 minutes they are combined; one source may tell 25 events of an object at
once, then one in five minutes.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from dray.api.document import Document, GroupVersionKind
from dray.api.timestamps import format_time
from dray.client.objects import key_of, resource_version_of, uid_of
from dray.client.workqueue import TokenBucket

K = TypeVar("K")
V = TypeVar("V")

SIMILAR_MAX: Final = 10
SIMILAR_SECONDS: Final = 600.0
SPAM_BURST: Final = 25
SPAM_RATE_PER_SECOND: Final = 1 / 300
# Of events, similar groups and sources each; what was used longest ago is forgotten.
CACHE_MAX: Final = 4096
COMBINED_PREFIX: Final = "(combined from similar events): "
# The server's limit on a message.
MESSAGE_LENGTH_MAX: Final = 1024


class ObjectReference(msgspec.Struct, frozen=True, gc=False):
    """The object an event is about."""

    kind: GroupVersionKind
    namespace: str
    name: str
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""

    def document(self) -> Document:
        """As `involvedObject`."""
        content = {
            "kind": self.kind.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "apiVersion": self.kind.api_version,
            "resourceVersion": self.resource_version,
        }
        if self.field_path:
            content["fieldPath"] = self.field_path
        if "" in content.values():
            return {name: value for name, value in content.items() if value}
        return content


def reference_to(kind: GroupVersionKind, obj: Any, *, field_path: str = "") -> ObjectReference:
    """A reference to a document or typed object of the kind."""
    key = key_of(obj)
    return ObjectReference(kind, key.namespace, key.name, uid_of(obj), resource_version_of(obj), field_path)


class Source(msgspec.Struct, frozen=True, gc=False):
    """Who tells it."""

    component: str
    host: str = ""

    def document(self) -> Document:
        """As `source`."""
        return {"component": self.component, **({"host": self.host} if self.host else {})}


class Happening(msgspec.Struct, frozen=True):
    """One thing to tell; `type` is Normal or Warning."""

    about: ObjectReference
    type: str
    reason: str
    message: str
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)


class CreateEvent(msgspec.Struct, frozen=True):
    """Write a new Event."""

    namespace: str
    document: Document


class PatchEvent(msgspec.Struct, frozen=True):
    """Raise the count of an Event written before; `fallback` is for when it is gone."""

    namespace: str
    name: str
    body: Document
    fallback: CreateEvent


class _Told(msgspec.Struct):
    """The Event last written for a key."""

    name: str
    count: int
    # As it is written.
    first: str


class _Similar(msgspec.Struct):
    """Messages of one similar group, and when the last one came."""

    messages: dict[str, None]
    last: datetime


# Under what things count as the same; each version of an object shares the object's keys.
_Key: TypeAlias = tuple[Hashable, ...]


class Correlator:
    """Decides for one source; all state may be lost at any time without harm."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._told: OrderedDict[_Key, _Told] = OrderedDict()
        self._similar: OrderedDict[_Key, _Similar] = OrderedDict()
        self._buckets: OrderedDict[_Key, TokenBucket] = OrderedDict()

    def tell(self, happening: Happening, now: datetime) -> CreateEvent | PatchEvent | None:
        """What to write; None when the source has told too much about the object."""
        if not self._within_rate(happening.about, now):
            return None
        message, key = self._combine(happening, now)
        told = _touch(self._told, key)
        time = format_time(now)
        if told is None:
            told = _Told(_event_name(happening, now), 0, time)
            _remember(self._told, key, told)
        told.count += 1
        document = self._document(happening, message, told, time)
        create = CreateEvent(document["metadata"]["namespace"], document)
        if told.count == 1:
            return create
        body = {"message": message, "count": told.count, "lastTimestamp": time}
        return PatchEvent(create.namespace, told.name, body, create)

    def _within_rate(self, about: ObjectReference, now: datetime) -> bool:
        place = (about.kind, about.namespace, about.name, about.uid)
        bucket = _touch(self._buckets, place)
        if bucket is None:
            bucket = TokenBucket(rate_per_second=SPAM_RATE_PER_SECOND, burst=SPAM_BURST)
            _remember(self._buckets, place, bucket)
        return bucket.try_take(now.timestamp())

    def _combine(self, happening: Happening, now: datetime) -> tuple[str, _Key]:
        """The message to tell and the key under which it counts."""
        message = happening.message[:MESSAGE_LENGTH_MAX]
        about = happening.about
        place = (about.kind, about.namespace, about.name, about.uid, about.field_path)
        group = (place, happening.type, happening.reason)
        similar = _touch(self._similar, group)
        if similar is None or (now - similar.last).total_seconds() > SIMILAR_SECONDS:
            similar = _Similar({}, now)
            _remember(self._similar, group, similar)
        similar.last = now
        if message not in similar.messages and len(similar.messages) >= SIMILAR_MAX:
            similar.messages.pop(next(iter(similar.messages)))
            similar.messages[message] = None
            return f"{COMBINED_PREFIX}{message}"[:MESSAGE_LENGTH_MAX], group
        similar.messages[message] = None
        return message, (group, message)

    def _document(self, happening: Happening, message: str, told: _Told, time: str) -> Document:
        namespace = happening.about.namespace or "default"
        metadata: Document = {"name": told.name, "namespace": namespace}
        if happening.annotations:
            metadata["annotations"] = dict(happening.annotations)
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": metadata,
            "involvedObject": happening.about.document(),
            "reason": happening.reason,
            "message": message,
            "source": self._source.document(),
            "firstTimestamp": told.first,
            "lastTimestamp": time,
            "count": told.count,
            "type": happening.type,
            "reportingComponent": self._source.component,
            "reportingInstance": self._source.host,
        }


def _event_name(happening: Happening, now: datetime) -> str:
    """`<object>.<hexadecimal>`: unique by time and content, within the length a name may have."""
    content = f"{happening.type}/{happening.reason}/{happening.message}/{happening.about.uid}"
    digest = hashlib.sha256(content.encode()).hexdigest()[:6]
    microseconds = int(now.timestamp() * 1_000_000)
    return f"{happening.about.name[:220]}.{microseconds:x}{digest}"


def _touch(cache: OrderedDict[K, V], key: K) -> V | None:
    """The cached value, made the newest."""
    value = cache.get(key)
    if value is not None:
        cache.move_to_end(key)
    return value


def _remember(cache: OrderedDict[K, V], key: K, value: V) -> None:
    # A plain dict finds its first entry by passing over all that were there before it.
    cache[key] = value
    if len(cache) > CACHE_MAX:
        cache.popitem(last=False)
