"""IP addresses, networks and URLs, as strict as in Kubernetes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Interface, ip_address, ip_interface
from typing import Any, ClassVar, Final
from urllib.parse import parse_qsl, quote

from dray.cel.errors import CELRuntimeError
from dray.cel.runtime import traversal
from dray.cel.signatures import Registry

REGISTRY: Final = Registry()
_declare = REGISTRY.declare

# Python's interfaces are addresses with a network; their classes depend on the version.
_Address = IPv4Address | IPv6Address
_CIDR: Final = re.compile(r"[^/]+/(0|[1-9][0-9]{0,2})", re.ASCII)
_TEXT_LENGTH_MAX: Final = 2048
_IPV4: Final = 4


def _walk(text: str, *_: Any) -> int:
    return traversal(len(text))


def _ip(text: str) -> _Address:
    try:
        address = ip_address(text)
    except ValueError as error:
        raise CELRuntimeError(f'IP Address "{text}" parse error during conversion from string: {error}') from None
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            raise CELRuntimeError(f'IP address "{text}" with zone value is not allowed')
        if address.ipv4_mapped is not None:
            raise CELRuntimeError(f'IPv4-mapped IPv6 address "{text}" is not allowed')
    return address


def _is_ip(text: str) -> bool:
    try:
        _ip(text)
    except CELRuntimeError:
        return False
    return True


def _cidr(text: str) -> Any:
    prefix = f'network address parse error during conversion from string: netip.ParsePrefix("{text}")'
    if _CIDR.fullmatch(text) is None:
        raise CELRuntimeError(f"{prefix}: no '/'")
    try:
        network = ip_interface(text)
    except ValueError as error:
        raise CELRuntimeError(f"{prefix}: {error}") from None
    if isinstance(network, IPv6Interface):
        if network.scope_id is not None:
            raise CELRuntimeError(f'IP address "{text}" with zone value is not allowed')
        if network.ip.ipv4_mapped is not None:
            raise CELRuntimeError(f'IPv4-mapped IPv6 address "{text}" is not allowed')
    return network


def _is_cidr(text: str) -> bool:
    try:
        _cidr(text)
    except CELRuntimeError:
        return False
    return True


_MULTICAST: Final = 0xFF
_LINK_LOCAL_SCOPE: Final = 0x02


def _is_link_local_multicast(address: _Address) -> bool:
    packed = address.packed
    if address.version == _IPV4:
        return packed[:3] == b"\xe0\x00\x00"
    # ff02::/16 with any flags.
    return packed[0] == _MULTICAST and packed[1] & 0x0F == _LINK_LOCAL_SCOPE


def _is_global_unicast(address: _Address) -> bool:
    special = address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local
    return not special and address.packed != b"\xff\xff\xff\xff"


def _contains_ip(network: Any, address: Any) -> bool:
    address = _ip(address) if isinstance(address, str) else address
    return network.version == address.version and address in network.network


def _contains_cidr(network: Any, other: Any) -> bool:
    other = _cidr(other) if isinstance(other, str) else other
    if network.version != other.version:
        return False
    return network.network.prefixlen <= other.network.prefixlen and other.ip in network.network


_declare("ip(string) -> ip", _ip, charge=_walk)
_declare("isIP(string) -> bool", _is_ip, charge=_walk)
_declare("ip.isCanonical(string) -> bool", lambda text: str(_ip(text)) == text, charge=lambda text: 2 * _walk(text))
_declare("ip::family() -> int", lambda address: address.version)
_declare("ip::isUnspecified() -> bool", lambda address: address.is_unspecified)
_declare("ip::isLoopback() -> bool", lambda address: address.is_loopback)
_declare("ip::isLinkLocalMulticast() -> bool", _is_link_local_multicast)
_declare("ip::isLinkLocalUnicast() -> bool", lambda address: address.is_link_local)
_declare("ip::isGlobalUnicast() -> bool", _is_global_unicast)
_declare("string(ip) -> string", str)
_declare("cidr(string) -> cidr", _cidr, charge=_walk)
_declare("isCIDR(string) -> bool", _is_cidr, charge=_walk)
_declare("cidr::containsIP(ip) -> bool", _contains_ip, charge=lambda *_: 4)
_declare("cidr::containsIP(string) -> bool", _contains_ip, charge=lambda _, text: 4 + _walk(text))
_declare("cidr::containsCIDR(cidr) -> bool", _contains_cidr, charge=lambda *_: 7)
_declare("cidr::containsCIDR(string) -> bool", _contains_cidr, charge=lambda _, text: 7 + _walk(text))
_declare("cidr::ip() -> ip", lambda network: network.ip)
_declare("cidr::masked() -> cidr", lambda network: ip_interface(network.network))
_declare("cidr::prefixLength() -> int", lambda network: network.network.prefixlen)
_declare("string(cidr) -> string", str)

# --- URLs.

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(.*)", re.DOTALL | re.ASCII)
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%A-Za-z\-]*)\]|([^\[\]:]*))(?::([0-9]*))?", re.ASCII)
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
# Go accepts spaces in paths and queries.
_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f]")
_BAD_HOST: Final = re.compile(r"[\s<>\"^`{|}\\/?#]")


@dataclass(frozen=True, slots=True)
class Url:
    """The parts of an absolute URL or an absolute path."""

    type_name: ClassVar[str] = "kubernetes.URL"

    scheme: str
    host: str
    hostname: str
    port: str
    path: str
    query: str


def _url(text: str) -> Url:
    found = parse_url(text)
    if found is None:
        raise CELRuntimeError(f'URL parse error during conversion from string: parse "{text}": invalid URI for request')
    return found


def parse_url(text: str) -> Url | None:
    """Parse the target of a request line: a scheme and what follows it, or an absolute path."""
    match = _SCHEME.fullmatch(text)
    scheme, rest = (match[1].lower(), match[2]) if match else ("", text)
    if _FORBIDDEN.search(text) or len(text) > _TEXT_LENGTH_MAX or not (scheme or rest.startswith("/")):
        return None
    rest, _, query = rest.partition("?")
    if not rest.startswith("/"):
        # What follows the scheme is opaque, as in mailto:someone.
        return Url(scheme, "", "", "", "", query)
    host = ""
    if scheme and rest.startswith("//"):
        authority, slash, tail = rest[2:].partition("/")
        host, rest = authority.rpartition("@")[2], slash + tail
    parts = _HOST.fullmatch(host)
    if parts is None or _BAD_HOST.search(host) or _BAD_ESCAPE.search(rest):
        return None
    return Url(scheme, host, parts[1] if parts[1] is not None else parts[2], parts[3] or "", rest, query)


def _escaped_path(url: Url) -> str:
    return quote(url.path, safe="/%$&+,;=:@!'()*~-._")


def _query(url: Url) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for key, value in parse_qsl(url.query, keep_blank_values=True):
        values.setdefault(key, []).append(value)
    return values


_declare("url(string) -> url", _url, charge=_walk)
_declare("isURL(string) -> bool", lambda text: parse_url(text) is not None, charge=_walk)
_declare("url::getScheme() -> string", lambda url: url.scheme)
_declare("url::getHost() -> string", lambda url: url.host)
_declare("url::getHostname() -> string", lambda url: url.hostname)
_declare("url::getPort() -> string", lambda url: url.port)
_declare("url::getEscapedPath() -> string", _escaped_path)
_declare("url::getQuery() -> map(string, list(string))", _query)
