"""watch: the initial objects when asked for, then every change, with selectors deciding what enters and leaves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from dray.api.document import Document
from dray.api.errors import APIError, ExpiredError
from dray.apiserver.call import Call, WatchFrame, WatchResult
from dray.apiserver.document_cache import DocumentCache
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.handlers.get import Reader
from dray.apiserver.handlers.watch_fanout import FieldFanout
from dray.apiserver.options import ListOptions, parse_list_options
from dray.apiserver.selection import Selection, select
from dray.lib.latest_memo import LatestMemo
from dray.store.interface import (
    Entry,
    Event,
    EventType,
    FutureRevisionError,
    RevisionCompactedError,
    Store,
    Watch,
    WatchOverflowError,
)

# kube-apiserver's default: every watch ends at a random moment between 30 and 60 minutes.
_TIMEOUT_SECONDS_MIN: Final = 1800.0
_BOOKMARK_SECONDS: Final = 60.0
# A watch that ends soon says before how far it came, so that the next one starts there.
_LAST_BOOKMARK_SECONDS: Final = 2.0
_INITIAL_PART: Final = 256
INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"


class _Pace:
    """The timers of one watch: they wake the stream for a bookmark, or to end it.

    A wake-up is an empty batch, so that the stream itself is awaited without a timeout around it.
    """

    def __init__(self, stream: Watch, timeout: float, options: ListOptions, *, not_before: int = 0) -> None:
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._timers = [self._loop.call_later(timeout, self.end)]
        self._due = False
        self.ended = False
        # Events up to this revision are not for the client, who asked for later ones.
        self.not_before = not_before
        if options.allow_bookmarks:
            first = min(_BOOKMARK_SECONDS, max(timeout - _LAST_BOOKMARK_SECONDS, 0.0))
            self._timers.append(self._loop.call_later(first, self._bookmark))

    def bookmark_due(self) -> bool:
        """Whether a bookmark is due; asking resets it."""
        due, self._due = self._due, False
        return due

    def end(self) -> None:
        """Let the watch end after what has been delivered."""
        self.ended = True
        self._stream.wake()

    def cancel(self) -> None:
        """Stop the timers."""
        for timer in self._timers:
            timer.cancel()

    def _bookmark(self) -> None:
        self._due = True
        self._timers[1] = self._loop.call_later(_BOOKMARK_SECONDS, self._bookmark)
        self._stream.wake()


class Watcher:
    """Opens watches; one for the whole server."""

    def __init__(self, store: Store, reader: Reader, documents: DocumentCache, random_source: random.Random) -> None:
        self._store = store
        self._reader = reader
        self._random = random_source
        self._documents = documents
        self._open: set[_Pace] = set()
        # The store hands a commit to all who watch a prefix one after the other.
        self._unselected: LatestMemo[tuple[Event, ...], None, Sequence[WatchFrame]] = LatestMemo(_whole_frames)
        # By resource prefix and field; as many as there are indexed fields.
        self._fanouts: dict[tuple[str, str], FieldFanout] = {}

    @property
    def open_count(self) -> int:
        """How many watches are running."""
        return len(self._open)

    def close(self) -> None:
        """End every watch soon; those who watch see a clean end of the stream."""
        for pace in tuple(self._open):
            pace.end()

    async def watch(self, call: Call, endpoint: Endpoint) -> WatchResult:
        """Start a watch; when this returns no later event is missed."""
        options = parse_list_options(call.query, watch=True)
        selection = select(endpoint, call.info.namespace, call.info.name, options)
        timeout = options.timeout_seconds or _TIMEOUT_SECONDS_MIN * (1 + self._random.random())
        initial, revision = await self._initial(endpoint, call.info.namespace, call.info.name, options)
        try:
            stream = await self._stream(endpoint, selection, revision)
        except RevisionCompactedError as error:
            return WatchResult(endpoint, _one(_expired_frame(revision, error)))
        except FutureRevisionError:
            # Nothing to tell until that revision has happened; kube-apiserver waits for it as well.
            current = await self._store.revision()
            stream = await self._stream(endpoint, selection, current)
            pace = _Pace(stream, timeout, options, not_before=revision)
        else:
            pace = _Pace(stream, timeout, options)
        return WatchResult(endpoint, self._frames(endpoint, selection, options, stream, initial, pace))

    async def _stream(self, endpoint: Endpoint, selection: Selection, revision: int) -> Watch:
        """The store's own watch, or a share of one where many watch for one value each."""
        if selection.filed is None:
            return await self._store.watch(selection.prefix, after_revision=revision)
        field, value = selection.filed
        place = (endpoint.prefix, field)
        fanout = self._fanouts.get(place)
        if fanout is None:
            getter = endpoint.definition.selectable_fields[field]
            fanout = self._fanouts[place] = FieldFanout(self._store, endpoint, getter, self._documents)
        return await fanout.subscribe(value, revision)

    async def _initial(
        self, endpoint: Endpoint, namespace: str, name: str, options: ListOptions
    ) -> tuple[list[WatchFrame], int]:
        """The frames of the objects there are already, and the revision to go on from."""
        wanted = options.revision or 0
        if options.send_initial_events is None and wanted:
            return [], wanted
        if options.send_initial_events is False:
            return [], wanted or await self._store.revision()
        if wanted:
            await self._reader.wait_for(wanted)
        query = ListOptions(label_selector=options.label_selector, field_selector=options.field_selector)
        listing = await self._reader.list_selected(endpoint, namespace, query, name=name)
        frames = [WatchFrame("ADDED", entry) for entry in listing.entries]
        if options.send_initial_events and options.allow_bookmarks:
            frames.append(bookmark(endpoint, listing.revision, initial_events_end=True))
        return frames, listing.revision

    async def _frames(
        self,
        endpoint: Endpoint,
        selection: Selection,
        options: ListOptions,
        stream: Watch,
        initial: Sequence[WatchFrame],
        pace: _Pace,
    ) -> AsyncIterator[Sequence[WatchFrame]]:
        self._open.add(pace)
        try:
            # In parts, and let go of: a watch may outlive by an hour what it began with.
            for start in range(0, len(initial), _INITIAL_PART):
                yield initial[start : start + _INITIAL_PART]
            initial = ()
            async for batch in stream:
                frames = self._frames_of(batch, selection, pace)
                if options.allow_bookmarks and pace.bookmark_due():
                    frames = [*frames, bookmark(endpoint, stream.progress)]
                if frames:
                    yield frames
                if pace.ended:
                    return
        except WatchOverflowError:
            # The client re-lists; an ERROR frame would say the same with more words.
            return
        except RevisionCompactedError as error:
            yield [_expired_frame(stream.progress, error)]
        finally:
            self._open.discard(pace)
            pace.cancel()
            await stream.aclose()

    def _frames_of(self, batch: tuple[Event, ...], selection: Selection, pace: _Pace) -> Sequence[WatchFrame]:
        """What the events mean for this watch."""
        if pace.not_before:
            batch = tuple(event for event in batch if event.revision > pace.not_before)
        matches = selection.matches
        if matches is None:
            return self._unselected.get(batch, None)
        return [frame for event in batch if (frame := self._selected_frame(matches, event)) is not None]

    def _selected_frame(self, matches: Callable[[Document], bool], event: Event) -> WatchFrame | None:
        """What the event means for a watch that selects; None when it is none of its business."""
        deleted = event.type is EventType.DELETE
        # A deletion shows what was there before: one document serves both.
        last_seen = event.entry if deleted else event.previous
        before = last_seen is not None and matches(self._documents.document(last_seen))
        after = not deleted and matches(self._documents.document(event.entry))
        if after:
            return WatchFrame("MODIFIED" if before else "ADDED", event.entry)
        if not before:
            return None
        assert event.previous is not None
        # The object as it was when it still matched, at the revision at which it left.
        last = event.entry if deleted else _at(event.previous, event.revision)
        return WatchFrame("DELETED", last)


