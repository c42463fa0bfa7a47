"""API servers on a store that crashes, and clients that move from one to another in the middle of anything."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable
from contextlib import aclosing
from typing import Any, TypeVar

from dray.api.document import Document
from dray.api.errors import ServiceUnavailableError
from dray.api.timestamps import format_time
from dray.apiserver import in_process
from dray.apiserver.catalog import Catalog
from dray.apiserver.composition import running_server
from dray.apiserver.local_transport import LocalTransport
from dray.client.interface import LocalRequest, WatchBatch
from dray.lib.clock import Clock
from dray.store.interface import KeyExistsError, Store, StoreError
from tests.in_process_server import _furnished
from tests.simulation.faults import Faults
from tests.simulation.store_machines import Life, Machine

T = TypeVar("T")


class ServerProcess:
    """An API server in the process of a store: both live and crash together."""

    def __init__(self, machine: Machine, clock: Clock, rng: random.Random, namespaces: Iterable[str]) -> None:
        self._machine = machine
        self._clock = clock
        self._rng = rng
        self._contents = [document for name in namespaces for document in _furnished(name)]
        # The life that serves now.
        self.serving: tuple[LocalTransport, Life] | None = None

    async def run(self) -> None:
        """Serve in each life of the machine, until cancelled."""
        while True:
            life = await self._machine.current()
            try:
                await self._fill(life.store)
                config = in_process.in_process_config(life.store, self._clock, self._rng)
                async with running_server(config) as server:
                    self.serving = (LocalTransport(server), life)
                    await life.ended.wait()
            except StoreError:
                # It could not start; a real process would be started again.
                await asyncio.sleep(0.1)
            finally:
                self.serving = None

    async def _fill(self, store: Store) -> None:
        catalog = Catalog(in_process._endpoints())
        for document in self._contents:
            try:
                await in_process.fill_store(store, catalog, [document], format_time(self._clock.now()), self._rng)
            except KeyExistsError:
                continue


class FailoverServer:
    """Implements `LocalServer` for one client: it stays with a server until that fails it, and then takes another."""

    def __init__(self, processes: list[ServerProcess], rng: random.Random, faults: Faults) -> None:
        self._processes = processes
        self._rng = rng
        self._faults = faults
        self._at = rng.randrange(len(processes))

    async def handle(self, request: LocalRequest) -> Document:
        self._faults.steps += 1
        server, life = self._server()
        return await self._answered(life, server.handle(request))

    async def watch(self, request: LocalRequest) -> AsyncIterator[WatchBatch]:
        self._faults.steps += 1
        server, life = self._server()
        return self._events(await self._answered(life, server.watch(request)), life)

    async def _events(self, events: AsyncIterator[WatchBatch], life: Life) -> AsyncGenerator[WatchBatch, None]:
        async with aclosing(events) as batches:  # type: ignore[type-var]
            while True:
                try:
                    batch = await self._answered(life, anext(batches))
                except StopAsyncIteration:
                    return
                self._faults.steps += len(batch)
                yield batch

    def _server(self) -> tuple[LocalTransport, Life]:
        if self._faults.happens("client_moves", self._rng):
            self._move()
        serving = self._processes[self._at].serving
        if serving is None or serving[1].ended.is_set():
            self._move()
            raise ServiceUnavailableError("connection refused")
        return serving

    async def _answered(self, life: Life, call: Awaitable[T]) -> T:
        """Return the answer, unless the process ends before."""
        answer = asyncio.ensure_future(_as_coroutine(call))
        ended = asyncio.ensure_future(life.ended.wait())
        try:
            await asyncio.wait({answer, ended}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done() and not ended.done():
                result: T = answer.result()
                return result
        finally:
            for task in (answer, ended):
                task.cancel()
            await asyncio.gather(answer, ended, return_exceptions=True)
        self._faults.fired["request_interrupted"] += 1
        self._move()
        raise ServiceUnavailableError("connection reset")

    def _move(self) -> None:
        self._at = self._rng.randrange(len(self._processes))


async def _as_coroutine(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
