"""Asks the agents of nodes what they measure, and keeps their answers for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from dray.api.document import Document
from dray.api.errors import APIError
from dray.apiserver.handlers.subresources.proxy import NodeProxy
from dray.apiserver.usage_metrics import NodeAnswer, read_summary
from dray.lib.clock import Clock
from dray.runtime.http.errors import HttpError

ANSWER_SECONDS_MAX: Final = 2.0
KEPT_SECONDS: Final = 5.0
NODES_AT_ONCE_MAX: Final = 128
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
_OK: Final = 200


@dataclass(frozen=True, slots=True)
class _Kept:
    time: float
    # None if the node did not answer.
    answer: NodeAnswer | None


class NodeStats:
    """The newest answers of nodes; those that do not answer in time have none."""

    def __init__(self, proxy: NodeProxy | None, clock: Clock) -> None:
        self._proxy = proxy
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._turns = asyncio.Semaphore(NODES_AT_ONCE_MAX)

    async def answers(self, nodes: Iterable[Document]) -> Mapping[str, NodeAnswer]:
        """Return the answers by the names of the nodes."""
        self._forget_old()
        named = {str(node["metadata"]["name"]): node for node in nodes}
        kept = {name: self._kept[name] for name in named if name in self._kept}
        unknown = [name for name in named if name not in kept]
        kept |= zip(unknown, await asyncio.gather(*(self._ask(named[name]) for name in unknown)), strict=True)
        self._kept |= kept
        return {name: entry.answer for name, entry in kept.items() if entry.answer is not None}

    def _forget_old(self) -> None:
        oldest = self._clock.monotonic() - KEPT_SECONDS
        self._kept = {name: kept for name, kept in self._kept.items() if kept.time > oldest}

    async def _ask(self, node: Document) -> _Kept:
        async with self._turns:
            answer = await self._request(node)
        return _Kept(self._clock.monotonic(), answer)

    async def _request(self, node: Document) -> NodeAnswer | None:
        if self._proxy is None:
            return None
        try:
            client = self._proxy.node_client(node)
            with await client.send("GET", "/stats/summary", timeout_seconds=ANSWER_SECONDS_MAX) as response:
                body = await response.read(ANSWER_BYTES_MAX)
            return read_summary(orjson.loads(body)) if response.status == _OK else None
        except (APIError, HttpError, KeyError, TypeError, ValueError, AttributeError):
            return None
