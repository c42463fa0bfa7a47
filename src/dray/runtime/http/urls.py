"""URLs of servers, and their parts in requests. Pure."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote, urljoin, urlsplit

_PORTS: Final = {"http": 80, "https": 443}
# Characters that are not quoted in a path and query; includes "%", so that quoted text stays as it is.
_SAFE: Final = "%/?:@!$&'()*+,;=-._~[]"
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class Origin:
    """The scheme, host and port of a server."""

    scheme: str
    host: str
    port: int

    @property
    def is_secure(self) -> bool:
        """Whether the scheme is https."""
        return self.scheme == "https"

    @property
    def address(self) -> str:
        """Host and port, with brackets around an IPv6 address."""
        return f"{self._bracketed}:{self.port}"

    @property
    def authority(self) -> str:
        """The value of the Host header; includes the port unless it is the scheme's default."""
        return self._bracketed if self.port == _PORTS[self.scheme] else self.address

    @property
    def url(self) -> str:
        """The URL without a path."""
        return f"{self.scheme}://{self.authority}"

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed URL; `target` is the quoted path and query."""

    origin: Origin
    target: str
    # The value of the Authorization header, if the URL contains a user.
    authorization: str = ""


def parse_url(url: str) -> Address:
    """Parse a URL; raise ValueError unless it is a valid HTTP URL."""
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
    """Return the Authorization header of basic credentials."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def redirected(url: str, status: int, location: str) -> str:
    """Return the URL that a response redirects to; empty if it is not a redirect."""
    if status not in REDIRECTS or not location:
        return ""
    return urljoin(url, location)
