"""Opens connections: resolves a name, tries its addresses and performs the TLS handshake."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final, TypeAlias

from dray.lib.ip_addresses import is_special, parse_address
from dray.runtime.http.byte_stream import detect_dead_peers
from dray.runtime.http.connection import Connection
from dray.runtime.http.errors import AddressNotAllowedError, ConnectError, reason_of
from dray.runtime.http.proxy import Proxy, open_tunnel
from dray.runtime.http.urls import Origin
from dray.runtime.tasks import TaskGroup

# The next address is tried in parallel when one has not connected after this time (RFC 8305).
NEXT_ADDRESS_SECONDS: Final = 0.25
_Attempt: TypeAlias = "asyncio.Task[socket.socket | OSError]"
# The family, and the address as the socket module has it: at least host and port.
_Address: TypeAlias = tuple[int, Any]


@dataclass(frozen=True, slots=True)
class Route:
    """How to reach a server."""

    origin: Origin
    tls: ssl.SSLContext | None = None
    # The name in the server's certificate, if it differs from the host.
    server_name: str = ""
    # The SHA-256 of the server's certificate, to verify instead of its chain.
    fingerprint: bytes = b""
    proxy: Proxy | None = None
    # Whether loopback, link-local and unspecified addresses are refused, also those that a name resolves to: the host
    # comes from somebody who must not reach what listens on this machine only.
    refuses_special: bool = False


async def dial(route: Route, connection: Connection, timeout_seconds: float) -> None:
    """Connect. Nothing stays open after a ConnectError or a cancellation."""
    peer = route.proxy.origin if route.proxy is not None else route.origin
    prefix = f"proxy {peer.address}: " if route.proxy is not None else ""
    try:
        async with asyncio.timeout(timeout_seconds) as limit:
            await _dial(route, connection)
    except (OSError, UnicodeError) as error:
        # An invalid name fails with UnicodeError in the codec for international names.
        reason = "timed out while connecting" if limit.expired() else reason_of(error)
        raise ConnectError(prefix + reason, peer.address) from error
    except BaseException:
        connection.abort()
        raise


async def _dial(route: Route, connection: Connection) -> None:
    name = (route.server_name or route.origin.host) if route.tls is not None else None
    if route.proxy is None:
        check = _check_addresses if route.refuses_special else None
        await _attach(route.origin, connection, route.tls, name, check)
    else:
        tunnel = route.tls is not None
        leg = Connection(connection.loop) if tunnel else connection
        proxy = route.proxy.origin
        # The proxy's certificate is verified by the same authorities as the server's.
        secure = (route.tls or ssl.create_default_context()) if proxy.is_secure else None
        await _attach(proxy, leg, secure, proxy.host if secure is not None else None)
        if route.tls is not None:
            await open_tunnel(route.proxy, route.origin, leg)
            await _start_tls(leg, connection, route.tls, name)
    if route.fingerprint:
        _compare(route.fingerprint, connection)


def _check_addresses(addresses: Sequence[_Address]) -> None:
    """Refuse a host if any of its addresses is refused."""
    for _, (host, *_) in addresses:
        address = parse_address(host)
        if address is None or is_special(address):
            raise AddressNotAllowedError("address not allowed", host)


async def _attach(
    origin: Origin,
    connection: Connection,
    tls: ssl.SSLContext | None,
    name: str | None,
    check: Callable[[Sequence[_Address]], None] | None = None,
) -> None:
    # Resolved once: a name could stand for other addresses the next time.
    addresses = await _resolve(connection.loop, origin)
    if check is not None:
        check(addresses)
    opened = await _open_socket(connection.loop, addresses)
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


async def _open_socket(loop: asyncio.AbstractEventLoop, addresses: Sequence[_Address]) -> socket.socket:
    if len(addresses) == 1:
        return await _connect(loop, *addresses[0])
    return await _race(loop, addresses)


async def _resolve(loop: asyncio.AbstractEventLoop, origin: Origin) -> Sequence[_Address]:
    """Return the addresses of a host, alternating between families."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, origin.host)
        except OSError:
            continue
        return [(family, (origin.host, origin.port))]
    found = await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    # The resolver's first address stays first: it is the one that this machine prefers.
    preferred = [(family, address) for family, _, _, _, address in found if family == found[0][0]]
    others = [(family, address) for family, _, _, _, address in found if family != found[0][0]]
    return [item for pair in zip_longest(preferred, others) for item in pair if item is not None]


async def _connect(loop: asyncio.AbstractEventLoop, family: int, address: Any) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.settimeout(0)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        detect_dead_peers(opened)
        await loop.sock_connect(opened, address)
    except BaseException:
        opened.close()
        raise
    return opened


async def _race(loop: asyncio.AbstractEventLoop, addresses: Sequence[_Address]) -> socket.socket:
    """Return the first socket that connects; each attempt has a head start before the next."""
    attempts: list[_Attempt] = []
    winner: _Attempt | None = None
    chosen: _Attempt | None = None
    try:
        async with TaskGroup("connect") as group:
            for family, address in addresses:
                attempts.append(group.spawn(_try_connect(loop, family, address), f"connect {address}"))
                winner = await _first(attempts, NEXT_ADDRESS_SECONDS)
                if winner is not None:
                    break
            else:
                winner = await _first(attempts, None)
        chosen = winner
    finally:
        for attempt in attempts:
            if attempt is not chosen:
                _close(attempt)
    # Without a winner the error of the preferred address is reported.
    result = (chosen or attempts[0]).result()
    if isinstance(result, OSError):
        raise result
    return result


async def _try_connect(loop: asyncio.AbstractEventLoop, family: int, address: Any) -> socket.socket | OSError:
    try:
        return await _connect(loop, family, address)
    except OSError as error:
        return error


def _close(attempt: _Attempt) -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        result = attempt.result()
        if isinstance(result, socket.socket):
            result.close()


async def _first(attempts: Sequence[_Attempt], seconds: float | None) -> _Attempt | None:
    """Return the first attempt to succeed; None when the time is over or all have failed."""
    waiting = {attempt for attempt in attempts if not attempt.done()}
    while waiting:
        done, waiting = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for attempt in done:
            if isinstance(attempt.result(), socket.socket):
                return attempt
        # After a failure the next address is tried at once.
        if not done or seconds is not None:
            return None
    return None
