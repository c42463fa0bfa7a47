"""Exclusive CPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dray.api.types.core_v1 import Pod
from dray.node.topology.cpu_assignment import TooFewCPUsError, take
from dray.node.topology.cpu_manager import CPUManager
from dray.node.topology.hint_provider import AllocationError
from dray.node.topology.machine import CPU, Machine, NUMANode, TopologyError, format_cpus, machine_of, parse_cpus
from dray.node.topology.machine_reader import read_file, read_machine
from dray.node.topology.state_file import StateError
from tests.unit.node.devices.builders import container, part, pod, sidecar

# Two nodes of two cores with two threads each: node 0 has the cores {0, 4} and {1, 5}.
SMT = machine_of(
    {
        "nodes": [
            {"id": 0, "cpus": "0-1,4-5", "memory": "4Gi", "cores": [[0, 4], [1, 5]]},
            {"id": 1, "cpus": "2-3,6-7", "memory": "4Gi", "cores": [[2, 6], [3, 7]]},
        ]
    }
)
RESERVED = frozenset({0})


def book(machine: Machine = SMT) -> CPUManager:
    return CPUManager(machine, RESERVED)


def guaranteed(uid: str, cpus: int | str, init: list[dict[str, Any]] | None = None) -> Pod:
    return pod(uid, [container("main", {"cpu": cpus, "memory": "1Gi"})], init or [], status={"qosClass": "Guaranteed"})


def give(given: CPUManager, item: Pod, name: str = "main", affinity: int | None = None) -> str:
    given.allocate(item, part(item, name), affinity)
    return format_cpus(given.exclusive(item.metadata.uid or "", name))


@pytest.mark.parametrize("text", ["", "0", "0-3", "0-1,4-5,9"])
def test_sets(text: str) -> None:
    assert format_cpus(parse_cpus(text)) == text


@pytest.mark.parametrize("text", ["x", "3-1", "-1", "1-99999999"])
def test_bad_sets(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid|range"):
        parse_cpus(text)


TAKES = {
    "a whole node": ("0-7", 4, "0-1,4-5"),
    "a whole node and a core": ("0-7", 6, "0-2,4-6"),
    "a core": ("0-7", 2, "0,4"),
    "a thread of a broken core": ("1-7", 1, "4"),
    "a core where less is free": ("0-4,6-7", 2, "0,4"),
    "a core and a thread": ("1-7", 3, "1,4-5"),
    "all": ("1-3", 3, "1-3"),
    "none": ("1-3", 0, ""),
}


@pytest.mark.parametrize(("free", "count", "expected"), TAKES.values(), ids=TAKES)
def test_take(free: str, count: int, expected: str) -> None:
    assert format_cpus(take(SMT, parse_cpus(free), count)) == expected


def test_take_too_many() -> None:
    with pytest.raises(TooFewCPUsError, match="not enough cpus available to satisfy request: requested=3, available=2"):
        take(SMT, {1, 2}, 3)


def test_whole_cpus_of_guaranteed_pods_are_exclusive() -> None:
    given = book()
    assert give(given, guaranteed("u1", 2)) == "1,5"
    assert format_cpus(given.shared) == "0,2-4,6-7"
    assert give(given, guaranteed("u1", 2)) == "1,5"
    assert give(given, guaranteed("u2", 2), affinity=0b10) == "2,6"
    assert given.free("u1")
    assert format_cpus(given.shared) == "0-1,3-5,7"


@pytest.mark.parametrize(
    "item",
    [guaranteed("u", "1500m"), pod("u", [container("main", {"cpu": 2})], status={"qosClass": "Burstable"})],
    ids=["fraction", "burstable"],
)
def test_others_share(item: Pod) -> None:
    given = book()
    assert give(given, item) == ""
    assert given.hints(item, part(item, "main")) == {}
    assert given.shared == SMT.cpu_ids


def test_reserved_cpus_stay() -> None:
    given = book()
    with pytest.raises(AllocationError, match="requested=8, available=7"):
        give(given, guaranteed("u1", 8))
    assert give(given, guaranteed("u1", 7)) == "1-7"
    assert given.allocatable == SMT.cpu_ids - RESERVED


def test_init_containers_leave_their_cpus() -> None:
    given = book()
    init = [container("i", {"cpu": 2, "memory": "1Gi"}), sidecar("s", {"cpu": 1, "memory": "1Gi"})]
    item = guaranteed("u1", 2, init)
    assert give(given, item, "i") == "1,5"
    assert give(given, item, "s") == "1"
    assert give(given, item) == "4-5"
    assert format_cpus(given.shared) == "0,2-3,6-7"


def test_hints() -> None:
    given = book()
    item = guaranteed("u1", 4)
    found = given.hints(item, part(item, "main"))["cpu"]
    assert [(hint.affinity, hint.preferred) for hint in found] == [(0b10, True), (0b11, False)]
    assert given.pod_hints(item)["cpu"] == found
    give(given, item, affinity=0b10)
    again = given.hints(item, part(item, "main"))["cpu"]
    assert [(hint.affinity, hint.preferred) for hint in again] == [(0b10, True), (0b11, False)]
    grown = guaranteed("u1", 5)
    assert given.hints(grown, part(grown, "main")) == {"cpu": []}
    assert given.pod_hints(grown) == {"cpu": []}


def test_state_file() -> None:
    given = book()
    give(given, guaranteed("u1", 2))
    state = json.loads(given.encode())
    assert isinstance(state.pop("checksum"), int)
    assert state == {"policyName": "static", "defaultCpuSet": "0,2-4,6-7", "entries": {"u1": {"main": "1,5"}}}
    other = book()
    other.restore(given.encode())
    assert format_cpus(other.exclusive("u1", "main")) == "1,5"
    assert other.shared == given.shared


def changed(content: bytes, old: bytes, new: bytes) -> bytes:
    assert old in content
    return content.replace(old, new)


def test_states_that_are_refused() -> None:
    given = book()
    give(given, guaranteed("u1", 2))
    content = given.encode()
    with pytest.raises(
        StateError, match="corrupted, please drain this node and delete the CPU manager checkpoint file"
    ):
        book().restore(changed(content, b"1,5", b"1,4"))
    with pytest.raises(StateError, match="not all reserved cpus"):
        CPUManager(SMT, frozenset({1})).restore(content)
    small = Machine((CPU(0, 0, 0, 0), CPU(1, 1, 0, 0)), (NUMANode(0),))
    with pytest.raises(StateError, match="doesn't match with CPUs in state"):
        CPUManager(small, frozenset({0})).restore(content)
    with pytest.raises(StateError, match="requires systemreserved"):
        CPUManager(SMT, frozenset())


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "KeyError"),
        ({"nodes": [{"id": 0, "cpus": "0"}, {"id": 1, "cpus": "0"}]}, "a CPU is listed twice"),
        ({"nodes": [{"id": 0}, {"id": 0}]}, "a NUMA node is listed twice"),
        ({"nodes": [{"id": 0, "memory": "x"}]}, "quantities"),
        ({"nodes": [{"id": number} for number in range(9)]}, "more than 8 NUMA Nodes"),
    ],
)
def test_descriptions_that_are_refused(document: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        machine_of(document)


def test_a_file_describes_a_machine(tmp_path: Path) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text("nodes:\n- {id: 0, cpus: 0-1, memory: 1Gi, hugepages: {2Mi: 64Mi}}\n- {id: 1, cpus: 2}\n")
    machine = read_file(str(path))
    assert machine.mask == 0b11
    assert machine.cpu_ids == {0, 1, 2}
    assert machine.nodes[0].memory == {"memory": 2**30, "hugepages-2Mi": 64 * 2**20}
    with pytest.raises(TopologyError, match=r"missing\.yaml"):
        read_file(str(tmp_path / "missing.yaml"))


def test_this_machine() -> None:
    machine = read_machine()
    assert machine.cpus
    assert machine.nodes[0].memory["memory"] > 2**26


def test_sys(tmp_path: Path) -> None:
    files = {
        "devices/system/cpu/online": "0-2",
        "devices/system/cpu/cpu0/topology/thread_siblings_list": "0,2",
        "devices/system/cpu/cpu0/topology/physical_package_id": "7",
        "devices/system/node/node0/cpulist": "0,2",
        "devices/system/node/node0/meminfo": "Node 0 MemTotal:       1024 kB",
        "devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages": "3",
        "devices/system/node/node10/cpulist": "3",
        "devices/system/node/node2/cpulist": "1",
    }
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    machine = read_machine(str(tmp_path))
    assert [node.id for node in machine.nodes] == [0, 2, 10]
    assert machine.cpus == (CPU(0, 0, 7, 0), CPU(1, 1, 2, 2), CPU(2, 2, 0, 0))
    assert machine.nodes[0].memory == {"memory": 2**20, "hugepages-2Mi": 3 * 2**21}
    assert read_machine(str(tmp_path / "nothing")).cpus == (CPU(0, 0, 0, 0),)
