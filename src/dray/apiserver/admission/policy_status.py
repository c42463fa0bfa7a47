"""Writes the status of policies: the generation that was checked, and the warnings of the type checker."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from dray.api.document import Document, GroupResource
from dray.api.errors import APIError, ConflictError, NotFoundError
from dray.apiserver.admission.policy_index import POLICIES
from dray.apiserver.admission.type_checking import type_warnings
from dray.apiserver.catalog import Catalog
from dray.apiserver.local_transport import LocalTransport, own_request

_log = logging.getLogger(__name__)
_RESOURCE: Final = (POLICIES.group, "v1", POLICIES.resource)
# Delay after a failure.
_RETRY_SECONDS: Final = 0.5
# The longest time that a writer of a policy waits for its status, which usually takes milliseconds.
_SETTLE_SECONDS: Final = 2.0


class PolicyStatusController:
    """Reports on each generation of a policy once. Repeating is safe, and several servers may do it."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        # Names of policies whose status is outdated, in order of arrival.
        self._queue: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None

    def observe(self, resource: GroupResource, name: str, document: Document | None) -> None:
        """Process the newest state of a policy."""
        if resource == POLICIES and document is not None and _is_outdated(document):
            self._queue[name] = None
            self._idle.clear()
            self._wake.set()

    async def settle(self) -> None:
        """Wait until all policies that were observed have a status, for a bounded time."""
        if self._task is None or asyncio.current_task() is self._task:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_SECONDS):
                await self._idle.wait()

    async def run(self, server: LocalTransport) -> None:
        """Write statuses for ever."""
        self._task = asyncio.current_task()
        while True:
            while not self._queue:
                self._idle.set()
                self._wake.clear()
                await self._wake.wait()
            name = next(iter(self._queue))
            del self._queue[name]
            try:
                await self._report(server, name)
            except NotFoundError:
                continue
            except ConflictError:
                self._queue[name] = None
            except APIError:
                _log.exception("status of policy %s", name)
                await asyncio.sleep(_RETRY_SECONDS)
                self._queue[name] = None

    async def _report(self, server: LocalTransport, name: str) -> None:
        policy = await server.handle(own_request("get", *_RESOURCE, name=name))
        if not _is_outdated(policy):
            return
        warnings = type_warnings(policy, self._catalog.get)
        checked: Document = {"expressionWarnings": warnings} if warnings else {}
        status = {"observedGeneration": policy["metadata"].get("generation", 0), "typeChecking": checked}
        body = policy | {"status": (policy.get("status") or {}) | status}
        await server.handle(own_request("update", *_RESOURCE, name=name, subresource="status", body=body))


def _is_outdated(policy: Document) -> bool:
    generation: int = policy["metadata"].get("generation", 0)
    observed: int = (policy.get("status") or {}).get("observedGeneration", 0)
    return observed < generation
