"""The informer against random histories and faults: the cache follows the truth and handlers hear a gapless story."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dray.api.document import Document
from dray.api.errors import APIError, BadRequestError, ExpiredError, ServiceUnavailableError
from dray.client.indexer import ImmutableFields
from dray.client.informer import Action, DoList, Informer, Selection
from dray.client.interface import Bookmark, Deletion, EventType, ListPage, WatchEvent
from dray.client.objects import key_of, uid_of

NAMES = ("a", "b", "c")
BY_UID = "uid"
PAGE = 2


class History:
    """A server's truth: every write has a revision; lists and watches are answered from any kept revision."""

    def __init__(self) -> None:
        self.revision = 1
        self.compacted = 0
        self.events: list[tuple[int, EventType, Document]] = []
        self.states: dict[int, dict[str, Document]] = {1: {}}

    def write(self, name: str, *, delete: bool) -> None:
        current = dict(self.states[self.revision])
        old = current.get(name)
        if delete and old is None:
            return
        self.revision += 1
        uid = old["metadata"]["uid"] if old else f"{name}-{self.revision}"
        obj = {"metadata": {"name": name, "uid": uid, "resourceVersion": str(self.revision)}}
        kind = EventType.DELETED if delete else EventType.MODIFIED if old else EventType.ADDED
        current.pop(name, None)
        if not delete:
            current[name] = obj
        self.states[self.revision] = current
        self.events.append((self.revision, kind, obj))


class Driver:
    """Performs the informer's actions against the history, one step at a time."""

    def __init__(self, history: History, *, watch_list: bool) -> None:
        self.history = history
        indexes = {BY_UID: ImmutableFields(lambda obj: (uid_of(obj),))}
        self.informer: Informer[Document] = Informer(
            Selection(), random.Random(7), indexes=indexes, watch_list=watch_list
        )
        self.story: dict[str, list[tuple[Document | None, Document | None]]] = {}
        self.informer.add_handler(self._deliver)
        self.action: Action = self.informer.start()
        self.stream: Iterator[WatchEvent[Document] | Deletion | Bookmark] | None = None
        self.position = 0
        self.now = 0.0

    def _deliver(self, old: Document | None, new: Document | None) -> None:
        name = (new or old or {})["metadata"]["name"]
        self.story.setdefault(name, []).append((old, new))

    def step(self, fault: APIError | None = None) -> None:
        """One request, one page or one event; `fault` breaks it."""
        self.now += 0.01
        if isinstance(self.action, DoList):
            self._list_step(fault)
        elif self.stream is None:
            self._open(fault)
        else:
            self._event_step(fault)

    def _list_step(self, fault: APIError | None) -> None:
        assert isinstance(self.action, DoList)
        options = self.action.options
        revision, start = self.history.revision, 0
        if options.continue_token:
            at, _, offset = options.continue_token.partition(":")
            revision, start = int(at), int(offset)
            if revision < self.history.compacted:
                fault = ExpiredError("continue token expired")
        if fault is not None:
            self.action = self.informer.list_failed(fault)
            return
        items = [obj for _, obj in sorted(self.history.states[revision].items())]
        size = PAGE if options.limit else len(items)
        token = f"{revision}:{start + size}" if start + size < len(items) else ""
        self.action = self.informer.page_received(ListPage(items[start : start + size], str(revision), token))

    def _open(self, fault: APIError | None) -> None:
        options: Any = self.action.options
        self.informer.watch_requested(self.now)
        resumed = bool(options.resource_version) and not options.send_initial_events
        if fault is None and resumed and int(options.resource_version) < self.history.compacted:
            fault = ExpiredError("too old resource version")
        if fault is not None:
            self.action = self.informer.watch_ended(fault, self.now)
            return
        self.stream = self._events(options)

    def _events(self, options: Any) -> Iterator[WatchEvent[Document] | Deletion | Bookmark]:
        position = int(options.resource_version or 0)
        if options.send_initial_events:
            position = self.history.revision
            for _, obj in sorted(self.history.states[position].items()):
                yield WatchEvent(EventType.ADDED, obj, key_of(obj), obj["metadata"]["resourceVersion"])
            yield Bookmark(str(position), initial_events_end=True)
        while True:
            following = next((event for event in self.history.events if event[0] > position), None)
            if following is None:
                position = self.history.revision
                yield Bookmark(str(position))
            else:
                position = following[0]
                _, kind, obj = following
                if kind is EventType.DELETED:
                    yield Deletion(key_of(obj), str(position))
                else:
                    yield WatchEvent(kind, obj, key_of(obj), str(position))

    def _event_step(self, fault: APIError | None) -> None:
        assert self.stream is not None
        if fault is not None:
            self.stream = None
            # A server that stops ends its streams without a word.
            quiet = isinstance(fault, ServiceUnavailableError)
            self.action = self.informer.watch_ended(None if quiet else fault, self.now)
            return
        self.informer.batch_received([next(self.stream)])

    def heal(self) -> None:
        """Without faults, a bounded number of steps brings everything."""
        for _ in range(4 * (len(self.history.events) + len(NAMES) + 5)):
            self.step()

    def cached(self) -> dict[str, Document]:
        return {obj["metadata"]["name"]: obj for obj in self.informer.lister.list()}


