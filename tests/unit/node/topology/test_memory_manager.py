"""Pinned memory."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dray.api.types.core_v1 import Pod
from dray.node.topology.container_manager import TopologySettings
from dray.node.topology.hint_provider import AllocationError
from dray.node.topology.machine import machine_of
from dray.node.topology.memory_manager import Block, MemoryManager
from dray.node.topology.state_file import StateError
from tests.unit.node.devices.builders import container, part, pod

GI = 2**30
MACHINE = machine_of(
    {
        "nodes": [
            {"id": 0, "cpus": "0", "memory": "4Gi", "hugepages": {"2Mi": "1Gi"}},
            {"id": 1, "cpus": "1", "memory": "4Gi"},
        ]
    }
)


def book() -> MemoryManager:
    return MemoryManager(MACHINE, {0: {"memory": GI}})


def wants(uid: str, memory: str, init: list[dict[str, Any]] | None = None, **more: str) -> Pod:
    limits = {"cpu": "1", "memory": memory, **{name.replace("_", "-"): amount for name, amount in more.items()}}
    return pod(uid, [container("main", limits)], init or [], status={"qosClass": "Guaranteed"})


def give(
    given: MemoryManager, item: Pod, affinity: int | None = None, name: str = "main"
) -> list[tuple[tuple[int, ...], int]]:
    given.allocate(item, part(item, name), affinity)
    return [(block.nodes, block.size // GI) for block in given.blocks(item.metadata.uid or "", name)]


def hints(given: MemoryManager, item: Pod) -> list[tuple[int | None, bool]]:
    return [(hint.affinity, hint.preferred) for hint in given.hints(item, part(item, "main"))["memory"]]


def test_a_node_that_has_enough_is_preferred() -> None:
    given = book()
    assert hints(given, wants("u", "3Gi")) == [(1, True), (2, True), (3, False)]
    assert hints(given, wants("u", "4Gi")) == [(2, True), (3, False)]
    assert hints(given, wants("u", "5Gi")) == [(3, True)]
    assert hints(given, wants("u", "8Gi")) == []


def test_allocation() -> None:
    given = book()
    assert give(given, wants("u1", "2Gi")) == [((0,), 2)]
    assert give(given, wants("u1", "2Gi")) == [((0,), 2)]
    assert give(given, wants("u2", "2Gi")) == [((1,), 2)]
    assert give(given, wants("u3", "1Gi"), affinity=1) == [((0,), 1)]
    with pytest.raises(AllocationError, match="failed to find NUMA nodes to extend"):
        give(given, wants("u4", "1Gi"), affinity=1)
    with pytest.raises(AllocationError, match="no NUMA nodes with enough memory is available"):
        give(given, wants("u4", "3Gi"))
    assert given.free("u2")
    assert give(given, wants("u4", "3Gi")) == [((1,), 3)]


def test_a_spread_group_does_not_mix_with_single_nodes() -> None:
    given = book()
    assert give(given, wants("u1", "5Gi")) == [((0, 1), 5)]
    assert hints(given, wants("u2", "1Gi")) == [(3, False)]
    assert give(given, wants("u2", "1Gi"), affinity=1) == [((0, 1), 1)]
    given.free("u1")
    given.free("u2")
    give(given, wants("u3", "1Gi"))
    assert hints(given, wants("u4", "5Gi")) == []


def test_all_kinds_come_from_one_group() -> None:
    given = book()
    item = wants("u", "1Gi", hugepages_2Mi="512Mi")
    assert {
        name: [hint.affinity for hint in found] for name, found in given.hints(item, part(item, "main")).items()
    } == {
        "hugepages-2Mi": [1, 3],
        "memory": [1, 3],
    }
    give(given, item)
    assert given.blocks("u", "main") == (Block((0,), "hugepages-2Mi", GI // 2), Block((0,), "memory", GI))


def test_burstable_pods_get_nothing() -> None:
    given = book()
    item = pod("u", [container("main", {"memory": "1Gi"})], status={"qosClass": "Burstable"})
    assert give(given, item) == []
    assert given.hints(item, part(item, "main")) == {}


def test_init_containers_leave_their_memory() -> None:
    given = book()
    item = wants("u", "2Gi", [container("i", {"cpu": 1, "memory": "3Gi"})])
    assert give(given, item, name="i") == [((0,), 3)]
    assert give(given, item, affinity=1) == [((0,), 2)]
    assert give(given, item, name="i") == [((0,), 1)]
    assert given.pod_hints(item)["memory"][0].affinity == 1
    assert give(given, wants("o", "4Gi")) == [((1,), 4)]


def test_state_file() -> None:
    given = book()
    give(given, wants("u1", "5Gi"))
    state = json.loads(given.encode())
    assert isinstance(state.pop("checksum"), int)
    assert state["policyName"] == "Static"
    assert state["entries"] == {"u1": {"main": [{"numaAffinity": [0, 1], "type": "memory", "size": 5 * GI}]}}
    tables = {node: item["memoryMap"]["memory"] for node, item in state["machineState"].items()}
    assert tables["0"] == {"total": 4 * GI, "systemReserved": GI, "allocatable": 3 * GI, "reserved": 3 * GI, "free": 0}
    assert tables["1"] == {
        "total": 4 * GI,
        "systemReserved": 0,
        "allocatable": 4 * GI,
        "reserved": 2 * GI,
        "free": 2 * GI,
    }
    assert state["machineState"]["0"]["cells"] == [0, 1]
    assert state["machineState"]["0"]["numberOfAssignments"] == 1
    other = book()
    other.restore(given.encode())
    assert other.blocks("u1", "main") == given.blocks("u1", "main")
    with pytest.raises(StateError, match="the expected machine state is different from the real one"):
        MemoryManager(MACHINE, {}).restore(given.encode())


def test_reserved_memory() -> None:
    settings = TopologySettings(reserved_memory="0:memory=1Gi,hugepages-2Mi=64Mi;1:memory=512Mi")
    assert settings.reserved_bytes == {0: {"memory": GI, "hugepages-2Mi": 64 * 2**20}, 1: {"memory": GI // 2}}
    with pytest.raises(StateError, match='must be like "0:memory=1Gi"'):
        _ = TopologySettings(reserved_memory="memory=1Gi").reserved_bytes
    with pytest.raises(StateError, match="reserved CPUs"):
        _ = TopologySettings(reserved_cpus="a-b").reserved_cpu_ids
