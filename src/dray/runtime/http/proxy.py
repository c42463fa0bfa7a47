"""HTTP proxies: asked to open a tunnel for HTTPS; requests for HTTP go to them as they are."""

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
    """A proxy, and who we are to it."""

    origin: Origin
    # The value of a Proxy-Authorization header.
    authorization: str = ""

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """What every request to it carries."""
        return (("Proxy-Authorization", self.authorization),) if self.authorization else ()


def parse_proxy(url: str) -> Proxy:
    """Read a proxy's URL; ValueError when it is not one of HTTP."""
    address = parse_url(url)
    return Proxy(address.origin, address.authorization)


async def open_tunnel(proxy: Proxy, origin: Origin, leg: Connection) -> None:
    """Have the proxy connect us to a server; the connection to it then speaks to that server."""
    head = request_head("CONNECT", origin.address, (("Host", origin.address), *proxy.headers))
    name = f"proxy {proxy.origin.address}"
    answer = leg.send("CONNECT", head)
    try:
        await answer.head()
    except HttpError as error:
        raise ConnectError(f"{name}: {error}", proxy.origin.address) from error
    except BaseException:
        # The answer may be complete, and the connection free, when we are cancelled.
        leg.abort()
        raise
    if answer.status not in _SUCCESSES:
        leg.abort()
        reason = answer.reader.reason.decode("latin-1")
        raise ConnectError(f"{name}: {answer.status} {reason}".rstrip(), proxy.origin.address)
    if not leg.is_usable:
        raise ConnectError(f"{name}: speaks when it should be silent", proxy.origin.address)
