"""Serves DNS by UDP and TCP on one address, and asks the node's resolvers for what is not the cluster's."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

from dray.lib.clock import Clock
from dray.node.dns.messages import (
    CNAME,
    FORMAT_ERROR,
    NAME_ERROR,
    NO_ERROR,
    SERVER_FAILURE,
    UDP_BYTES_MAX,
    MessageError,
    Query,
    Record,
    Response,
    encode_query,
    encode_response,
    error_response,
    is_truncated,
    parse_addresses,
    parse_query,
    response_code,
    with_id,
)
from dray.node.dns.zone import Zone
from dray.runtime.tasks import ChildTasks

PORT: Final = 53
UPSTREAM_SECONDS_MAX: Final = 2.0
CACHE_SECONDS_MAX: Final = 30.0
CACHED_MAX: Final = 1024
# Queries to resolvers at a time; further ones are not answered, and clients ask again.
FORWARDED_MAX: Final = 256
CONNECTIONS_MAX: Final = 64
_IDLE_SECONDS_MAX: Final = 10.0
_TCP_BYTES_MAX: Final = 65535
_ALIASES_MAX: Final = 8


class DnsServer:
    """One server; `resolvers` are read for each query, since the node's file may change."""

    def __init__(self, zone: Zone, resolvers: Callable[[], Sequence[str]], clock: Clock, tasks: ChildTasks) -> None:
        self._zone = zone
        self._resolvers = resolvers
        self._clock = clock
        self._tasks = tasks
        self._random = random.SystemRandom()
        self._cache: OrderedDict[tuple[str, int], tuple[float, bytes]] = OrderedDict()
        self._forwarded = 0
        self._connections = 0
        self._datagrams: asyncio.DatagramTransport | None = None
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int = PORT) -> None:
        """Listen on the address; raises OSError if the port is taken."""
        loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(self._accept, host, port)
        try:
            self._datagrams, _ = await loop.create_datagram_endpoint(
                lambda: _Datagrams(self._received), local_addr=(host, port)
            )
        except OSError:
            self._server.close()
            raise

    def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
        if self._datagrams is not None:
            self._datagrams.close()

    def _received(self, data: bytes, sender: Any) -> None:
        self._tasks.spawn(self._answer_datagram(data, sender), "DNS query")

    async def _answer_datagram(self, data: bytes, sender: Any) -> None:
        answer = await self.answer(data, is_tcp=False)
        if answer is not None and self._datagrams is not None and not self._datagrams.is_closing():
            self._datagrams.sendto(answer, sender)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._connections >= CONNECTIONS_MAX:
            writer.close()
            return
        self._connections += 1
        self._tasks.spawn(self._serve(reader, writer), "DNS connection")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                while True:
                    async with asyncio.timeout(_IDLE_SECONDS_MAX):
                        (length,) = struct.unpack("!H", await reader.readexactly(2))
                        data = await reader.readexactly(length)
                    answer = await self.answer(data, is_tcp=True)
                    if answer is None:
                        return
                    writer.write(struct.pack("!H", len(answer)) + answer)
                    await writer.drain()
        finally:
            self._connections -= 1
            writer.close()

    async def answer(self, data: bytes, *, is_tcp: bool) -> bytes | None:
        """Return the answer to the bytes of a query; None if there is none to give."""
        try:
            query = parse_query(data)
        except MessageError:
            return error_response(data, FORMAT_ERROR)
        size = _TCP_BYTES_MAX if is_tcp else query.udp_bytes
        own = self._own_answer(query)
        if own is None:
            return await self._forward(query, data, size, is_tcp=is_tcp)
        if own.answers and own.answers[-1].type == CNAME and query.type != CNAME:
            own = await self._follow(query, own)
        try:
            return encode_response(query, own, size)
        except MessageError:
            return error_response(data, SERVER_FAILURE)

    def _own_answer(self, query: Query) -> Response | None:
        if self._zone.is_own(query.name):
            return self._zone.lookup(query.name, query.type)
        return self._zone.reverse(query.name)

    async def _follow(self, query: Query, found: Response) -> Response:
        """Add what the alias stands for: another name of the cluster, or what the resolvers say."""
        answers = list(found.answers)
        for _ in range(_ALIASES_MAX):
            alias = answers[-1]
            if alias.type != CNAME or not self._zone.is_own(alias.value):
                break
            next_answer = self._zone.lookup(alias.value, query.type)
            if not next_answer.answers:
                break
            answers += next_answer.answers
        if answers[-1].type == CNAME and not self._zone.is_own(answers[-1].value):
            answers += await self._outside(answers[-1].value, query.type)
        return Response(answers=tuple(answers))

    async def _outside(self, name: str, kind: int) -> list[Record]:
        """Return the addresses of a name that is not the cluster's."""
        try:
            answer = await self._ask_all(encode_query(self._number(), name, kind), is_tcp=False)
            return parse_addresses(answer, name) if answer is not None else []
        except MessageError:
            return []

    def _number(self) -> int:
        return self._random.randrange(1 << 16)

    # --- Other names. ---

    async def _forward(self, query: Query, data: bytes, size: int, *, is_tcp: bool) -> bytes | None:
        key, now = (query.name, query.type), self._clock.monotonic()
        cached = self._cache.get(key)
        if cached is not None and cached[0] > now and len(cached[1]) <= size:
            return with_id(cached[1], query.id)
        if self._forwarded >= FORWARDED_MAX:
            return None
        self._forwarded += 1
        try:
            answer = await self._ask_all(data, is_tcp=is_tcp)
        finally:
            self._forwarded -= 1
        if answer is None:
            failure = Response(SERVER_FAILURE, is_authoritative=False)
            return encode_response(query, failure, size)
        if response_code(answer) not in (NO_ERROR, NAME_ERROR):
            return answer
        self._cache[key] = (now + CACHE_SECONDS_MAX, answer)
        if len(self._cache) > CACHED_MAX:
            self._cache.popitem(last=False)
        return answer

    async def _ask_all(self, data: bytes, *, is_tcp: bool) -> bytes | None:
        """Return the answer of the first resolver that gives one."""
        for resolver in self._resolvers():
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                async with asyncio.timeout(UPSTREAM_SECONDS_MAX):
                    answer = await (_ask_by_tcp(resolver, data) if is_tcp else _ask_by_udp(resolver, data))
                    if is_truncated(answer) and not is_tcp:
                        whole = await _ask_by_tcp(resolver, data)
                        return whole if len(whole) <= UDP_BYTES_MAX else answer
                    return answer
        return None


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, received: Callable[[bytes, Any], None]) -> None:
        self._on_datagram = received

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._on_datagram(data, addr)


async def _ask_by_udp(resolver: str, data: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bytes] = loop.create_future()

    def received(reply: bytes, _sender: Any) -> None:
        # Only what belongs to this question; anybody can send datagrams.
        if reply[:2] == data[:2] and not answer.done():
            answer.set_result(reply)

    transport, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(received), remote_addr=(resolver, PORT))
    try:
        transport.sendto(data)
        return await answer
    finally:
        transport.close()


async def _ask_by_tcp(resolver: str, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(resolver, PORT)
    try:
        writer.write(struct.pack("!H", len(data)) + data)
        await writer.drain()
        (length,) = struct.unpack("!H", await reader.readexactly(2))
        return await reader.readexactly(length)
    finally:
        writer.close()
