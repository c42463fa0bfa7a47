"""Ports of the node that lead to Pods. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostPort:
    """A port of the node that leads to a Pod's; no address means all of the node's."""

    port: int
    container_port: int
    protocol: str = "TCP"
    host_ip: str = ""
