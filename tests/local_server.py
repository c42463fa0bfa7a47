"""An API server inside the test's own process, on the memory store: no sockets, no TLS, no waiting for a process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dray.api.document import Document
from dray.api.features import FeatureGates
from dray.client.interface import LocalRequest, WatchBatch
from dray.cmd import apiserver
from dray.cmd.settings import APIServerSettings
from tests.shared_documents import assert_unchanged


@dataclass(slots=True)
class Local:
    """Requests in one line each, as an administrator by default."""

    running: apiserver.Running
    groups: tuple[str, ...] = ("system:masters",)
    user: str = "tester"

    async def request(
        self,
        verb: str,
        path: str,
        body: Any = None,
        *,
        query: dict[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Document:
        """Send a request and return its answer; `path` is that of `local_request`."""
        request = local_request(self.user, self.groups, verb, path, body, query=query, content_type=content_type)
        return await self.running.local.handle(request)

    async def watch(self, path: str, **query: str) -> AsyncIterator[tuple[str, Document]]:
        """A watch's events."""
        request = local_request(
            self.user, self.groups, "watch", path, query={"watch": "true", **query}, content_type=""
        )
        return _each(await self.running.local.watch(request))


def local_request(
    user: str,
    groups: tuple[str, ...],
    verb: str,
    path: str,
    body: Any = None,
    *,
    query: dict[str, str] | None = None,
    content_type: str = "application/json",
) -> LocalRequest:
    """`path` is `group/version/resource[/name[/subresource]]`, with `@namespace` at its end; core is `core`."""
    place, _, namespace = path.partition("@")
    group, version, resource, *rest = place.split("/")
    return LocalRequest(
        user=user,
        groups=groups,
        verb=verb,
        group="" if group == "core" else group,
        version=version,
        resource=resource,
        name=rest[0] if rest else "",
        subresource=rest[1] if len(rest) > 1 else "",
        namespace=namespace,
        query=query or {},
        body=body,
        content_type=content_type,
        user_agent="test/1",
    )


async def _each(batches: AsyncIterator[WatchBatch]) -> AsyncIterator[tuple[str, Document]]:
    async for batch in batches:
        for event in batch:
            yield event


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop run until the server has taken something in."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)


@asynccontextmanager
async def local_server(directory: Path, gates: str = "", disabled: tuple[str, ...] = ()) -> AsyncIterator[Local]:
    """A server for the time of a `with` block, without some admission plugins."""
    settings = APIServerSettings(
        data_dir=str(directory),
        port=0,
        store="memory",
        feature_gates=FeatureGates.parse(gates),
        # No controller runs here that would take the taint of a new node away.
        disable_admission_plugins=("TaintNodesByCondition", *disabled),
    )
    async with apiserver.running(settings) as running:
        yield Local(running)
        assert_unchanged(running.server.documents)
