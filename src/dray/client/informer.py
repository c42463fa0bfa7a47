"""The state of an informer: the next request, the cache, and the notifications of handlers.

Pure: `client.shared_informers` performs the actions and feeds the outcomes back. Guarantees, whatever faults occur:

* The cache follows the server's history; once faults stop it equals the server's state.
* A handler is called with an unbroken chain per object: `(None, new)`, then `(old, new)` with the `old` of the last
  call, then `(old, None)`. An object deleted and created again with the same name is a deletion and an addition.
* An object received again with the same resource version causes no call (except by resync).
* An object that does not decode is skipped: the cache keeps the state of it that decoded last, if there was one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeAlias, TypeVar

from dray.api.document import NamespacedName
from dray.api.errors import APIError
from dray.client.indexer import Indexer, IndexFunction, Lister
from dray.client.interface import (
    Bookmark,
    CacheEvent,
    Deletion,
    ListOptions,
    ListPage,
    Undecodable,
    WatchEvent,
    WatchOptions,
)
from dray.client.objects import compare_states, uid_of

T = TypeVar("T")

# Called with (old, new) for every change, in order; must not block.
Handler: TypeAlias = Callable[[T | None, T | None], None]

# Called with an object that is skipped from now on, or with None when it is not any more.
SkippedListener: TypeAlias = Callable[[NamespacedName, Undecodable | None], None]

# The collection of handlers that are always called.
ALWAYS: Final = (True,)

# The page size client-go uses; one page of 500 keeps the server's answer in memory bounds.
PAGE_LIMIT: Final = 500
BACKOFF_FIRST_SECONDS: Final = 0.05
BACKOFF_MAX_SECONDS: Final = 10.0
# The end of a watch that lasted this long needs no backoff.
WATCH_HEALTHY_SECONDS: Final = 1.0
# As in client-go: the watches of many clients must not end at the same time.
WATCH_TIMEOUT_SECONDS: Final = (300, 600)

# A streamed list that has not ended by then is given up: a plain list is always right, only larger.
STREAM_SECONDS_MAX: Final = 60.0
# A proxy may break streams; after so many broken ones in a row the list is requested plainly.
STREAM_BREAKS_MAX: Final = 2

_GONE: Final = 410
# The server does not know streamed lists: malformed, method not allowed, not acceptable, unsupported, invalid, and
# not implemented.
_STREAM_REFUSED: Final = frozenset({400, 405, 406, 415, 422, 501})
# The server says nothing about streams: credentials, rights, overload, and no connection.
_STREAM_UNDECIDED: Final = frozenset({401, 403, 429, 503})


@dataclass(frozen=True, slots=True)
class Selection:
    """The objects of a resource that an informer watches."""

    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""


@dataclass(frozen=True, slots=True)
class DoList:
    """Request a page after a delay."""

    options: ListOptions
    delay_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class DoWatch:
    """Open a watch after a delay."""

    options: WatchOptions
    delay_seconds: float = 0.0


Action: TypeAlias = DoList | DoWatch


class Informer(Generic[T]):
    """The state of one informer, with the guarantees of this module."""

    def __init__(
        self,
        selection: Selection,
        rng: random.Random,
        *,
        indexes: Mapping[str, IndexFunction] | None = None,
        watch_list: bool = False,
        on_skipped: SkippedListener = lambda _key, _skipped: None,
    ) -> None:
        self._selection = selection
        self._rng = rng
        self._cache: Indexer[T] = Indexer(indexes)
        self.lister: Lister[T] = self._cache
        # Each with its `needed_while`.
        self._handlers: list[tuple[Sized, Handler[T]]] = []
        # Streams the list through the watch; switched off for good when the server refuses or cannot.
        self._watch_list = watch_list
        # Streamed lists in a row that ended before they were complete.
        self._stream_breaks = 0
        # The resource version of the cache; empty until the first list, and after an expiry.
        self._resource_version = ""
        # The objects of a list in progress; None when there is none.
        self._listing: Indexer[T] | None = None
        # The objects that do not decode, and those of a list in progress.
        self._skipped: dict[NamespacedName, Undecodable] = {}
        self._listed_skipped: dict[NamespacedName, Undecodable] = {}
        self._on_skipped = on_skipped
        self._failures = 0
        self._watch_started = 0.0
        # Whether the server has opened the latest watch.
        self.is_watch_open = False
        # Whether the latest watch has received an event.
        self._watch_received = False
        # Set by the first complete list and never reset.
        self.synced = False

    # --- Called by the owner. ---

    def add_handler(self, handler: Handler[T], *, needed_while: Sized = ALWAYS) -> None:
        """Call the handler on all further changes, beginning with the cached objects as additions.

        It is not called while the collection `needed_while` is empty, so it has gaps in its chain of calls. This is
        for handlers without memory of earlier calls that look for something of which there often is nothing: to call
        all of them for every event of every Pod takes longer than what they do.
        """
        self._handlers.append((needed_while, handler))
        for obj in self._cache.list():
            if needed_while:
                handler(None, obj)

    def add_index(self, name: str, function: IndexFunction) -> None:
        """Index the cache by one more function."""
        self._cache.add_index(name, function)

    def resync(self) -> None:
        """Call the handlers for every cached object, as an update without change."""
        for obj in self._cache.list():
            self._notify(obj, obj)

    @property
    def is_listing(self) -> bool:
        """Whether a list is in progress, streamed or in pages."""
        return self._listing is not None

    def is_watch_healthy(self, now: float) -> bool:
        """Return whether the watch has received an event or lasted a while, so that its end means nothing."""
        return self._watch_received or now - self._watch_started >= WATCH_HEALTHY_SECONDS

    # --- Outcomes of actions; each method returns the next action. ---

    def start(self) -> Action:
        """Return the first action.

        The list is the most recent one. With resource version "0" a kube-apiserver whose watch cache lags could answer
        with a state from before the last restart, and a controller would repeat what its predecessor has done since.
        """
        return self._relist()

    def page_received(self, page: ListPage[T]) -> Action:
        """Add a page; after the last one the cache is replaced by the list."""
        assert self._listing is not None, "a page without a list in progress"
        self._listing.put_all(page.items)
        self._listed_skipped.update((item.key, item) for item in page.undecodable)
        if page.continue_token:
            return DoList(self._list_options(limit=PAGE_LIMIT, continue_token=page.continue_token))
        self._replace_all(page.resource_version)
        return self._watch_action()

    def list_failed(self, error: APIError) -> Action:
        """Retry later; after an expired continue token the list is requested without pages."""
        delay = self._backoff(error)
        if error.code == _GONE and self._listing:
            self._begin_listing()
            return DoList(self._list_options(limit=0), delay)
        return self._relist(delay)

    def watch_requested(self, now: float) -> None:
        """Record that a watch is being requested; `now` is monotonic."""
        self._watch_started = now
        self.is_watch_open = False
        self._watch_received = False

    def batch_received(self, batch: Iterable[CacheEvent[T]]) -> None:
        """Apply what the watch received at once, in order; an empty batch tells that the server has opened it."""
        self.is_watch_open = True
        for event in batch:
            self._watch_received = True
            if isinstance(event, Bookmark):
                self._bookmark_received(event)
            elif self._listing is not None:
                self._add_to_listing(event)
            else:
                if isinstance(event, Undecodable):
                    self._skip(event)
                    continue
                if self._skipped:
                    self._forget_skipped(event.key)
                if isinstance(event, Deletion):
                    self._remove(event.key)
                else:
                    self._put(event.key, event.object)
                self._resource_version = event.resource_version

    def watch_ended(self, error: APIError | None, now: float) -> Action:
        """Resume the watch, or relist when its resource version has expired."""
        healthy = self.is_watch_healthy(now)
        if error is None and healthy:
            self._failures = 0
        delay = 0.0 if error is None and healthy else self._backoff(error)
        if self._listing is not None:
            return self._streamed_list_broke(error, delay)
        if error is not None and (error.code == _GONE or _is_too_large_version(error)):
            # The first expiry needs no wait: nothing is wrong with the server.
            self._resource_version = ""
            return self._relist(0.0 if self._failures == 1 else delay)
        return self._watch_action(delay)

    def stream_timed_out(self) -> Action:
        """Request the list plainly: the end of the streamed one did not come in time."""
        self._watch_list = False
        return self._relist()

    # --- Decisions. ---

    def _relist(self, delay: float = 0.0) -> Action:
        self._begin_listing()
        if self._watch_list:
            return DoWatch(self._watch_options(initial=True), delay)
        return DoList(self._list_options(limit=PAGE_LIMIT), delay)

    def _begin_listing(self) -> None:
        self._listing = Indexer()
        self._listed_skipped = {}

    def _streamed_list_broke(self, error: APIError | None, delay: float) -> Action:
        if error is not None and error.code == _GONE:
            self._resource_version = ""
            return self._relist(delay)
        if self.is_watch_open or error is None or error.code not in _STREAM_UNDECIDED:
            self._stream_breaks += 1
        if self._stream_breaks >= STREAM_BREAKS_MAX or (error is not None and error.code in _STREAM_REFUSED):
            self._watch_list = False
            delay = 0.0
        return self._relist(delay)

    def _watch_action(self, delay: float = 0.0) -> Action:
        return DoWatch(self._watch_options(initial=False), delay)

    def _list_options(self, *, limit: int, continue_token: str = "") -> ListOptions:
        return ListOptions(
            label_selector=self._selection.label_selector,
            field_selector=self._selection.field_selector,
            limit=limit,
            continue_token=continue_token,
        )

    def _watch_options(self, *, initial: bool) -> WatchOptions:
        options = WatchOptions(
            label_selector=self._selection.label_selector,
            field_selector=self._selection.field_selector,
            resource_version=self._resource_version,
            timeout_seconds=self._rng.randint(*WATCH_TIMEOUT_SECONDS),
        )
        if not initial:
            return options
        return replace(options, send_initial_events=True, resource_version_match="NotOlderThan")

    def _backoff(self, error: APIError | None) -> float:
        """Exponential with jitter over the upper half, so that clients spread out after a restart."""
        self._failures += 1
        ceiling = min(BACKOFF_MAX_SECONDS, BACKOFF_FIRST_SECONDS * 2.0 ** min(self._failures - 1, 20))
        asked = float(error.retry_after_seconds or 0) if error is not None else 0.0
        return max(asked, ceiling * (0.5 + self._rng.random() / 2))

    # --- Changing the cache. ---

    def _bookmark_received(self, bookmark: Bookmark) -> None:
        if self._listing is None:
            self._resource_version = bookmark.resource_version
        elif bookmark.initial_events_end:
            self._replace_all(bookmark.resource_version)

    def _add_to_listing(self, event: WatchEvent[T] | Deletion | Undecodable) -> None:
        assert self._listing is not None
        if isinstance(event, Undecodable):
            self._listed_skipped[event.key] = event
            return
        self._listed_skipped.pop(event.key, None)
        if isinstance(event, Deletion):
            self._listing.remove(event.key)
        else:
            self._listing.put(event.key, event.object)

    def _replace_all(self, resource_version: str) -> None:
        arrived: Indexer[T] = self._listing or Indexer()
        self._listing = None
        self._resource_version = resource_version
        self._failures = 0
        self._stream_breaks = 0
        self.synced = True
        self._replace_skipped()
        if not self._cache:
            # As after every start: nothing has to be compared.
            self._cache.take_all(arrived)
            for obj in self._cache.list():
                self._notify(None, obj)
            return
        for key in self._cache.keys_outside(arrived):
            if not self._is_kept(key):
                self._notify(self._cache.remove(key), None)
        for key, obj in arrived.items():
            self._put(key, obj)

    def _skip(self, event: Undecodable) -> None:
        """Keep what is cached of the object, and go on behind the event."""
        known = self._skipped.get(event.key)
        self._skipped[event.key] = event
        if event.resource_version:
            self._resource_version = event.resource_version
        if not self._is_kept(event.key):
            self._remove(event.key)
        self._report_skipped(event, known)

    def _report_skipped(self, skipped: Undecodable, known: Undecodable | None) -> None:
        if known is None or (known.uid, known.problem) != (skipped.uid, skipped.problem):
            self._on_skipped(skipped.key, skipped)

    def _forget_skipped(self, key: NamespacedName) -> None:
        if self._skipped.pop(key, None) is not None:
            self._on_skipped(key, None)

    def _replace_skipped(self) -> None:
        listed, self._listed_skipped = self._listed_skipped, {}
        for key in self._skipped.keys() - listed.keys():
            self._forget_skipped(key)
        before, self._skipped = self._skipped, listed
        for key, item in listed.items():
            self._report_skipped(item, before.get(key))

    def _is_kept(self, key: NamespacedName) -> bool:
        """Whether the cached state of an object stays although the object does not decode any more."""
        skipped, cached = self._skipped.get(key), self._cache.get_key(key)
        return skipped is not None and cached is not None and uid_of(cached) == skipped.uid

    def _remove(self, key: NamespacedName) -> None:
        old = self._cache.remove(key)
        if old is not None:
            self._notify(old, None)

    def _put(self, key: NamespacedName, obj: T) -> None:
        old = self._cache.get_key(key)
        if old is not None:
            is_same_object, is_same_version = compare_states(old, obj)
            if is_same_version:
                return
            if is_same_object:
                self._cache.update(key, obj)
            else:
                self._remove(key)
                old = None
        if old is None:
            self._cache.add(key, obj)
        # As `_notify`, without a call for every event.
        for needed_while, handler in self._handlers:
            if needed_while:
                handler(old, obj)

    def _notify(self, old: T | None, new: T | None) -> None:
        for needed_while, handler in self._handlers:
            if needed_while:
                handler(old, new)


def _is_too_large_version(error: APIError) -> bool:
    """Whether the server, restored from a backup, is behind the informer, which must then relist."""
    causes: Sequence[Mapping[str, str]] = (error.details or {}).get("causes") or ()
    return any(cause.get("reason") == "ResourceVersionTooLarge" for cause in causes)
