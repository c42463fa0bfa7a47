"""Reconciler of custom resource definitions: serves their resources, updates their status, and finalizes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Final

from dray.api.document import Document, GroupResource, copy_document
from dray.api.errors import APIError, ConflictError, NotFoundError
from dray.api.timestamps import format_time
from dray.apiserver.call import Call, ObjectResult, Result
from dray.apiserver.catalog import Catalog
from dray.apiserver.custom.build import OpenConversion, build_endpoints
from dray.apiserver.custom.deletion import delete_stored
from dray.apiserver.custom.status import (
    DELETION_IN_PROGRESS,
    ESTABLISHED,
    FINALIZER,
    is_served,
    is_true,
    plan_status,
    set_condition,
)
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.local_transport import LocalTransport, own_request
from dray.client.workqueue import RetryLimiter
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.store.interface import Store, StoreError

_LOG: Final = logging.getLogger("dray.apiserver.custom")
_RESOURCE: Final = ("apiextensions.k8s.io", "v1", "customresourcedefinitions")
# Delays before another attempt, doubling: after a failure, and while objects under deletion wait for their finalizers.
_RETRY_SECONDS: Final = 0.5
_FAILURE_SECONDS_MAX: Final = 60.0
_WAIT_SECONDS_MAX: Final = 5.0
# The longest time that a writer waits for a definition to take effect, which usually takes milliseconds.
_SETTLE_SECONDS: Final = 2.0


class ServedDefinitions:
    """The custom resource definitions that the catalog serves; `observe` serves a definition at once."""

    def __init__(self, catalog: Catalog, clock: Clock, open_conversion: OpenConversion) -> None:
        self._catalog = catalog
        self._clock = clock
        self._open_conversion = open_conversion
        # Group versions of built-in resources, which definitions cannot replace.
        self._builtin: Final = frozenset(item.group_version for item in catalog.endpoints())
        self._definitions: dict[str, Document] = {}
        # What the endpoints in the catalog were built from, so that a change of status builds no new ones.
        self._served: dict[str, tuple[Any, ...]] = {}
        # Names to reconcile, each once, in order of arrival.
        self._queue: dict[str, None] = {}
        self._wake = asyncio.Event()
        # The newest state of each definition whose status was reported, and the writers that wait for one.
        self._settled: dict[str, tuple[str, int]] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    def get(self, name: str) -> Document | None:
        """Return a definition as it is served."""
        return self._definitions.get(name)

    def observe(self, name: str, definition: Document | None) -> None:
        """Process the latest state of a definition; None when it was deleted."""
        if definition is None:
            gone = self._definitions.pop(name, None)
            self._settled.pop(name, None)
            self._replace(name, (), None)
            for other in self._group(gone["spec"]["group"]) if gone else ():
                # A name that was taken may be free now.
                self.add(other["metadata"]["name"])
            return
        self._definitions[name] = definition
        if is_served(definition, lambda: self.others(name)):
            # Later definitions must see these names as taken although they are not written yet.
            status = plan_status(definition, self.others(name), self._now())
            self._definitions[name] = definition | {"status": status}
            self._serve(name, definition)
        self.add(name)

    async def settle_write(self, call: Call, endpoint: Endpoint, result: Result) -> None:
        """Wait until what a request has written is in effect."""
        if (
            call.info.verb in ("create", "update", "patch")
            and not call.info.subresource
            and isinstance(result, ObjectResult)
        ):
            await self.settle(endpoint.decode(result.entry.value, result.entry.revision))

    async def settle(self, definition: Document) -> None:
        """Wait until a written definition has been served and reported, is being deleted, or a timeout expires."""
        metadata = definition["metadata"]
        if "deletionTimestamp" in metadata:
            return
        name, uid, generation = metadata["name"], metadata["uid"], metadata.get("generation") or 0
        deadline = asyncio.get_running_loop().time() + _SETTLE_SECONDS
        while (settled := self._settled.get(name)) is None or settled[0] != uid or settled[1] < generation:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting = self._waiting.setdefault(name, set())
            waiting.add(future)
            try:
                async with asyncio.timeout_at(deadline):
                    await future
            except TimeoutError:
                return
            finally:
                waiting.discard(future)
                if not waiting:
                    self._waiting.pop(name, None)

    def mark_settled(self, definition: Document) -> None:
        """Release the writers that wait for this state of the definition."""
        metadata = definition["metadata"]
        self._settled[metadata["name"]] = metadata["uid"], metadata.get("generation") or 0
        for future in self._waiting.get(metadata["name"], ()):
            if not future.done():
                future.set_result(None)

    async def next(self) -> str:
        """Wait for the next definition to reconcile and return its name."""
        while not self._queue:
            self._wake.clear()
            await self._wake.wait()
        name = next(iter(self._queue))
        del self._queue[name]
        return name

    def _serve(self, name: str, definition: Document) -> None:
        metadata = definition["metadata"]
        made_from = (metadata["uid"], metadata.get("generation"), "deletionTimestamp" in metadata)
        if self._served.get(name) == made_from:
            return
        endpoints = tuple(
            item
            for item in build_endpoints(definition, self._open_conversion)
            if item.group_version not in self._builtin
        )
        self._replace(name, endpoints, made_from)

    def _replace(self, name: str, endpoints: tuple[Endpoint, ...], made_from: tuple[Any, ...] | None) -> None:
        before = self._served.pop(name, None)
        self._catalog.set_custom(name, endpoints)
        if made_from is not None:
            self._served[name] = made_from
        if before is not None and (made_from is None or made_from[:2] != before[:2]):
            # Clients list again with the new schema. A deletion alone is watched to its end.
            plural, _, group = name.partition(".")
            self._catalog.on_changed(GroupResource(group, plural))

    def add(self, name: str) -> None:
        """Queue a definition."""
        self._queue[name] = None
        self._wake.set()

    def _group(self, group: str) -> list[Document]:
        return [item for item in self._definitions.values() if item["spec"]["group"] == group]

    def others(self, name: str) -> Iterable[Document]:
        """Return the other definitions of the same group."""
        own = self._definitions[name]
        return [item for item in self._group(own["spec"]["group"]) if item["metadata"]["name"] != name]

    def _now(self) -> str:
        return format_time(self._clock.now())


class CustomResourceController:
    """Reports the status of definitions, and deletes the objects of a deleted definition.

    Repeating is safe, and several servers may do it at the same time.
    """

    def __init__(self, definitions: ServedDefinitions, store: Store, server: LocalTransport, clock: Clock) -> None:
        self._definitions = definitions
        self._store = store
        self._server = server
        self._clock = clock
        self._failures: RetryLimiter[str] = RetryLimiter(first_seconds=_RETRY_SECONDS, max_seconds=_FAILURE_SECONDS_MAX)
        self._waits: RetryLimiter[str] = RetryLimiter(first_seconds=_RETRY_SECONDS, max_seconds=_WAIT_SECONDS_MAX)

    async def run(self) -> None:
        """Reconcile queued definitions for ever."""
        while True:
            await self._reconcile(await self._definitions.next())

    def _retry(self, name: str, limiter: RetryLimiter[str]) -> None:
        delay = limiter.delay(name, self._clock.monotonic())
        asyncio.get_running_loop().call_later(delay, self._definitions.add, name)

    def _now(self) -> str:
        return format_time(self._clock.now())

    async def _reconcile(self, name: str) -> None:
        try:
            definition = await self._server.handle(own_request("get", *_RESOURCE, name=name))
            if "deletionTimestamp" in definition["metadata"]:
                await self._finalize(definition)
            else:
                await self._report(definition)
        except NotFoundError:
            self._waits.forget(name)
        except ConflictError:
            self._definitions.add(name)
        except (APIError, StoreError) as error:
            _LOG.warning("custom resource definition not reconciled", extra=fields(name=name, error=str(error)))
            self._retry(name, self._failures)
            return
        self._failures.forget(name)

    async def _report(self, definition: Document) -> None:
        name = definition["metadata"]["name"]
        if self._definitions.get(name) is None:
            return
        status = plan_status(definition, self._definitions.others(name), self._now())
        if status != definition.get("status"):
            await self._write_status(definition, status)
        known = self._definitions.get(name)
        if known is not None:
            # What is served now, which may be older than what was just read.
            self._definitions.mark_settled(known)

    async def _write_status(self, definition: Document, status: Document) -> Document:
        body = definition | {"status": status}
        name = definition["metadata"]["name"]
        return await self._server.handle(own_request("update", *_RESOURCE, name=name, subresource="status", body=body))

    async def _finalize(self, definition: Document) -> None:
        """Delete all objects, then remove the definition's finalizer."""
        metadata = definition["metadata"]
        if FINALIZER not in (metadata.get("finalizers") or ()):
            return
        is_gone = not is_true(definition, ESTABLISHED) or await delete_stored(
            self._store, definition, self._clock.now()
        )
        if not is_gone:
            status = copy_document(definition.get("status") or {})
            set_condition(status, DELETION_IN_PROGRESS, self._now())
            if status != definition.get("status"):
                await self._write_status(definition, status)
            self._retry(metadata["name"], self._waits)
            return
        rest = [item for item in metadata["finalizers"] if item != FINALIZER]
        body = definition | {"metadata": metadata | {"finalizers": rest}}
        await self._server.handle(own_request("update", *_RESOURCE, name=metadata["name"], body=body))
