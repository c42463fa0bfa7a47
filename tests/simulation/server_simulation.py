"""API servers over a crashing store, with writers, watchers and informers that move between them.

Checked: the history of objects is linearizable over all servers, what was acknowledged stays and what was refused never
happened, watches keep the guarantees of etcd through every selector, and informers end with what the servers have.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from typing import Any
from unittest import mock

import orjson

from dray.api.document import Document
from dray.api.errors import (
    AlreadyExistsError,
    APIError,
    ConflictError,
    ExpiredError,
    NotFoundError,
    ServiceUnavailableError,
)
from dray.apiserver.handlers import watch as watch_module
from dray.client.in_process import in_process_client
from dray.client.interface import LocalRequest, WatchBatch
from dray.client.resources import CONFIG_MAPS
from dray.client.shared_informers import SharedInformerFactory
from dray.sim.replica.virtual_time import LoopClock
from dray.store.interface import Event, EventType, StoreError
from tests.simulation.failover import FailoverServer, ServerProcess
from tests.simulation.faults import Faults
from tests.simulation.store_history import (
    Changed,
    Create,
    Delete,
    Deleted,
    Exists,
    Read,
    Seen,
    StoreHistory,
    Truth,
    Update,
    Written,
)
from tests.simulation.store_machines import DECLARED, Machine, etcd_machines, refreshed, sqlite_machines
from tests.simulation.watch_checks import WatchRecord, WatchViolationError

NAMESPACE = "default"
OBJECTS = [f"object-{number}" for number in range(4)]
LEDGERS = [f"ledger-{number}" for number in range(2)]
PODS = [f"pod-{number}" for number in range(4)]
WRITERS = 4
OPERATIONS_EACH = 35
BOOKMARK_SECONDS = 0.7
QUIET_SECONDS = 25.0
MASTERS = ("system:masters",)

CLIENT_FAULTS = {
    "client_moves": 0.05,
    "compaction": 0.06,
    "watch_resumed": 0.05,
    "watch_rewound": 0.02,
}
# Follows from a crash of a server; declared, and counted where it happens.
INTERRUPTED = {"request_interrupted": 1e-9}


@dataclass(frozen=True)
class Selected:
    """What a watcher follows: a resource and what a selector picks of it."""

    resource: str
    query: dict[str, str]
    matches: Callable[[Document], bool]
    namespace: str = NAMESPACE


SELECTED = [
    Selected("configmaps", {}, lambda _: True),
    Selected(
        "configmaps",
        {"labelSelector": "color=red"},
        lambda item: item["metadata"].get("labels", {}).get("color") == "red",
    ),
    Selected("configmaps", {"fieldSelector": f"metadata.name={OBJECTS[0]}"}, lambda item: _name(item) == OBJECTS[0]),
    # Node agents watch all namespaces, which a fan-out serves.
    Selected(
        "pods", {"fieldSelector": "spec.nodeName=node-1"}, lambda item: item["spec"].get("nodeName") == "node-1", ""
    ),
    Selected(
        "pods", {"fieldSelector": "spec.nodeName=node-2"}, lambda item: item["spec"].get("nodeName") == "node-2", ""
    ),
]
# An event of a watch: its type, the object's name, and its labels and data.
Frame = tuple[str, str, str]


def _name(document: Document) -> str:
    return str(document["metadata"]["name"])


def _content(document: Document) -> str:
    parts = [document["metadata"].get("labels"), document.get("data"), document.get("spec", {}).get("nodeName")]
    return orjson.dumps(parts).decode()


def _revision(document: Document) -> int:
    return int(document["metadata"]["resourceVersion"])


def frames_of(events: list[Event], selected: Selected) -> list[tuple[int, Frame]]:
    """Return what a watch must bring for the events: the plain form of what the server does."""
    frames = []
    for event in events:
        now = orjson.loads(event.entry.value)
        previous = event.entry if event.type is EventType.DELETE else event.previous
        last = {} if previous is None else orjson.loads(previous.value)
        before = bool(last) and selected.matches(last)
        after = event.type is EventType.PUT and selected.matches(now)
        if after:
            frames.append((event.revision, ("MODIFIED" if before else "ADDED", _name(now), _content(now))))
        elif before:
            frames.append((event.revision, ("DELETED", _name(last), _content(last))))
    return frames


class ServerSimulation:
    """One run of one or more API servers."""

    def __init__(self, seed: int, backend: str, servers: int = 1) -> None:
        self.rates = Faults(**DECLARED[backend], **CLIENT_FAULTS, **INTERRUPTED)
        self.story: list[str] = []
        self._rng = random.Random(seed)
        self._backend = backend
        self._servers = servers
        self._clock = LoopClock()
        self._history = StoreHistory()
        self._values = 0
        # Tokens that writers appended to ledgers: acknowledged, refused, and without an answer.
        self._acknowledged: dict[str, list[str]] = {name: [] for name in LEDGERS}
        self._refused: set[str] = set()
        self._records: list[WatchRecord[Frame]] = []

    async def run(self) -> None:
        """Run to the end; raises `AssertionError` for a broken promise."""
        loop: Any = asyncio.get_running_loop()
        loop.rng = random.Random(self._rng.random())
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(watch_module, "_BOOKMARK_SECONDS", BOOKMARK_SECONDS))
            if self._backend == "sqlite":
                machines = sqlite_machines(self._rng, self.rates)
            else:
                machines = etcd_machines(self._rng, self.rates, count=self._servers)
            async with machines as started:
                await self._run_on(started)

    async def _run_on(self, machines: list[Machine]) -> None:
        truth = machines[0].truth
        processes = [
            ServerProcess(machine, self._clock, random.Random(self._rng.random()), [NAMESPACE]) for machine in machines
        ]
        informers = SharedInformerFactory(
            in_process_client(self._server(processes), user="informer", groups=MASTERS),
            self._clock,
            random.Random(self._rng.random()),
        )
        informer = informers.informer(CONFIG_MAPS)
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(machine.run()) for machine in machines]
            background += [group.create_task(process.run()) for process in processes]
            background.append(group.create_task(informers.run()))
            for selected in SELECTED:
                watcher = Watcher(self, selected, self._server(processes), random.Random(self._rng.random()), truth)
                background.append(group.create_task(watcher.run()))
            writers = [self._write(random.Random(self._rng.random()), processes, machines) for _ in range(WRITERS)]
            await asyncio.gather(*writers)
            self.rates.on = False
            for machine in machines:
                machine.heal()
            self.tell(f"faults end; revision {refreshed(truth).revision}")
            await asyncio.sleep(QUIET_SECONDS)
            await self._check_end(processes, truth)
            cached = {_name_of(item): item.metadata.resource_version for item in informer.lister.list()}
            await asyncio.sleep(QUIET_SECONDS)
            for task in background:
                task.cancel()
        for record in self._records:
            record.finish(refreshed(truth).revision)
        self._history.check()
        expected = {
            key.rpartition("/")[2]: str(entry.revision)
            for key, entry in truth.state_at(truth.revision).items()
            if key.startswith("/registry/core/configmaps/")
        }
        assert cached == expected, f"the informer has {cached}, the store {expected}"

    async def _check_end(self, processes: list[ServerProcess], truth: Truth) -> None:
        """Read everything from every server; what was acknowledged is there, once."""
        for process in processes:
            assert process.serving is not None, "a server did not come back"
            server, _ = process.serving
            for name in OBJECTS:
                called = self._history.tick()
                self._history.record(name, called, Read(), await self._get(server, name))
            for name in LEDGERS:
                tokens = await self._tokens(server, name)
                assert len(set(tokens)) == len(tokens), f"{name} has a token twice"
                lost = [token for token in self._acknowledged[name] if token not in set(tokens)]
                assert not lost, f"{name} has lost {lost}, which were acknowledged"
                undead = self._refused.intersection(tokens)
                assert not undead, f"{name} has {undead}, which were refused"

    # --- writers ---

    async def _write(self, rng: random.Random, processes: list[ServerProcess], machines: list[Machine]) -> None:
        server = self._server(processes)
        known: dict[str, tuple[int, Document]] = {}
        for _ in range(OPERATIONS_EACH):
            await asyncio.sleep(rng.uniform(0.0, 0.05) if rng.random() < 0.9 else rng.uniform(0.0, 1.0))
            what = rng.random()
            try:
                if self.rates.happens("compaction", rng):
                    await self._compact(rng, machines)
                elif what < 0.2:
                    await self._append(server, rng.choice(LEDGERS))
                elif what < 0.6:
                    await self._change_pod(server, rng)
                else:
                    await self._change_object(server, rng, known)
            except APIError as error:
                # Whatever it was, nothing is known of it; an answer was recorded where it came.
                self.tell(f"{type(error).__name__}: {error}")
                await asyncio.sleep(rng.uniform(0.0, 0.3))

    async def _append(self, server: FailoverServer, name: str) -> None:
        """Append a token to a ledger, if nobody else has meanwhile."""
        token = f"token-{self._value()}"
        try:
            current = await server.handle(_request("get", "configmaps", name))
        except NotFoundError:
            call = server.handle(_request("create", "configmaps", body=_config_map(name, {"tokens": token})))
        else:
            tokens = f"{current['data']['tokens']} {token}"
            changed = {**current, "data": {"tokens": tokens}}
            call = server.handle(_request("update", "configmaps", name, changed))
        try:
            await call
        except (ConflictError, AlreadyExistsError):
            self._refused.add(token)
        else:
            self._acknowledged[name].append(token)

    async def _tokens(self, server: Any, name: str) -> list[str]:
        try:
            found = await server.handle(_request("get", "configmaps", name))
        except NotFoundError:
            return []
        return str(found["data"]["tokens"]).split()

    async def _change_object(
        self, server: FailoverServer, rng: random.Random, known: dict[str, tuple[int, Document]]
    ) -> None:
        name = rng.choice(OBJECTS)
        called = self._history.tick()
        if rng.random() < 0.3:
            result = await self._get(server, name, known)
            self._history.record(name, called, Read(), result)
            return
        value = str(self._value())
        body = _config_map(name, {"value": value}, color=rng.choice(("red", "blue")))
        if name not in known:
            await self._record(
                name, called, Create(value.encode()), server.handle(_request("create", "configmaps", body=body)), known
            )
            return
        revision, current = known[name]
        if rng.random() < 0.7:
            changed = {**current, "metadata": {**current["metadata"], **_labels(body)}, "data": {"value": value}}
            call = server.handle(_request("update", "configmaps", name, changed))
            await self._record(name, called, Update(value.encode(), revision), call, known)
        else:
            options = {"preconditions": {"resourceVersion": str(revision)}}
            call = server.handle(_request("delete", "configmaps", name, options))
            await self._record(name, called, Delete(revision), call, known)

    async def _record(
        self, name: str, called: float, request: Create | Update | Delete, call: Any, known: dict[str, Any]
    ) -> None:
        known.pop(name, None)
        result: object
        try:
            answer = await call
        except AlreadyExistsError:
            result = Exists()
        except ConflictError:
            result = Changed()
        except NotFoundError:
            result = Seen(0)
        except APIError:
            self._history.record_unknown(name, called, request)
            raise
        else:
            if isinstance(request, Delete):
                result = Deleted()
            else:
                result = Written(_revision(answer))
                known[name] = (_revision(answer), answer)
        self.tell(f"{name} {request} -> {result}")
        self._history.record(name, called, request, result)

    async def _get(self, server: Any, name: str, known: dict[str, Any] | None = None) -> Seen:
        try:
            found = await server.handle(_request("get", "configmaps", name))
        except NotFoundError:
            if known is not None:
                known.pop(name, None)
            return Seen(0)
        if known is not None:
            known[name] = (_revision(found), found)
        return Seen(_revision(found), found["data"]["value"].encode())

    async def _change_pod(self, server: FailoverServer, rng: random.Random) -> None:
        """Create, bind, label or delete a Pod, for the watches of nodes."""
        name = rng.choice(PODS)
        try:
            pod = await server.handle(_request("get", "pods", name))
        except NotFoundError:
            node = rng.choice(({}, {"nodeName": "node-1"}, {"nodeName": "node-2"}))
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {"containers": [{"name": "main", "image": "image"}], **node},
            }
            await server.handle(_request("create", "pods", body=pod))
            return
        what = rng.random()
        if not pod["spec"].get("nodeName") and what < 0.6:
            target = {"apiVersion": "v1", "kind": "Node", "name": rng.choice(("node-1", "node-2"))}
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
            await server.handle(_request("create", "pods", name, body, subresource="binding"))
        elif what < 0.7:
            labels = {"labels": {"value": str(self._value())}}
            await server.handle(_request("update", "pods", name, {**pod, "metadata": {**pod["metadata"], **labels}}))
        else:
            await server.handle(_request("delete", "pods", name, {"gracePeriodSeconds": 0}))

    async def _compact(self, rng: random.Random, machines: list[Machine]) -> None:
        store = (await rng.choice(machines).current()).store
        try:
            revision, compacted = await store.revision(), await store.compacted_revision()
            await store.compact(rng.randint(min(compacted, revision), revision))
        except StoreError:
            return

    def _value(self) -> int:
        self._values += 1
        return self._values

    def _server(self, processes: list[ServerProcess]) -> FailoverServer:
        return FailoverServer(processes, random.Random(self._rng.random()), self.rates)

    def add(self, record: WatchRecord[Frame]) -> None:
        self._records.append(record)

    def remove(self, record: WatchRecord[Frame]) -> None:
        self._records.remove(record)

    def tell(self, text: str) -> None:
        self.story.append(f"{asyncio.get_running_loop().time():9.4f} {text}")


class Watcher:
    """Follows a selection through every break, from server to server."""

    def __init__(
        self, simulation: ServerSimulation, selected: Selected, server: FailoverServer, rng: random.Random, truth: Truth
    ) -> None:
        self._simulation = simulation
        self._faults = simulation.rates
        self._selected = selected
        self._server = server
        self._rng = rng
        self._truth = truth
        self._prefix = f"/registry/core/{selected.resource}/{NAMESPACE}/"

    async def run(self) -> None:
        start = await self._list()
        while True:
            record = WatchRecord(start, self._expected)
            self._simulation.add(record)
            start = await self._follow(record)
            self._simulation.remove(record)

    def _expected(self, after: int, until: int) -> list[tuple[int, Frame]]:
        return frames_of(refreshed(self._truth).between(self._prefix, after, until), self._selected)

    async def _follow(self, record: WatchRecord[Frame]) -> int:
        """Watch and resume, until history is compacted or the watcher starts over; return where."""
        while not self._faults.happens("watch_rewound", self._rng):
            try:
                await self._watch_once(record)
            except ExpiredError as error:
                self._simulation.tell(f"watch {self._selected.query} from {record.position}: {error}")
                return await self._list()
            except APIError:
                await asyncio.sleep(self._rng.uniform(0.05, 0.5))
        return self._rng.randint(max(record.position - 15, 1), record.position)

    async def _watch_once(self, record: WatchRecord[Frame]) -> None:
        query = {"resourceVersion": str(record.position), "timeoutSeconds": str(self._rng.randint(1, 20))}
        async with aclosing(await self._open(query)) as batches:  # type: ignore[type-var]
            async for batch in batches:
                self._receive(record, batch)
                if self._faults.happens("watch_resumed", self._rng):
                    return
                if self._rng.random() < 0.1:
                    await asyncio.sleep(self._rng.uniform(0.0, 0.5))

    def _receive(self, record: WatchRecord[Frame], batch: WatchBatch) -> None:
        events: list[tuple[int, Frame]] = []
        for kind, document in batch:
            if kind == "ERROR":
                record.receive(events)
                raise _error(document)
            if kind == "BOOKMARK":
                record.receive(events)
                events = []
                record.bookmark(_revision(document))
            else:
                events.append((_revision(document), (kind, _name(document), _content(document))))
        record.receive(events)

    async def _list(self) -> int:
        """Return the revision of a list, which must be the state at that revision."""
        while True:
            try:
                if self._rng.random() < 0.5:
                    revision, items = await self._plain_list()
                else:
                    revision, items = await self._streamed_list()
            except APIError:
                await asyncio.sleep(self._rng.uniform(0.05, 0.5))
            else:
                state = refreshed(self._truth).state_at(revision)
                documents = [orjson.loads(state[key].value) for key in sorted(state) if key.startswith(self._prefix)]
                expected = sorted(_content(item) for item in documents if self._selected.matches(item))
                if sorted(map(_content, items)) != expected:
                    raise WatchViolationError("reliable", f"the list at {revision} is not the state of that revision")
                return revision

    async def _plain_list(self) -> tuple[int, list[Document]]:
        found = await self._server.handle(
            _request("list", self._selected.resource, query=self._selected.query, namespace=self._selected.namespace)
        )
        return _revision(found), found["items"]

    async def _streamed_list(self) -> tuple[int, list[Document]]:
        query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        items: dict[str, Document] = {}
        async with aclosing(await self._open(query)) as batches:  # type: ignore[type-var]
            async for batch in batches:
                for kind, document in batch:
                    if kind == "ERROR":
                        raise _error(document)
                    if kind == "BOOKMARK":
                        return _revision(document), list(items.values())
                    items[_name(document)] = document
        raise ExpiredError("the watch ended before its initial events did")

    async def _open(self, query: dict[str, str]) -> AsyncIterator[WatchBatch]:
        query = {"watch": "true", "allowWatchBookmarks": "true", **self._selected.query, **query}
        return await self._server.watch(
            _request("watch", self._selected.resource, query=query, namespace=self._selected.namespace)
        )


def _request(
    verb: str,
    resource: str,
    name: str = "",
    body: Document | None = None,
    *,
    subresource: str = "",
    query: dict[str, str] | None = None,
    namespace: str = NAMESPACE,
) -> LocalRequest:
    return LocalRequest(
        user="simulation",
        groups=MASTERS,
        verb=verb,
        version="v1",
        resource=resource,
        namespace=namespace,
        name=name,
        subresource=subresource,
        query=query or {},
        body=body,
    )


def _error(status: Document) -> APIError:
    error = ExpiredError if status["code"] == 410 else ServiceUnavailableError
    return error(status["message"])


def _config_map(name: str, data: dict[str, str], **labels: str) -> Document:
    metadata = {"name": name, "namespace": NAMESPACE, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _labels(body: Document) -> Document:
    return {"labels": body["metadata"]["labels"]}


def _name_of(item: Any) -> str:
    return str(item.metadata.name)
