"""The properties of the machine."""

from __future__ import annotations

import fcntl
import socket
import struct
from pathlib import Path

import pytest

from dray.node.agent.machine_info import read_machine
from dray.node.network.links import link_name


def test_the_machine_is_read() -> None:
    machine = read_machine(Path("/"), hostname="n1", address="10.0.0.1")
    assert machine.cpus >= 1
    assert machine.memory_bytes > 0
    assert (machine.hostname, machine.addresses) == ("n1", ("10.0.0.1",))


@pytest.mark.behaviour("SV-51")
@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        ({"lo": "127.0.0.1", link_name("agent"): "10.244.0.1"}, "127.0.0.1"),
        ({"lo": "127.0.0.1", link_name("agent"): "10.244.0.1", "cable": "10.99.0.1"}, "10.99.0.1"),
        ({"lo": "127.0.0.1", "dray0": "10.99.0.1"}, "10.99.0.1"),
    ],
)
def test_without_a_default_route_the_bridge_of_the_pods_is_not_the_address_of_the_machine(
    addresses: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unconnected(socket.socket):
        def connect(self, address: object) -> None:
            raise OSError(f"no route to {address}")

    def ioctl(_probe: socket.socket, _request: int, interface: bytes) -> bytes:
        found = addresses[interface.rstrip(b"\0").decode()]
        return struct.pack("20x4s", socket.inet_aton(found))

    monkeypatch.setattr(socket, "socket", Unconnected)
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(addresses, 1)))
    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    assert read_machine(Path("/")).addresses == (expected,)
