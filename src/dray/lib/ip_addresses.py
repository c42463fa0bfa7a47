"""Classes of IP addresses that decide whether an address of foreign origin may be dialled or certified."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TypeAlias

IPAddress: TypeAlias = IPv4Address | IPv6Address


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
    """Return whether an address means another machine to each machine, or no machine: loopback, link-local and such."""
    return address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast
