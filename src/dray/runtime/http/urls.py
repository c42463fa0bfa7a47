"""Addresses of servers, and what of them stands in a request."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote, urljoin, urlsplit

_PORTS: Final = {"http": 80, "https": 443}
# Everything that may stand in a path and query as it is, with the sign of what is quoted already.
_SAFE: Final = "%/?:@!$&'()*+,;=-._~[]"
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class Origin:
    """A server: what one connection can be used for."""

    scheme: str
    host: str
    port: int

    @property
    def is_secure(self) -> bool:
        """Whether it speaks TLS."""
        return self.scheme == "https"

    @property
    def address(self) -> str:
        """Host and port, with brackets around an IPv6 address."""
        return f"{self._bracketed}:{self.port}"

    @property
    def authority(self) -> str:
        """What the Host header says: the port only where it is not the usual one."""
        return self._bracketed if self.port == _PORTS[self.scheme] else self.address

    @property
    def url(self) -> str:
        """The beginning of its URLs."""
        return f"{self.scheme}://{self.authority}"

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


@dataclass(frozen=True, slots=True)
class Address:
    """A URL taken apart; `target` is path and query, quoted."""

    origin: Origin
    target: str
    # The value of an Authorization header, when the URL names a user.
    authorization: str = ""


def parse_url(url: str) -> Address:
    """Take a URL apart; ValueError when it is not one of HTTP."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS:
        raise ValueError(f"{url!r}: the scheme must be http or https")
    if not parts.hostname:
        raise ValueError(f"{url!r} names no host")
    port = parts.port if parts.port is not None else _PORTS[parts.scheme]
    target = parts.path or "/"
    if parts.query:
        target += f"?{parts.query}"
    authorization = ""
    if parts.username is not None:
        authorization = basic(unquote(parts.username), unquote(parts.password or ""))
    return Address(Origin(parts.scheme, parts.hostname, port), quote(target, safe=_SAFE), authorization)


def basic(user: str, password: str) -> str:
    """Basic credentials."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def redirected(url: str, status: int, location: str) -> str:
    """Where an answer sends its reader; empty when nowhere."""
    if status not in REDIRECTS or not location:
        return ""
    return urljoin(url, location)