def _whole_frames(batch: tuple[Event, ...], _purpose: None) -> Sequence[WatchFrame]:
    """The frames of events for a watch that does not select."""
    return [WatchFrame(_kind(event), event.entry) for event in batch]


def _kind(event: Event) -> str:
    if event.type is EventType.DELETE:
        return "DELETED"
    return "ADDED" if event.previous is None else "MODIFIED"


def _at(entry: Entry, revision: int) -> Entry:
    return Entry(entry.key, entry.value, revision, entry.create_revision)


def bookmark(endpoint: Endpoint, revision: int, *, initial_events_end: bool = False) -> WatchFrame:
    """A frame that says how far the watch has come."""
    metadata: dict[str, object] = {"resourceVersion": str(revision)}
    if initial_events_end:
        metadata["annotations"] = {INITIAL_EVENTS_END: "true"}
    return WatchFrame(
        "BOOKMARK",
        document={"kind": endpoint.definition.kind, "apiVersion": endpoint.api_version, "metadata": metadata},
    )


def error_frame(error: APIError) -> WatchFrame:
    """A failure inside the stream."""
    return WatchFrame("ERROR", document=error.status())


def _expired_frame(revision: int, error: RevisionCompactedError) -> WatchFrame:
    return error_frame(ExpiredError(f"too old resource version: {revision} ({error.compacted})"))


async def _one(frame: WatchFrame) -> AsyncIterator[Sequence[WatchFrame]]:
    yield [frame]
