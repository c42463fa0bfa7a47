"""Opens connections: finds the addresses of a name, tries them, and does TLS."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from dray.runtime.http.connection import Connection
from dray.runtime.http.errors import ConnectError, reason_of
from dray.runtime.http.proxy import Proxy, open_tunnel
from dray.runtime.http.urls import Origin

# When an address has not answered for this long the next is tried beside it (RFC 8305).
NEXT_ADDRESS_SECONDS: Final = 0.25
# A peer that went away without a word is noticed after about a minute and a half.
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))


@dataclass(frozen=True, slots=True)
class Route:
    """How to reach a server."""

    origin: Origin
    tls: ssl.SSLContext | None = None
    # The name the server's certificate must have, where that is not the host's.
    server_name: str = ""
    # The SHA-256 of the server's certificate, where that is how it is known.
    fingerprint: bytes = b""
    proxy: Proxy | None = None


async def dial(route: Route, connection: Connection, timeout_seconds: float) -> None:
    """Connect; raises ConnectError, and leaves nothing open then or when cancelled."""
    peer = route.proxy.origin if route.proxy is not None else route.origin
    prefix = f"proxy {peer.address}: " if route.proxy is not None else ""
    try:
        async with asyncio.timeout(timeout_seconds) as limit:
            await _dial(route, connection)
    except (OSError, UnicodeError) as error:
        # A name that is none fails as Unicode, in the codec for international ones.
        reason = "timed out while connecting" if limit.expired() else reason_of(error)
        raise ConnectError(prefix + reason, peer.address) from error
    except BaseException:
        connection.abort()
        raise


async def _dial(route: Route, connection: Connection) -> None:
    name = (route.server_name or route.origin.host) if route.tls is not None else None
    if route.proxy is None:
        await _attach(route.origin, connection, route.tls, name)
    else:
        tunnel = route.tls is not None
        leg = Connection(connection.loop) if tunnel else connection
        proxy = route.proxy.origin
        # The proxy shows its certificate to the authorities that the server's is shown to.
        secure = (route.tls or ssl.create_default_context()) if proxy.is_secure else None
        await _attach(proxy, leg, secure, proxy.host if secure is not None else None)
        if route.tls is not None:
            await open_tunnel(route.proxy, route.origin, leg)
            await _start_tls(leg, connection, route.tls, name)
    if route.fingerprint:
        _compare(route.fingerprint, connection)


async def _attach(origin: Origin, connection: Connection, tls: ssl.SSLContext | None, name: str | None) -> None:
    opened = await _open_socket(connection.loop, origin)
    try:
        await connection.loop.create_connection(lambda: connection, sock=opened, ssl=tls, server_hostname=name)
    except BaseException:
        connection.abort()
        opened.close()
        raise


async def _start_tls(leg: Connection, connection: Connection, tls: ssl.SSLContext, name: str | None) -> None:
    try:
        transport = await connection.loop.start_tls(leg.transport, connection, tls, server_hostname=name)
    except BaseException:
        leg.abort()
        raise
    if transport is None:
        raise ConnectionResetError
    connection.connection_made(transport)


def _compare(fingerprint: bytes, connection: Connection) -> None:
    tls = connection.transport.get_extra_info("ssl_object")
    certificate = tls.getpeercert(binary_form=True) if tls is not None else None
    if certificate is None or hashlib.sha256(certificate).digest() != fingerprint:
        connection.abort()
        raise ConnectError("the server's certificate has another fingerprint")


async def _open_socket(loop: asyncio.AbstractEventLoop, origin: Origin) -> socket.socket:
    addresses = await _resolve(loop, origin)
    if len(addresses) == 1:
        return await _connect(loop, *addresses[0])
    return await _race(loop, addresses)


async def _resolve(loop: asyncio.AbstractEventLoop, origin: Origin) -> Sequence[tuple[int, Any]]:
    """The addresses of a host, the families in turn."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, origin.host)
        except OSError:
            continue
        return [(family, (origin.host, origin.port))]
    found = await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    # The first stays first: the resolver knows what this machine prefers.
    preferred = [(family, address) for family, _, _, _, address in found if family == found[0][0]]
    others = [(family, address) for family, _, _, _, address in found if family != found[0][0]]
    return [item for pair in zip_longest(preferred, others) for item in pair if item is not None]


async def _connect(loop: asyncio.AbstractEventLoop, family: int, address: Any) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.settimeout(0)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            if hasattr(socket, option):
                opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        await loop.sock_connect(opened, address)
    except BaseException:
        opened.close()
        raise
    return opened


async def _race(loop: asyncio.AbstractEventLoop, addresses: Sequence[tuple[int, Any]]) -> socket.socket:
    """The first that answers; each has a head start before the one after it."""
    attempts: list[asyncio.Task[socket.socket]] = []
    winner: asyncio.Task[socket.socket] | None = None
    try:
        for family, address in addresses:
            attempts.append(loop.create_task(_connect(loop, family, address)))
            winner = await _first(attempts, NEXT_ADDRESS_SECONDS)
            if winner is not None:
                break
        else:
            winner = await _first(attempts, None)
    finally:
        for attempt in attempts:
            if attempt is not winner:
                attempt.cancel()
                attempt.add_done_callback(_discard)
    # All have failed: the preferred address says why.
    return (winner or attempts[0]).result()


def _discard(attempt: asyncio.Task[socket.socket]) -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


async def _first(
    attempts: Sequence[asyncio.Task[socket.socket]], seconds: float | None
) -> asyncio.Task[socket.socket] | None:
    """The first to succeed; None when the time is over or all have failed."""
    waiting = {attempt for attempt in attempts if not attempt.done()}
    while waiting:
        done, waiting = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for attempt in done:
            if attempt.exception() is None:
                return attempt
        # One that failed makes room for the next at once.
        if not done or seconds is not None:
            return None
    return None
