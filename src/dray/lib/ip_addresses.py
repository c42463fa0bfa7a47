"""Classes of IP addresses that decide whether an address of foreign origin may be dialled or certified."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, TypeAlias

IPAddress: TypeAlias = IPv4Address | IPv6Address
# Translators and tunnels send what is for these on to the IPv4 address in the last four bytes: "IPv4-compatible"
# (RFC 4291), SIIT (RFC 2765) and NAT64 (RFC 6052).
_TRANSLATED: Final = tuple(map(ip_network, ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96")))
_BROADCAST: Final = IPv4Address("255.255.255.255")


def parse_address(text: str) -> IPAddress | None:
    """Return an address, an IPv4-mapped one as the IPv4 address that it stands for; None if the text is none.

    As in Go, an address has no zone: Python accepts any text as one, even line breaks.
    """
    try:
        address = ip_address("" if "%" in text else text)
    except ValueError:
        return None
    return (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address


def is_special(address: IPAddress) -> bool:
    """Return whether an address means another machine to each machine, or no machine: loopback, link-local and such.

    Also those that stand for such an IPv4 address.
    """
    own = address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast
    carried = _carried(address) if isinstance(address, IPv6Address) else None
    return own or address == _BROADCAST or (carried is not None and is_special(carried))


def _carried(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that an IPv6 address stands for."""
    if any(address in network for network in _TRANSLATED):
        return IPv4Address(address.packed[-4:])
    return address.sixtofour