FAULTS = st.sampled_from([ServiceUnavailableError("down"), ExpiredError("expired"), BadRequestError("not understood")])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(NAMES), st.booleans()),
        st.tuples(st.just("step"), st.integers(1, 4), st.none()),
        st.tuples(st.just("fault"), FAULTS, st.none()),
        st.tuples(st.just("compact"), st.none(), st.none()),
    ),
    max_size=40,
)


def play(driver: Driver, kind: str, argument: Any, delete: Any) -> None:
    if kind == "write":
        driver.history.write(argument, delete=delete)
    elif kind == "step":
        for _ in range(argument):
            driver.step()
    elif kind == "fault":
        driver.step(argument)
    else:
        driver.history.compacted = driver.history.revision


def check_story(driver: Driver) -> None:
    """Each object's changes form one chain, without repetition, ending where the cache is."""
    for name, story in driver.story.items():
        last: Document | None = None
        for old, new in story:
            assert old == last, f"{name}: delivered {old} after {last}"
            assert old != new, f"{name}: delivered nothing new"
            if old is not None and new is not None:
                assert old["metadata"]["uid"] == new["metadata"]["uid"]
                assert int(old["metadata"]["resourceVersion"]) < int(new["metadata"]["resourceVersion"])
            last = new
        assert last == driver.cached().get(name)


def check_index(driver: Driver) -> None:
    """An index over an immutable field has each object as it is cached, also one recreated under the same name."""
    lister, cached = driver.informer.lister, driver.cached().values()
    assert set(lister.index_values(BY_UID)) == {uid_of(obj) for obj in cached}
    for obj in cached:
        assert lister.by_index(BY_UID, uid_of(obj)) == (obj,)


@settings(max_examples=300, deadline=None)
@given(steps=STEPS, watch_list=st.booleans())
def test_the_cache_follows_and_the_story_has_no_gaps(steps: list[Any], watch_list: bool) -> None:
    driver = Driver(History(), watch_list=watch_list)
    for kind, argument, delete in steps:
        play(driver, kind, argument, delete)
        check_story(driver)
        check_index(driver)
    driver.heal()
    check_story(driver)
    check_index(driver)
    assert driver.informer.synced
    assert driver.cached() == driver.history.states[driver.history.revision]


@settings(max_examples=100, deadline=None)
@given(writes=st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), max_size=30))
def test_without_faults_every_change_is_delivered(writes: list[tuple[str, bool]]) -> None:
    driver = Driver(History(), watch_list=False)
    driver.heal()
    for name, delete in writes:
        driver.history.write(name, delete=delete)
        driver.heal()
    delivered = sum(len(story) for story in driver.story.values())
    assert delivered == len(driver.history.events)
