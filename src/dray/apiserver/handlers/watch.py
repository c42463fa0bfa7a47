"""watch: the initial objects if asked for, then every change. Objects that stop matching a selector are DELETED."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from dray.api.document import Document, GroupResource
from dray.api.errors import APIError, ExpiredError, InternalError, ServiceUnavailableError
from dray.apiserver.call import Call, WatchFrame, WatchResult
from dray.apiserver.document_cache import DocumentCache
from dray.apiserver.endpoint import ConversionFailedError, Endpoint
from dray.apiserver.handlers.backend import Backend
from dray.apiserver.handlers.get import GetHandler
from dray.apiserver.handlers.watch_fanout import FieldFanout
from dray.apiserver.malformed import unless_malformed
from dray.apiserver.options import ListOptions, parse_list_options
from dray.apiserver.selection import Selection, select
from dray.lib.latest_memo import LatestMemo
from dray.runtime.tasks import ChildTasks
from dray.store.interface import (
    Entry,
    Event,
    EventType,
    FutureRevisionError,
    RevisionCompactedError,
    StoreUnavailableError,
    Watch,
    WatchOverflowError,
)

# kube-apiserver's default: every watch ends at a random moment between 30 and 60 minutes.
_TIMEOUT_SECONDS_MIN: Final = 1800.0
_BOOKMARK_SECONDS: Final = 60.0
# Before a watch times out it sends a bookmark, so that the next one can start there.
_LAST_BOOKMARK_SECONDS: Final = 2.0
_INITIAL_PART: Final = 256
INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"


class _WatchTimers:
    """The timers of one watch: they wake the stream for a bookmark, or to end it.

    Waking yields an empty batch, so that no timeout is needed around the stream.
    """

    def __init__(
        self, resource: GroupResource, stream: Watch, timeout: float, options: ListOptions, *, not_before: int = 0
    ) -> None:
        self.resource: Final = resource
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._timers = [self._loop.call_later(timeout, self.end)]
        self._due = False
        self.ended = False
        # The client asked for events after this revision.
        self.not_before = not_before
        if options.allow_bookmarks:
            first = min(_BOOKMARK_SECONDS, max(timeout - _LAST_BOOKMARK_SECONDS, 0.0))
            self._timers.append(self._loop.call_later(first, self._bookmark))

    def bookmark_due(self) -> bool:
        """Return whether a bookmark is due, and reset it."""
        due, self._due = self._due, False
        return due

    def end(self) -> None:
        """End the watch after the events delivered so far."""
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


class WatchHandler:
    """Opens watches."""

    def __init__(
        self, backend: Backend, get: GetHandler, tasks: ChildTasks, *, opened: WatchHandler | None = None
    ) -> None:
        """`opened` is the handler that closes the watches of this one, too."""
        self._store = backend.store
        self._get = get
        self._random = backend.random
        self._documents = backend.documents
        self._tasks = tasks
        self.open_watches: Final[set[_WatchTimers]] = set() if opened is None else opened.open_watches
        # The store passes the same batch to all watches of a prefix in turn.
        self._unselected: LatestMemo[tuple[Event, ...], None, Sequence[WatchFrame]] = LatestMemo(whole_frames)
        # By resource prefix and field; as many as there are indexed fields.
        self._fanouts: dict[tuple[str, str], FieldFanout] = {}

    def close(self) -> None:
        """End every watch; clients see a clean end of the stream."""
        for timers in tuple(self.open_watches):
            timers.end()

    def end(self, resource: GroupResource) -> None:
        """End the watches of a resource."""
        for timers in tuple(self.open_watches):
            if timers.resource == resource:
                timers.end()

    async def watch(self, call: Call, endpoint: Endpoint) -> WatchResult:
        """Start a watch; no event after the return is missed."""
        options = parse_list_options(call.query, watch=True)
        selection = select(endpoint, call.info.namespace, call.info.name, options)
        timeout = options.timeout_seconds or _TIMEOUT_SECONDS_MIN * (1 + self._random.random())
        initial, revision = await self._initial(endpoint, call, options)
        try:
            stream = await self._stream(endpoint, selection, revision)
        except RevisionCompactedError as error:
            return WatchResult(endpoint, _one(_expired_frame(revision, error.compacted)))
        except FutureRevisionError:
            # No events before that revision is reached; kube-apiserver waits for it as well.
            current = await self._store.revision()
            stream = await self._stream(endpoint, selection, current)
            timers = _WatchTimers(endpoint.resource, stream, timeout, options, not_before=revision)
        else:
            timers = _WatchTimers(endpoint.resource, stream, timeout, options)
        return WatchResult(endpoint, self._frames(endpoint, selection, options, stream, initial, timers))

    async def _stream(self, endpoint: Endpoint, selection: Selection, revision: int) -> Watch:
        """Return a watch of the store, or of a fan-out if the selector gives the value of an indexed field."""
        if selection.filed is None:
            return await self._store.watch(selection.prefix, after_revision=revision)
        field, value = selection.filed
        key = (endpoint.prefix, field)
        fanout = self._fanouts.get(key)
        if fanout is None:
            getter = endpoint.definition.selectable_fields[field]
            fanout = self._fanouts[key] = FieldFanout(self._store, endpoint, getter, self._documents, self._tasks)
        return await fanout.subscribe(value, revision)

    async def _initial(self, endpoint: Endpoint, call: Call, options: ListOptions) -> tuple[list[WatchFrame], int]:
        """Return the frames of the existing objects, and the revision to watch from."""
        wanted = options.revision or 0
        if options.send_initial_events is None and wanted:
            return [], wanted
        if options.send_initial_events is False:
            return [], wanted or await self._store.revision()
        if wanted:
            await self._get.wait_for(wanted)
        query = ListOptions(label_selector=options.label_selector, field_selector=options.field_selector)
        info = call.info
        listing = await self._get.list_selected(endpoint, info.namespace, query, name=info.name, pacer=call.pacer)
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
        timers: _WatchTimers,
    ) -> AsyncIterator[Sequence[WatchFrame]]:
        self.open_watches.add(timers)
        try:
            # In parts and then released: the watch may outlive its initial objects by an hour.
            for start in range(0, len(initial), _INITIAL_PART):
                yield initial[start : start + _INITIAL_PART]
            initial = ()
            async for batch in stream:
                frames = self._frames_of(batch, selection, timers)
                if options.allow_bookmarks and timers.bookmark_due():
                    frames = [*frames, bookmark(endpoint, max(stream.progress, timers.not_before))]
                if frames:
                    yield frames
                if timers.ended:
                    return
        except WatchOverflowError:
            # The client lists again, as after a compaction.
            yield [_expired_frame(stream.progress, await self._store.revision())]
        except RevisionCompactedError as error:
            yield [_expired_frame(stream.progress, error.compacted)]
        except ConversionFailedError as error:
            yield [error_frame(InternalError(error))]
        except StoreUnavailableError as error:
            # The client watches again from the last event.
            yield [error_frame(ServiceUnavailableError(f"the store does not answer: {error}"))]
        finally:
            self.open_watches.discard(timers)
            timers.cancel()
            await stream.aclose()

    def _frames_of(self, batch: tuple[Event, ...], selection: Selection, timers: _WatchTimers) -> Sequence[WatchFrame]:
        """Return the frames of the events that this watch selects."""
        if timers.not_before:
            batch = tuple(event for event in batch if event.revision > timers.not_before)
        unselected = self._unselected.get(batch, None)
        if selection.matches is None:
            return unselected
        return selected_frames(batch, unselected, selection.matches, self._documents)


def whole_frames(batch: tuple[Event, ...], _purpose: None) -> Sequence[WatchFrame]:
    """Return the frames of events for a watch without selector."""
    frames: list[WatchFrame] = []
    for event in batch:
        kind = "DELETED" if event.type is EventType.DELETE else "ADDED" if event.previous is None else "MODIFIED"
        frames.append(WatchFrame(kind, event.entry))
    return frames


def selected_frames(
    batch: tuple[Event, ...],
    unselected: Sequence[WatchFrame],
    matches: Callable[[Document], bool],
    documents: DocumentCache,
) -> Sequence[WatchFrame]:
    """Return the frames of events for a watch with a selector, given those for one without.

    They are the same object if the selector makes no difference, as most do most of the time: watches then share what
    is derived from the frames.
    """

    def matched(entry: Entry) -> bool:
        return matches(documents.document(entry))

    def selects(entry: Entry) -> bool:
        # What a selector cannot read it does not select.
        return unless_malformed(matched, entry) or False

    pairs = zip(batch, unselected, strict=True)
    frames = [found for event, frame in pairs if (found := _selected_frame(event, frame, selects))]
    return unselected if frames == unselected else frames


def _selected_frame(event: Event, unselected: WatchFrame, selects: Callable[[Entry], bool]) -> WatchFrame | None:
    """Return the frame of the event for a watch with a selector; None if it does not match."""
    deleted = event.type is EventType.DELETE
    # The entry of a deletion is the last one before it.
    last_seen = event.entry if deleted else event.previous
    before = last_seen is not None and selects(last_seen)
    after = not deleted and selects(event.entry)
    if after:
        return unselected if before == (event.previous is not None) else WatchFrame("ADDED", event.entry)
    if not before:
        return None
    if deleted:
        return unselected
    assert event.previous is not None
    # The object as it last matched, at the revision of the change.
    return WatchFrame("DELETED", _at(event.previous, event.revision))


def _at(entry: Entry, revision: int) -> Entry:
    return Entry(entry.key, entry.value, revision, entry.create_revision)


def bookmark(endpoint: Endpoint, revision: int, *, initial_events_end: bool = False) -> WatchFrame:
    """Return a BOOKMARK frame."""
    metadata: dict[str, object] = {"resourceVersion": str(revision)}
    if initial_events_end:
        metadata["annotations"] = {INITIAL_EVENTS_END: "true"}
    return WatchFrame(
        "BOOKMARK",
        document={"kind": endpoint.definition.kind, "apiVersion": endpoint.api_version, "metadata": metadata},
    )


def error_frame(error: APIError) -> WatchFrame:
    """Return an ERROR frame."""
    return WatchFrame("ERROR", document=error.status())


def _expired_frame(revision: int, oldest: int) -> WatchFrame:
    return error_frame(ExpiredError(f"too old resource version: {revision} ({oldest})"))


async def _one(frame: WatchFrame) -> AsyncIterator[Sequence[WatchFrame]]:
    yield [frame]
