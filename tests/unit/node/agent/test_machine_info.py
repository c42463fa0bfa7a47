"""The properties of the machine."""

from __future__ import annotations

from pathlib import Path

from dray.node.agent.machine_info import read_machine


def test_the_machine_is_read() -> None:
    machine = read_machine(Path("/"), hostname="n1", address="10.0.0.1")
    assert machine.cpus >= 1
    assert machine.memory_bytes > 0
    assert (machine.hostname, machine.addresses) == ("n1", ("10.0.0.1",))
