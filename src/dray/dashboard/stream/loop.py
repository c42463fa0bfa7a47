"""Follows every kind as the reader, and hands on what changes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from typing import Any, Final

from dray.api.document import Document
from dray.api.errors import APIError
from dray.client.interface import Client, ListOptions, Resource
from dray.client.loop import Informers
from dray.dashboard.stream import lines
from dray.lib.clock import Clock
from dray.runtime.tasks import TaskGroup
from dray.sim.cluster_reader import best_resources

KINDS: Final = (
    "Namespace",
    "Node",
    "DeviceClass",
    "DeviceTaintRule",
    "ResourceSlice",
    "ResourceClaim",
    "Pod",
    "ResourceQuota",
    "Event",
)
# A reader that lets so much wait is gone, or will do better to begin anew.
WAITING_MAX: Final = 200_000
ALIVE_SECONDS: Final = 15.0
# Lines are sent in pieces of about this size.
PIECE_SIZE: Final = 256 * 1024


async def changes(client: Client, clock: Clock) -> AsyncGenerator[bytes, None]:
    """All objects, then all changes, until the reader leaves."""
    queue: asyncio.Queue[bytes] = asyncio.Queue(WAITING_MAX)
    async with TaskGroup("dashboard stream") as group:
        group.spawn(_follow(client, clock, queue), "follow")
        try:
            while True:
                yield await _piece(queue)
        finally:
            await group.cancel()


async def _piece(queue: asyncio.Queue[bytes]) -> bytes:
    try:
        async with asyncio.timeout(ALIVE_SECONDS):
            parts = [await queue.get()]
    except TimeoutError:
        return lines.alive()
    size = len(parts[0])
    while size < PIECE_SIZE and not queue.empty():
        parts.append(queue.get_nowait())
        size += len(parts[-1])
    return b"".join(parts)


async def _follow(client: Client, clock: Clock, queue: asyncio.Queue[bytes]) -> None:
    served = best_resources(await client.resources())
    rng = random.Random()  # noqa: S311 - spreads load, guards nothing
    informers = Informers(client, clock, rng)
    async with TaskGroup("dashboard informers") as group:
        group.spawn(informers.run(), "informers")
        for kind in KINDS:
            resource = served.get(kind)
            problem = "not served" if resource is None else await _refusal(client, resource)
            if resource is None or problem:
                queue.put_nowait(lines.refused(kind, problem))
                continue
            group.spawn(_follow_kind(informers, kind, resource, queue), kind)
        try:
            await group.wait(asyncio.Event())
        finally:
            await group.cancel()


async def _refusal(client: Client, resource: Resource[Document]) -> str:
    """Why the reader may not see the kind; an informer would only try again and again."""
    try:
        await client.list(resource, options=ListOptions(limit=1))
    except APIError as error:
        return str(error)
    return ""


async def _follow_kind(
    informers: Informers, kind: str, resource: Resource[Document], queue: asyncio.Queue[bytes]
) -> None:
    api_version = resource.group_version.api_version

    def tell(old: Any, new: Any) -> None:
        document = old if new is None else new
        queue.put_nowait(lines.change(kind, api_version, document, gone=new is None))

    loop = informers.informer(resource)
    await loop.wait_for_sync()
    loop.add_handler(tell)
    queue.put_nowait(lines.synced(kind))
