"""Admission to CPUs, memory and devices together, from settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from dray.api.types.core_v1 import Pod
from dray.node.devices.device_manager import DeviceSettings, NodePods
from dray.node.resource_manager import Rejection
from dray.node.topology.container_manager import ContainerManager, TopologySettings, make_container_manager
from dray.node.topology.hint_provider import AllocationError, PreferenceNeededError
from dray.node.topology.hints import Hint, Policy, ResourceHints, Scope
from dray.node.topology.state_file import StateError
from dray.node.topology.topology_manager import Alignment, TopologyManager
from dray.runtime.metrics import Metrics
from dray.runtime.system import SystemClock
from tests.unit.node.devices.builders import Pods, container, pod

MACHINE = "nodes:\n- {id: 0, cpus: 0-3, memory: 4Gi}\n- {id: 1, cpus: 4-7, memory: 4Gi}\n"
LOCALITY = Rejection("TopologyAffinityError", "Resources cannot be allocated with Topology locality")


def make(root: Path, pods: Pods, **changes: Any) -> ContainerManager:
    (root / "machine.yaml").write_text(MACHINE)
    settings: dict[str, Any] = {
        "cpu_manager_policy": "static",
        "reserved_cpus": "0",
        "memory_manager_policy": "Static",
        "topology_manager_policy": Policy.SINGLE_NUMA_NODE,
        "topology_file": str(root / "machine.yaml"),
    }
    topology = TopologySettings(**settings | changes)
    return make_container_manager(str(root), NodePods(pods), SystemClock(), Metrics(), topology=topology)


def guaranteed(uid: str, *containers: tuple[str, int, str]) -> Pod:
    parts = [container(name, {"cpu": cpus, "memory": memory}) for name, cpus, memory in containers]
    return pod(uid, parts, status={"qosClass": "Guaranteed"})


async def admit(local: ContainerManager, pods: Pods, item: Pod) -> Rejection | None:
    rejection = await local.manager.admit(item)
    if rejection is None:
        pods.add(item)
    return rejection


async def test_cpus_and_memory_of_one_node(tmp_path: Path) -> None:
    pods = Pods()
    local = make(tmp_path, pods)
    first = guaranteed("u1", ("a", 4, "1Gi"))
    assert await admit(local, pods, first) is None
    assert (local.cpuset(first, "a"), local.memory_nodes(first, "a")) == ("4-7", "1")
    assert local.cpuset(guaranteed("other", ("x", 1, "1Gi")), "x") == "0-3"
    second = guaranteed("u2", ("a", 3, "3Gi"))
    assert await admit(local, pods, second) is None
    assert (local.cpuset(second, "a"), local.memory_nodes(second, "a")) == ("1-3", "0")
    # Memory is left on both nodes, CPUs on none.
    assert await admit(local, pods, guaranteed("u3", ("a", 1, "1Gi"))) == LOCALITY


async def test_a_rejected_pod_holds_nothing(tmp_path: Path) -> None:
    pods = Pods()
    local = make(tmp_path, pods)
    assert await admit(local, pods, guaranteed("u1", ("a", 3, "1Gi"), ("b", 4, "1Gi"), ("c", 1, "1Gi"))) == LOCALITY
    assert await admit(local, pods, guaranteed("u2", ("a", 3, "1Gi"), ("b", 4, "1Gi"))) is None


async def test_without_alignment_too_few_is_an_unexpected_error(tmp_path: Path) -> None:
    pods = Pods()
    local = make(tmp_path, pods, topology_manager_policy=Policy.NONE)
    assert await admit(local, pods, guaranteed("u1", ("a", 8, "1Gi"))) == Rejection(
        "UnexpectedAdmissionError",
        "Allocate failed due to not enough cpus available to satisfy request: requested=8, available=7, "
        "which is unexpected",
    )


@pytest.mark.parametrize(("scope", "admitted"), [(Scope.CONTAINER, True), (Scope.POD, False)])
async def test_scopes(tmp_path: Path, scope: Scope, admitted: bool) -> None:
    pods = Pods()
    local = make(tmp_path, pods, topology_manager_scope=scope)
    rejection = await admit(local, pods, guaranteed("u1", ("a", 3, "1Gi"), ("b", 3, "1Gi")))
    assert (rejection is None) == admitted


async def test_the_pod_scope_keeps_a_pod_together(tmp_path: Path) -> None:
    pods = Pods()
    local = make(tmp_path, pods, topology_manager_scope=Scope.POD)
    item = guaranteed("u1", ("a", 2, "1Gi"), ("b", 2, "1Gi"))
    assert await admit(local, pods, item) is None
    assert (local.cpuset(item, "a"), local.cpuset(item, "b")) == ("4-5", "6-7")


async def test_after_a_restart_everything_is_as_before(tmp_path: Path) -> None:
    pods = Pods()
    item = guaranteed("u1", ("a", 4, "1Gi"))
    assert await admit(make(tmp_path, pods), pods, item) is None
    again = make(tmp_path, pods)
    assert again.cpuset(item, "a") == "4-7"
    assert await admit(again, pods, item) is None
    assert (again.cpuset(item, "a"), again.memory_nodes(item, "a")) == ("4-7", "1")
    # What a container runs with belongs to no other, though the Pod is not admitted in its new shape.
    assert await admit(again, pods, guaranteed("u1", ("a", 3, "1Gi"))) == LOCALITY
    assert await admit(again, pods, guaranteed("u2", ("a", 4, "4Gi"))) == LOCALITY
    pods.remove("u1")
    assert await admit(again, pods, guaranteed("u2", ("a", 4, "4Gi"))) is None


@pytest.mark.parametrize(
    ("changes", "what", "file"),
    [
        ({"cpu_manager_policy": "none"}, "CPU", "cpu_manager_state"),
        ({"memory_manager_policy": "None"}, "memory", "memory_manager_state"),
    ],
)
def test_another_policy_needs_a_drained_node(tmp_path: Path, changes: dict[str, str], what: str, file: str) -> None:
    make(tmp_path, Pods())
    with pytest.raises(StateError) as caught:
        make(tmp_path, Pods(), **changes)
    assert f'please drain this node and delete the {what} manager checkpoint file "{file}"' in str(caught.value)


@pytest.mark.behaviour("DP-15")
async def test_without_device_plugins_there_is_no_folder(tmp_path: Path) -> None:
    disabled = DeviceSettings(enabled=False)
    local = make_container_manager(str(tmp_path), NodePods(Pods()), SystemClock(), Metrics(), devices=disabled)
    item = pod("u", [container("a", {"vendor.com/foo": 1})])
    assert await local.manager.admit(item) is None
    await local.manager.prepare(item)
    await local.manager.pre_start(item, "a")
    assert local.manager.container_options(item, "a").envs == {}
    assert dict(local.manager.node_resources().capacity) == {}
    assert not local.manager.container_resources(item, "a")
    assert local.manager.check_health(item) is None
    assert os.listdir(tmp_path) == []


class Picky:
    """Would only do with the second node, and cannot allocate."""

    def __init__(self) -> None:
        self.undone: list[str] = []

    async def refresh(self, admitting: Collection[str] = ()) -> None:
        pass

    def undo_point(self, pod_uid: str) -> Callable[[], None]:
        return lambda: self.undone.append(pod_uid)

    async def ask(self, needed: PreferenceNeededError) -> None:
        raise AssertionError from needed

    async def commit(self, _pod: Pod) -> None:
        raise AssertionError("nothing is reserved")

    def hints(self, _pod: Pod, _container: Any) -> ResourceHints:
        return {"x": [Hint(2, preferred=True)]}

    def pod_hints(self, _pod: Pod) -> ResourceHints:
        return {"x": []}

    def reserve(self, _pod: Pod, _container: Any, affinity: int | None) -> None:
        raise AllocationError(f"affinity {affinity}")

    def holds(self, _pod_uid: str) -> bool:
        return False

    async def free(self, pod_uid: str) -> None:
        self.freed = pod_uid


@pytest.mark.behaviour("DP-23")
async def test_failures_are_reported_and_their_resources_freed() -> None:
    picky = Picky()
    manager = TopologyManager(None, [picky], Alignment(Policy.RESTRICTED, Scope.CONTAINER, 0b11))
    assert await manager.admit(pod("u")) == Rejection(
        "UnexpectedAdmissionError", "Allocate failed due to affinity 2, which is unexpected"
    )
    assert picky.freed == "u"
    by_pod = TopologyManager(None, [picky], Alignment(Policy.RESTRICTED, Scope.POD, 0b11))
    assert await by_pod.admit(pod("v")) == LOCALITY
    assert picky.freed == "v"
    assert picky.undone == ["u", "v"]
