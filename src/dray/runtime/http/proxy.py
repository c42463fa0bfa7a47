"""HTTP proxies: HTTPS goes through a CONNECT tunnel, HTTP requests are sent to the proxy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dray.runtime.http.connection import Connection
from dray.runtime.http.errors import ConnectError, HttpError
from dray.runtime.http.heads import request_head
from dray.runtime.http.urls import Origin, parse_url

_SUCCESSES: Final = range(200, 300)


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy and the credentials for it."""

    origin: Origin
    # The value of a Proxy-Authorization header.
    authorization: str = ""

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The headers of every request to the proxy."""
        return (("Proxy-Authorization", self.authorization),) if self.authorization else ()


def parse_proxy(url: str) -> Proxy:
    """Parse the URL of a proxy; raise ValueError unless it is a valid HTTP URL."""
    address = parse_url(url)
    return Proxy(address.origin, address.authorization)


async def open_tunnel(proxy: Proxy, origin: Origin, leg: Connection) -> None:
    """Open a tunnel to a server through the proxy connection."""
    head = request_head("CONNECT", origin.address, (("Host", origin.address), *proxy.headers))
    name = f"proxy {proxy.origin.address}"
    response = leg.send("CONNECT", head)
    try:
        await response.head()
    except HttpError as error:
        raise ConnectError(f"{name}: {error}", proxy.origin.address) from error
    except BaseException:
        # When the task is cancelled, the response may be complete and the connection idle.
        leg.abort()
        raise
    if response.status not in _SUCCESSES:
        leg.abort()
        reason = response.reader.reason.decode("latin-1")
        raise ConnectError(f"{name}: {response.status} {reason}".rstrip(), proxy.origin.address)
    if not leg.is_usable:
        raise ConnectError(f"{name}: unexpected data after the response to CONNECT", proxy.origin.address)
